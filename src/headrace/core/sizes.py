"""Sizes in bytes as people give them: a number, or text with a unit."""

from __future__ import annotations

import math
import numbers
import re
from typing import Any

from headrace.errors import ArgumentError

Size = int | float | str
"""A number of bytes, or text such as "2GiB"."""

_UNITS = {unit: 1000**i for i, unit in enumerate(("", "k", "m", "g", "t"))}
_UNITS |= {f"{unit}i": 1024**i for i, unit in enumerate(("", "k", "m", "g", "t")) if unit}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", re.IGNORECASE)


def given_bytes(name: str, value: Any, *, least: int = 0, whole: bool = False) -> int:
    """Read the size that an argument was given; ``ArgumentError`` names the argument if it makes no sense.

    Units are KB, MB, GB and TB (1000 bytes to a KB) or KiB, MiB, GiB and TiB (1024), with or without the B, in
    capitals or not. ``whole``: a number has to be a whole one.

    >>> given_bytes("memory", "2GiB"), given_bytes("memory", "1.5 GB"), given_bytes("memory", 4096)
    (2147483648, 1500000000, 4096)
    >>> given_bytes("memory", "16 bits")
    Traceback (most recent call last):
    ...
    headrace.errors.ArgumentError: memory='16 bits': it takes a number of bytes, or text such as '2GiB' or '500MB'.
    """
    size = _read(value, numbers.Integral if whole else numbers.Real)
    if size is None or size < least:
        number = "a whole number of bytes above zero" if least else "a number of bytes"
        raise ArgumentError(f"{name}={value!r}: it takes {number}, or text such as '2GiB' or '500MB'.")
    return size


def _read(value: Any, kind: type[Any]) -> int | None:
    if isinstance(value, str):
        found = _TEXT.fullmatch(value)
        return None if found is None else int(float(found[1]) * _UNITS[found[2].lower()])
    if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value) or value < 0:
        return None
    return int(value)
