"""What the models of these tests learn: handwritten digits, and fares of taxi rides."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

FEATURES = ("distance", "minutes", "passengers", "hour")


@cache
def digits() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return 1797 images of 8 × 8 pixels as rows of 64, scaled to 0…1, and their labels."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (pixels / 16).astype(np.float32), labels


@cache
def rides() -> pd.DataFrame:
    """Return 600 rides as the taxis of a city might drive them, and what they cost."""
    some = np.random.default_rng(0)
    distance = some.gamma(2.0, 2.0, 600)
    minutes = distance * 3 + some.gamma(2.0, 2.0, 600)
    return pd.DataFrame(
        {
            "distance": distance,
            "minutes": minutes,
            "passengers": some.integers(1, 5, 600),
            "hour": some.integers(0, 24, 600),
            "borough": some.choice(["Bronx", "Brooklyn", "Queens"], 600),
            "fare": 3 + 2.5 * distance + 0.5 * minutes + some.normal(0, 0.5, 600),
        }
    )


def ride_columns(rows: int = 20, names: tuple[str, ...] = FEATURES) -> dict[str, np.ndarray[Any, Any]]:
    """Return the first rides as a batch of columns."""
    return {name: rides()[name].to_numpy()[:rows] for name in names}
