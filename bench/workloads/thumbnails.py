"""Many small pictures, loose or in tar files, through a model that takes less time than to open them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

PICTURES = 2_000
TARS = 4


class Brightness:
    """JPEG bytes → a weighted mean of the pixels."""

    batch_size: ClassVar[int] = 64
    outputs: ClassVar[dict[str, str]] = {"prediction": "float32"}

    def __init__(self) -> None:
        self.weights = np.random.default_rng(0).random((32, 32, 3), np.float32)

    def __call__(self, pictures: Iterable[Any]) -> dict[str, NDArray[Any]]:
        from PIL import Image

        found = []
        for picture in pictures:
            with Image.open(io.BytesIO(picture)) as image:
                pixels = np.asarray(image.convert("RGB").resize((32, 32)), np.float32)
            found.append(float((pixels * self.weights).mean()))
        return {"prediction": np.asarray(found, np.float32)}


def pictures(scale: float) -> Iterable[tuple[str, bytes]]:
    """Names and contents: smooth colours, 96 pixels wide, each another."""
    from PIL import Image

    for number in range(max(TARS, round(PICTURES * scale))):
        rng = np.random.default_rng(number)
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        target = io.BytesIO()
        coarse.resize((96, 72), Image.Resampling.BICUBIC).save(target, "JPEG", quality=85)
        yield f"{number:05d}.jpg", target.getvalue()


def make_loose(folder: Path, scale: float) -> None:
    for name, content in pictures(scale):
        (folder / name).write_bytes(content)


def make_tars(folder: Path, scale: float) -> None:
    every = list(pictures(scale))
    for number in range(TARS):
        with tarfile.open(folder / f"pictures-{number}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in every[len(every) * number // TARS : len(every) * (number + 1) // TARS]:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
