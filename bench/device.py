"""A device that is not there, and work to prepare for it: the two steps of ``bench.stages``.

The rows carry images between the steps, 150 KB each, as they would to a real device.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SHAPE = (224, 224, 3)
BATCH = 32


@dataclass(frozen=True, slots=True)
class Mix:
    """How many images there are, and what each takes: CPU to prepare it, and time of the device."""

    images: int
    prepare_ms: float
    predict_ms: float

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: str) -> Mix:
        return cls(**json.loads(Path(path).read_text()))


class Prepare:
    """Ids → images. The column ``prepare_s`` says how much CPU time it really took, spread over the rows."""

    def __init__(self, ms: float) -> None:
        self.seconds = ms / 1000
        self.base = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        began = time.thread_time()
        ids = batch["id"]
        images = np.empty((len(ids), *SHAPE), np.uint8)
        for place, number in enumerate(ids):
            images[place] = self.image(int(number), began + (place + 1) * self.seconds)
        spent = (time.thread_time() - began) / max(1, len(ids))
        return {"id": ids, "image": images, "prepare_s": np.full(len(ids), spent)}

    def image(self, number: int, until: float) -> Array:
        """An image whose first pixels tell its number, after as much arithmetic as there is time for."""
        pixels = self.base.astype(np.float32)
        while time.thread_time() < until:
            np.multiply(pixels, np.float32(0.999), out=pixels)
            np.add(pixels, np.float32(0.1), out=pixels)
        image = pixels.astype(np.uint8)
        image.reshape(-1)[:8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
        return image


class Predict:
    """Images → the numbers that they tell, after so long a wait for the device; it uses no CPU for it."""

    def __init__(self, ms: float) -> None:
        self.seconds = ms / 1000

    def __call__(self, images: Array) -> Array:
        time.sleep(self.seconds * len(images))
        first = np.ascontiguousarray(images.reshape(len(images), -1)[:, :8])
        return first.view(np.int64).reshape(-1)
