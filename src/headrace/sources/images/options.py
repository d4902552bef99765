"""How images are converted when they are read."""

from __future__ import annotations

from typing import NamedTuple

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
