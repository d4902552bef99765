"""Cuts the answer of a query into ranges of one column, so that each row is in exactly one."""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

MOST = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def cuts(low: Any, high: Any, count: int) -> list[str]:
    """Return, as SQL, the values between ``low`` and ``high`` at which ``count`` ranges of equal width begin.

    Fewer where two would be the same.

    >>> cuts(0, 100, 4), cuts(1, 2, 10), cuts(5, 5, 3)
    (['25', '50', '75'], ['2'], [])
    """
    if low is None or high is None or low == high:
        return []
    found = dict.fromkeys(_between(low, high, i, count) for i in range(1, count))
    return [_literal(value) for value in found if low < value <= high]


def conditions(column: str, at: Sequence[str]) -> list[str]:
    """Return what holds for the rows of each range. The first and the last are open; nulls are in the first.

    >>> conditions("x", ["5", "7"])
    ['(x < 5 OR x IS NULL)', '(x >= 5 AND x < 7)', '(x >= 7)']
    """
    if not at:
        return [""]
    inner = [f"({column} >= {a} AND {column} < {b})" for a, b in itertools.pairwise(at)]
    return [f"({column} < {at[0]} OR {column} IS NULL)", *inner, f"({column} >= {at[-1]})"]


def number(column: str, at: Sequence[str]) -> str:
    """Return SQL for the number of the range that a row is in.

    >>> number("x", ["5", "7"])
    'CASE WHEN x >= 7 THEN 2 WHEN x >= 5 THEN 1 ELSE 0 END'
    """
    if not at:
        return "0"
    whens = " ".join(f"WHEN {column} >= {at[i]} THEN {i + 1}" for i in reversed(range(len(at))))
    return f"CASE {whens} ELSE 0 END"


def _between(low: Any, high: Any, i: int, count: int) -> Any:
    if isinstance(low, datetime):
        zone = low.tzinfo or timezone.utc
        first, last = ((each.replace(tzinfo=zone) - _EPOCH) // _MICROSECOND for each in (low, high))
        at = (_EPOCH + _step(first, last, i, count) * _MICROSECOND).astimezone(zone)
        return at if low.tzinfo else at.replace(tzinfo=None)
    if isinstance(low, date):
        return date.fromordinal(_step(low.toordinal(), high.toordinal(), i, count))
    if isinstance(low, float):
        return low * (1 - i / count) + high * (i / count)
    if isinstance(low, Decimal):
        with decimal.localcontext(decimal.Context(prec=100)):
            return low + (high - low) * i / count
    return _step(low, high, i, count)


def _step(low: int, high: int, i: int, count: int) -> int:
    return low + -(-(high - low) * i // count)


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        return f"TIMESTAMPTZ '{value.astimezone(timezone.utc).isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, float):
        assert math.isfinite(value)
        return f"CAST({value!r} AS DOUBLE PRECISION)"
    if isinstance(value, Decimal):
        with decimal.localcontext() as context:
            context.prec = 100  # the usual 28 digits are fewer than a database's
            return format(value.quantize(Decimal(1)) if abs(value) > 1 << 20 else round(value, 6), "f")
    return str(value)
