"""A small valid model of the kinds that are damaged, or read by us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np


def make(name: str, folder: Path) -> str:
    """Write the model ``name`` into ``folder``, if it is not there, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    there = sorted(folder.glob(f"{name}.*"))
    if not there:
        MAKERS[name](folder / name)
        there = sorted(folder.glob(f"{name}.*"))
    return str(there[0])


def _xgboost(suffix: str) -> Callable[[Path], None]:
    def maker(path: Path) -> None:
        import xgboost

        rows = np.random.default_rng(0).normal(size=(50, 3))
        booster = xgboost.train({"max_depth": 2, "nthread": 1}, xgboost.DMatrix(rows, rows[:, 0] > 0), 3)
        booster.save_model(path.with_suffix(suffix))

    return maker


def _lightgbm(path: Path) -> None:
    import lightgbm

    rows = np.random.default_rng(0).normal(size=(200, 3))
    data = lightgbm.Dataset(rows, rows[:, 0] > 0, params={"verbose": -1})
    lightgbm.train({"verbose": -1, "num_threads": 1}, data, 3).save_model(path.with_suffix(".txt"))


MAKERS: dict[str, Callable[[Path], None]] = {
    "xgboost-json": _xgboost(".json"),
    "xgboost-ubj": _xgboost(".ubj"),
    "lightgbm": _lightgbm,
}
