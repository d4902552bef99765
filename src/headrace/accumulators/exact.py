"""Sums that are exact, so that no order of adding, and no number of pieces, can change a bit of them.

A sum is a whole number of units of 2⁻¹⁰⁷⁴, the smallest step of a float64: every finite float64 is one, and
Python's integers hold any number of them. Arrays are first added up in floating point without any error: each
value is cut at a bit so high that all the upper parts together fit into 53 bits (Rump, Ogita and Oishi, 2008).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

SCALE = 1074  # the unit is 2**-SCALE
_CHUNK = 1 << 16
_HUGE = 2.0**960
_LOW = 0xFFFFFFFF
_SPLITTER = 2.0**27 + 1


def fixed(values: Floats) -> int:
    """Return the exact sum of finite float64 values, in units of 2⁻¹⁰⁷⁴.

    >>> fixed(np.array([1e100, 1.0, -1e100])) == 1 << SCALE
    True
    """
    return sum(_fixed(values[at : at + _CHUNK]) for at in range(0, len(values), _CHUNK))


def _fixed(values: Floats) -> int:
    total = 0
    top = _largest(values)
    if top > _HUGE:
        huge = np.abs(values) > _HUGE
        total += _fixed(values[huge] * 2.0**-200) << 200
        values = values[~huge]
        top = _largest(values)
    while top:
        exponent = math.frexp(top)[1] + 17
        if exponent <= -1021:  # all of them are so small that their sum is exact as it is
            return total + units(float(values.sum()))
        sigma = math.ldexp(1.0, exponent)
        upper = values + sigma
        upper -= sigma
        total += units(float(upper.sum()))
        values = values - upper
        top = _largest(values)
    return total


def _largest(values: Floats) -> float:
    return max(float(values.max()), -float(values.min())) if len(values) else 0.0


def units(value: float) -> int:
    """Return a finite float in units of 2⁻¹⁰⁷⁴."""
    mantissa, exponent = math.frexp(value)
    whole, shift = int(math.ldexp(mantissa, 53)), exponent - 53 + SCALE
    return whole << shift if shift >= 0 else whole >> -shift


def whole(values: np.ndarray[Any, Any]) -> int:
    """Return the exact sum of integers of any dtype."""
    if values.dtype.itemsize < 8:
        return int(values.sum(dtype=np.int64))
    return (int((values >> 32).sum()) << 32) + int((values & _LOW).sum())


def fixed_by(keys: Ints, values: Floats, count: int) -> list[int]:
    """Return, for each key from 0 to ``count - 1``, the exact sum of its values, which are finite and not
    negative."""
    totals = [0] * count
    for at in range(0, len(values), _CHUNK):
        _add_by(totals, keys[at : at + _CHUNK], values[at : at + _CHUNK])
    return totals


def _add_by(totals: list[int], keys: Ints, values: Floats) -> None:
    bits = np.ascontiguousarray(values + 0.0).view(np.int64)
    exponent = (bits >> 52) & 0x7FF
    mantissa = (bits & ((1 << 52) - 1)) | ((exponent > 0).astype(np.int64) << 52)
    position = np.maximum(exponent, 1) - 1
    limb, shift = position >> 5, position & 31
    lower, upper = (mantissa & _LOW) << shift, (mantissa >> 32) << shift
    first = int(limb.min())
    width = int(limb.max()) - first + 3
    places = keys * width + (limb - first)
    table = np.zeros(len(totals) * width)
    for i, part in enumerate((lower & _LOW, (lower >> 32) + (upper & _LOW), upper >> 32)):
        table += np.bincount(places + i, weights=part, minlength=len(table))
    for place in np.flatnonzero(table).tolist():
        key, at = divmod(place, width)
        totals[key] += int(table[place]) << (32 * (first + at))


def as_float(total: int) -> float:
    """Return units of 2⁻¹⁰⁷⁴ as the nearest float."""
    return ratio(total, 1 << SCALE)


def ratio(above: int, below: int) -> float:
    """Divide two integers of any size, rounded once.

    >>> ratio(1, 3), ratio(10**400, 1)
    (0.3333333333333333, inf)
    """
    try:
        return above / below
    except OverflowError:
        return math.inf if above > 0 else -math.inf


def product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return ``a * b`` rounded, and what rounding took away; exact but for over- and underflow (Dekker, 1971)."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = a * b
        a_high, a_low = _halves(a)
        b_high, b_low = _halves(b)
        rest = a_low * b_low - (((rounded - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return rounded, np.where(np.isfinite(rest), rest, 0.0)


def _halves(values: Floats) -> tuple[Floats, Floats]:
    scaled = _SPLITTER * values
    high = scaled - (scaled - values)
    return high, values - high


class ExactSum:
    """A sum of float64 values; infinities and NaN are counted apart.

    >>> total = ExactSum()
    >>> total.add(np.array([0.1] * 10))
    >>> total.value()
    1.0
    """

    __slots__ = ("minus", "nan", "plus", "total")

    def __init__(self, total: int = 0, plus: int = 0, minus: int = 0, nan: int = 0) -> None:
        self.total = total
        self.plus = plus
        self.minus = minus
        self.nan = nan

    def add(self, values: Floats) -> None:
        """Add an array of float64."""
        if not len(values):
            return
        if not math.isfinite(float(values.max()) - float(values.min())):
            finite = np.isfinite(values)
            self.plus += int(np.count_nonzero(values == np.inf))
            self.minus += int(np.count_nonzero(values == -np.inf))
            self.nan += int(np.count_nonzero(np.isnan(values)))
            values = values[finite]
        self.total += fixed(values)

    def merge(self, other: ExactSum) -> None:
        """Add another sum."""
        self.total += other.total
        self.plus += other.plus
        self.minus += other.minus
        self.nan += other.nan

    def value(self) -> float:
        """Return the sum, rounded once."""
        return self.over(1 << SCALE)

    def over(self, units: int) -> float:
        """Return the sum divided by ``units`` of 2⁻¹⁰⁷⁴, rounded once."""
        if self.nan or (self.plus and self.minus):
            return math.nan
        if self.plus or self.minus:
            return math.inf if self.plus else -math.inf
        return ratio(self.total, units)

    def state(self) -> list[Any]:
        """Return what ``from_state`` takes."""
        return [to_state(self.total), self.plus, self.minus, self.nan]

    @classmethod
    def from_state(cls, state: list[Any]) -> ExactSum:
        """Return the sum that this is the state of."""
        return cls(from_state(state[0]), *state[1:])


def to_state(number: int) -> bytes:
    """Encode an integer of any size in as few bytes as hold it."""
    return number.to_bytes((number.bit_length() + 8) // 8, "little", signed=True)


def from_state(data: bytes) -> int:
    """Decode what ``to_state`` made."""
    return int.from_bytes(data, "little", signed=True)
