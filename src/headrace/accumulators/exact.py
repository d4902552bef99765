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
_CHUNKS = 512  # each adds less than 2**53 to an int64
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
    """Return, for each key from 0 to ``count - 1``, the exact sum of its finite values."""
    sums = ExactSums()
    sums.add(keys, values, np.arange(count))
    return sums.totals(count)


def column(array: np.ndarray[Any, Any] | None, size: int, dtype: Any = np.int64, fill: Any = 0) -> Ints:
    """Return an array of this size at least, which ends with ``fill``; the one given, if it is long enough."""
    old = np.empty(0, dtype) if array is None else array
    if len(old) >= size:
        return old
    longer = np.full(max(size, 2 * len(old)), fill, dtype)
    longer[: len(old)] = old
    return longer


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


class ExactSums:
    """An ``ExactSum`` for each of many groups, which have numbers; the sums are arrays.

    A sum is cut into limbs, multiples of 2**(32 * limb) that an int64 holds. So few bits of each value go into one
    that a float64 adds up those of a group without error.
    """

    __slots__ = ("_added", "_limbs", "_odd")

    def __init__(self) -> None:
        self._limbs: dict[int, Ints] = {}
        self._odd: dict[int, Ints] = {}  # numbers of infinities: plus, minus; and of NaN
        self._added = 0  # chunks, since carrying

    def add(self, codes: Ints, values: Floats, groups: Ints, most: int = _CHUNK) -> None:
        """Add values; the group of a value is ``groups[code]``, and no group is there twice.

        ``most`` is how many values a group has at most: the fewer, the more bits of each are added at a time.
        """
        bits = min(51, 53 - (min(most, _CHUNK) - 1).bit_length())
        if len(values) and not math.isfinite(float(values.max()) - float(values.min())):
            for at, odd in enumerate((values == np.inf, values == -np.inf, np.isnan(values))):
                if odd.any():
                    add_at(self._odd, at, groups, np.bincount(codes[odd], minlength=len(groups)))
            finite = np.isfinite(values)
            codes, values = codes[finite], values[finite]
        for at in range(0, len(values), _CHUNK):
            if self._added >= _CHUNKS:
                self._carry()
            self._added += 1
            self._add(codes[at : at + _CHUNK], values[at : at + _CHUNK], groups, bits)

    def _add(self, codes: Ints, values: Floats, groups: Ints, bits: int, up: int = 0) -> None:
        top = _largest(values)
        if top > _HUGE:
            huge = np.abs(values) > _HUGE
            self._add(codes[huge], values[huge] * 2.0**-192, groups, bits, up=6)
            codes, values = codes[~huge], values[~huge]
            top = _largest(values)
        upper, lower = (
            np.empty(len(values)),
            None,
        )  # both are used again, as new memory costs as much as adding
        while top:
            limb = -((bits - math.frexp(top)[1]) // 32)
            sigma = math.ldexp(1.5, 52 + 32 * limb)
            np.add(values, sigma, out=upper)
            upper -= sigma
            sums = np.ldexp(np.bincount(codes, upper, len(groups)), -32 * limb)
            add_at(self._limbs, limb + up, groups, sums.astype(np.int64))
            values = lower = np.subtract(values, upper, out=lower)
            top = _largest(values)
            if top and np.count_nonzero(values) < len(values) // 2:
                there = np.flatnonzero(values)
                codes, values, lower, upper = codes[there], values[there], None, upper[: len(there)]

    def _carry(self) -> None:
        """Leave 32 bits in each limb; equal sums have equal limbs then."""
        limb = min(self._limbs, default=0)
        while limb <= max(self._limbs, default=-1):
            table = self._limbs.get(limb)
            if table is not None:
                upper = (table + (1 << 31)) >> 32
                if upper.any():
                    add_at(self._limbs, limb + 1, np.arange(len(upper)), upper)
                    table -= upper << 32
            limb += 1
        self._added = 0

    def merge(self, other: ExactSums, groups: Ints) -> None:
        """Add others, whose first group is ``groups[0]`` here."""
        self._carry()
        other._carry()
        self._added = 1
        for mine, more in ((self._limbs, other._limbs), (self._odd, other._odd)):
            for at, table in more.items():
                add_at(mine, at, groups[: len(table)], table[: len(groups)])

    def sums(self, count: int) -> list[ExactSum]:
        """Return the sums of the first ``count`` groups."""
        odd = [column(self._odd.get(at), count)[:count].tolist() for at in range(3)]
        return [ExactSum(*each) for each in zip(self.totals(count), *odd, strict=True)]

    def totals(self, count: int) -> list[int]:
        """Return the finite parts, in units of 2⁻¹⁰⁷⁴."""
        self._carry()
        totals = [0] * count
        for limb, table in self._limbs.items():
            shift = 32 * limb + SCALE
            there = np.flatnonzero(table[:count])
            for group, part in zip(there.tolist(), table[there].tolist(), strict=True):
                totals[group] += part << shift if shift >= 0 else part >> -shift
        return totals

    def state(self, order: Ints) -> Any:
        """Return what ``restore`` takes, with the groups in this order."""
        self._carry()
        limbs, odd = (
            [
                [at, column(tables[at], len(order))[order].astype(dtype).tobytes()]
                for at in sorted(tables)
                if tables[at].any()
            ]
            for tables, dtype in ((self._limbs, "<i4"), (self._odd, "<i8"))
        )
        return [limbs, odd]

    def restore(self, state: Any) -> None:
        """Become the sums that this is the state of."""
        for tables, dtype, saved in zip((self._limbs, self._odd), ("<i4", "<i8"), state, strict=True):
            tables.update({at: np.frombuffer(data, dtype).astype(np.int64) for at, data in saved})


def add_at(tables: dict[Any, Ints], at: Any, groups: Ints, more: Ints) -> None:
    """Add to the numbers of some groups in a table, which grows."""
    if len(groups):
        tables[at] = column(tables.get(at), int(groups.max()) + 1)
        tables[at][groups] += more


def to_state(number: int) -> bytes:
    """Encode an integer of any size in as few bytes as hold it."""
    return number.to_bytes((number.bit_length() + 8) // 8, "little", signed=True)


def from_state(data: bytes) -> int:
    """Decode what ``to_state`` made."""
    return int.from_bytes(data, "little", signed=True)
