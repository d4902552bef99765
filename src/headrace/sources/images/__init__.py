"""Image files, and how they are converted when they are read."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from headrace.errors import ArgumentError

MODES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "HSV": 3}  # their channels, of one byte


class ImageOptions(NamedTuple):
    """How an image is converted: its size (None: unchanged), its mode, whether the decoder of JPEGs scales them;
    and how many pixels a file may hold."""

    size: tuple[int, int] | None
    mode: str
    draft: bool
    max_pixels: int

    @property
    def channels(self) -> tuple[int, ...]:
        """The axis of channels; none for grey."""
        return () if self.mode == "L" else (MODES[self.mode],)


class ImageSizes(NamedTuple):
    """The sizes (height, width) of all images: one, or else one for each file; None where it is unknown."""

    common: tuple[int, int] | None
    each: tuple[tuple[int, int] | None, ...] = ()


MAX_PIXELS = 89_478_485  # as many as Pillow reads without a warning: a quarter of 2**30 bytes, of three each
LARGEST = 1 << 16  # pixels of a side


def whole_number(given: Any, name: str, most: int) -> int:
    """Return a number from 1 to ``most``; refuses all else.

    >>> whole_number(3, "stride", 10)
    3
    """
    try:
        count = operator.index(given)
    except TypeError:
        count = 0
    if not 1 <= count <= most:
        raise ArgumentError(f"{name} is a whole number from 1 to {most:,}, not {given!r}.")
    return count


def image_size(size: Any, name: str = "size") -> tuple[int, int] | None:
    """Return (height, width) in pixels; refuses all else but None.

    >>> image_size([480, 640])
    (480, 640)
    """
    if size is None:
        return None
    try:
        height, width = map(operator.index, size)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{name} is (height, width) in pixels, such as {name}=(224, 224), not {size!r}."
        ) from None
    if not (0 < height <= LARGEST and 0 < width <= LARGEST):
        raise ArgumentError(f"{name} is (height, width), each from 1 to {LARGEST:,} pixels, not {size!r}.")
    return height, width
