"""Numbers as people read them: counts, sizes in bytes, times, shares; and rows."""

from __future__ import annotations

import math
import numbers
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.terminal import one_line
from headrace.errors import ArgumentError

_BYTES = 64
_ITEMS = 16
_CHARS = 1_000


def count(number: float) -> str:
    """Return a count with its unit.

    >>> [count(n) for n in (0, 9_999, 12_345, 999_499, 999_500, 1_230_000, 340_000_000)]
    ['0', '9,999', '12.3 k', '999 k', '1 M', '1.2 M', '340 M']
    """
    if round(number) < 10_000:
        return f"{round(number):,}"
    return _scaled(number, 1000, ("", "k", "M", "G", "T", "P"))


def per_second(number: float, unit: str = "row") -> str:
    """Return a speed.

    >>> per_second(1), per_second(12_345), per_second(2, "token")
    ('1 row/s', '12.3 k rows/s', '2 tokens/s')
    """
    text = count(number)
    return f"{text} {unit if text == '1' else unit + 's'}/s"


def size(number: float, *, digits: int = 1) -> str:
    """Return a number of bytes, with ``digits`` decimals at most; two where two close sizes are compared.

    >>> [size(n) for n in (0, 1000, 1536, 1023.9 * 1024, 340 << 20, 5 << 40)]
    ['0 B', '1000 B', '1.5 KiB', '1 MiB', '340 MiB', '5 TiB']
    >>> size(2.046 * 2**30, digits=2), size(2 << 30, digits=2)
    ('2.05 GiB', '2 GiB')
    """
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"), digits)


def exact(number: float) -> str:
    """Return a number as people write it: an integer in full, another one with six digits.

    >>> exact(1_000_000), exact(0.1 + 0.2), exact(0.001)
    ('1,000,000', '0.3', '0.001')
    """
    return f"{number:,}" if isinstance(number, int) else f"{number:.6g}"


def duration(seconds: float) -> str:
    """Return a span of time.

    >>> [duration(s) for s in (0.161, 12.34, 59.99, 125, 3599.6, 3725, 7199)]
    ['0.16 s', '12.3 s', '1 min 00 s', '2 min 05 s', '1 h 00 min', '1 h 02 min', '2 h 00 min']
    """
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def percent(share: float, digits: int = 0) -> str:
    """Return a share of one; what is more than nothing is not shown as nothing.

    >>> percent(0.256), percent(0.00123, 2), percent(0.0), percent(0.00002, 2)
    ('26 %', '0.12 %', '0 %', '<0.01 %')
    """
    least = 10.0**-digits
    return f"{100 * share:.{digits}f} %" if not 0 < 100 * share < least / 2 else f"<{least:.{digits}f} %"


def clock(seconds: float) -> str:
    """Return a span of time as a clock shows it, in whole seconds.

    >>> [clock(s) for s in (0.2, 31.9, 3725)]
    ['0:00', '0:31', '1:02:05']
    """
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def plural(number: int, noun: str, plural: str = "") -> str:
    """Return an exact count and its noun.

    >>> plural(1, "retry", "retries"), plural(2, "file"), plural(999_910, "row")
    ('1 retry', '2 files', '999,910 rows')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _scaled(number: float, base: int, units: Sequence[str], decimals: int = 1) -> str:
    index = 0
    while index < len(units) - 1 and float(_rounded(number, index, decimals)) >= base:
        number /= base
        index += 1
    text = _rounded(number, index, decimals)
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {units[index]}"


def _rounded(number: float, index: int, decimals: int) -> str:
    return f"{number:.{decimals}f}" if index and number < 99.95 else f"{number:.0f}"


def row_text(row: Mapping[str, Any]) -> str:
    """Return a row as a dict is printed, without the middle of long values.

    >>> row_text({"id": 1, "data": b"x" * 1000})
    "{'id': 1, 'data': b'xxxxxxxxxxxxxxxxxxxxxxxx'... (1,000 bytes)}"
    """
    return "{" + ", ".join(f"{name!r}: {value_text(value)}" for name, value in row.items()) + "}"


def value_text(value: Any) -> str:
    """Return a value as Python prints it, without the middle if it is long."""
    if isinstance(value, bytes) and len(value) > _BYTES:
        return f"{value[:24]!r}... ({len(value):,} bytes)"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        if value.ndim and value.size > _ITEMS:
            first = ", ".join(one_line(str(item)) for item in value.reshape(-1)[:4].tolist())
            return f"array([{first}, ...], shape={value.shape}, dtype={value.dtype})"
        return " ".join(repr(value).split())
    if isinstance(value, str) and len(value) > _CHARS:
        return f"{value[:_CHARS]!r}... ({len(value):,} characters)"
    if isinstance(value, list) and len(value) > _ITEMS:
        return f"[{', '.join(value_text(item) for item in value[:4])}, ... ({len(value):,} items)]"
    return repr(value)


def metric_text(value: Any) -> str:
    """Return the result of a metric in words, with six digits.

    >>> metric_text({"0.5": 4.711478037874701, "all": 20_000})
    '0.5 4.71148, all 20,000'
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        low, high = getattr(value, "low", None), getattr(value, "high", None)
        between = f" ({low:.6g} to {high:.6g})" if low is not None and high is not None else ""
        return f"{float(value):.6g}{between}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {metric_text(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(metric_text, value))}]"
    return str(value)


def short_repr(value: Any) -> str:
    """Return a short ``repr`` fit for one line of a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# ----------------------------------------------------------------
# Sizes in bytes as people give them: a number, or text with a unit.


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


def given_count(name: str, value: Any, least: int = 0, *, besides: str = "", verb: str = "") -> int:
    """Read the whole number that an argument, of ``verb``, was given: one of Python or numpy.

    ``besides``: what else it takes, for the ``ArgumentError``.

    >>> given_count("size", 4, 1)
    4
    >>> given_count("limit", -1, verb="take")
    Traceback (most recent call last):
    ...
    headrace.errors.ArgumentError: take(limit=-1): it takes a whole number of at least 0.
    """
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        given = f"{verb}({name}={value!r})" if verb else f"{name}={value!r}"
        raise ArgumentError(f"{given}: it takes a whole number of at least {least}{besides}.")
    return count


def _read(value: Any, kind: type[Any]) -> int | None:
    if isinstance(value, str):
        found = _TEXT.fullmatch(value)
        return None if found is None else int(float(found[1]) * _UNITS[found[2].lower()])
    if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value) or value < 0:
        return None
    return int(value)


def sentence(words: str) -> str:
    """Return words with a capital letter at their beginning.

    >>> sentence("the code of map(f)")
    'The code of map(f)'
    """
    return f"{words[0].upper()}{words[1:]}"
