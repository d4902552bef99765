"""Numbers that users give, and those that bound what is in memory."""

from __future__ import annotations

import operator
from typing import Any

from headrace.errors import ArgumentError

BATCH_BYTES = 64 << 20
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
