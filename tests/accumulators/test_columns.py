"""The numbers of ``Dataset.sum``, ``min``, ``max``, ``mean`` and ``std``: of every type, and in parts."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.accumulators.columns import NUMBERS
from headrace.errors import ArgumentError

NAN, INF = math.nan, math.inf
MONEY = pa.decimal128(38, 2)
CITIES = pa.dictionary(pa.int32(), pa.string())


def day(number: int) -> dt.date:
    return dt.date(2020, 1, number)


# A column in two parts → sum, mean, min, max, std with ddof=1; an error where there is no such number.
NONE = ArgumentError
CASES: dict[str, tuple[Any, list[Any], list[Any], tuple[Any, ...]]] = {
    "int64": (pa.int64(), [3, None, 1], [2, 6, None], (12, 3.0, 1, 6, math.sqrt(14 / 3))),
    "int8": (pa.int8(), [100, 100], [103], (303, 101.0, 100, 103, math.sqrt(3))),
    "beyond 2**53": (pa.int64(), [2**53 + 1], [2], (2**53 + 3, 2.0**52 + 2, 2, 2**53 + 1, NONE)),
    "beyond 2**63": (pa.uint64(), [2**63] * 2, [1], (2**64 + 1, (2**64 + 1) / 3, 1, 2**63, NONE)),
    "float64": (pa.float64(), [0.5, None], [2.5, 1.5], (4.5, 1.5, 0.5, 2.5, 1.0)),
    "float32": (pa.float32(), [0.5, None], [2.5, 1.5], (4.5, 1.5, 0.5, 2.5, 1.0)),
    "NaN": (pa.float64(), [NAN], [2.0, NAN, 1.0], (NAN, NAN, 1.0, 2.0, NAN)),
    "NaN only": (pa.float64(), [NAN], [NAN], (NAN, NAN, NAN, NAN, NAN)),
    "infinity": (pa.float64(), [INF], [1.0], (INF, INF, 1.0, INF, NAN)),
    "bool": (pa.bool_(), [True, None, False], [True, True], (3, 0.75, False, True, 0.5)),
    "decimal": (
        MONEY,
        [Decimal("1.25"), None],
        [Decimal("2.75")],
        (Decimal("4.00"), Decimal("2.00"), Decimal("1.25"), Decimal("2.75"), math.sqrt(1.125)),
    ),
    "decimal of many digits": (
        MONEY,
        [Decimal(10**30)],
        [Decimal("0.01")],
        (
            Decimal(f"{10**30}.01"),
            Decimal(10**30) / 2,
            Decimal("0.01"),
            Decimal(f"{10**30}.00"),
            math.sqrt(0.5) * 1e30,
        ),
    ),
    "duration": (pa.duration("s"), [dt.timedelta(1)], [None], (NONE,) * 5),
    "text": (pa.string(), ["b", None], ["a", ""], (NONE, NONE, "", "b", NONE)),
    "bytes": (pa.binary(), [b"b", None], [b"a", b"\xff"], (NONE, NONE, b"a", b"\xff", NONE)),
    "date": (pa.date32(), [day(2), None], [day(1)], (NONE, NONE, day(1), day(2), NONE)),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2020, 1, 2, tzinfo=dt.UTC), None],
        [dt.datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)],
        (
            NONE,
            NONE,
            dt.datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
            dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
            NONE,
        ),
    ),
    "nulls": (pa.null(), [None], [None, None], (None,) * 5),
    "nulls of a type": (pa.int64(), [None], [], (None,) * 5),
    "one": (pa.float64(), [5.0], [], (5.0, 5.0, 5.0, 5.0, None)),
    "lists": (pa.list_(pa.int64()), [[1]], [None], (NONE,) * 5),
    "dictionaries": (CITIES, ["b"], ["a"], (NONE,) * 5),
}


def counted(kind: str, *parts: pa.Array, **settings: Any) -> Any:
    """Count each part for itself, and merge the states as a run does."""
    total = NUMBERS[kind]("x", **settings)
    for part in parts:
        counter = total.empty()
        for half in (part[: len(part) // 2], part[len(part) // 2 :]):
            counter.update(pa.record_batch([half], ["x"]))
        total.merge(total.from_bytes(counter.to_bytes()))
    return total.result()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("number", range(5))
def test_of_every_type(name: str, number: int) -> None:
    kind = ("sum", "mean", "min", "max", "std")[number]
    type_, first, second, results = CASES[name]
    parts = [pa.array(values, type_) for values in (first, second)]
    if results[number] is NONE:
        with pytest.raises(
            ArgumentError, match=rf"{kind}\('x'\): there is no such number for a column of type"
        ):
            counted(kind, *parts)
        return
    result = counted(kind, *parts)
    if isinstance(results[number], float):
        assert type(result) is float and result == pytest.approx(results[number], rel=1e-12, nan_ok=True)
    else:
        assert result == results[number] and isinstance(result, type(results[number]))


@pytest.mark.parametrize("kind", NUMBERS)
def test_one_null_is_enough_where_nulls_count(kind: str) -> None:
    parts = pa.array([1, 2, 3]), pa.array([4, None])
    assert counted(kind, *parts) is not None
    assert counted(kind, *parts, ignore_nulls=False) is None


def test_great_floats_have_no_spread_that_is_known() -> None:
    assert not math.isfinite(counted("std", pa.array([1e200, -1e200]), pa.array([1e200])))


def test_spread_does_not_cancel() -> None:
    values = np.random.default_rng(0).normal(1e9, 1.0, 10_000)
    parts = [pa.array(part) for part in np.array_split(values, 7)]
    assert counted("std", *parts) == pytest.approx(values.std(ddof=1), rel=1e-9)
    assert counted("std", *parts, ddof=0) == pytest.approx(values.std(), rel=1e-9)


def test_workers_count_and_their_errors_name_verb_and_column() -> None:
    days = [day(1 + number % 28) for number in range(4000)]
    table = pa.table({"n": range(4000), "day": days, "s": list(map(str, days))})
    data = hr.from_arrow(table).with_options(engine="local", shard_rows=500, workers=2, progress=False)
    assert data.sum("n") == sum(range(4000))
    assert data.min() == {"min(n)": 0, "min(day)": day(1), "min(s)": "2020-01-01"}
    assert data.limit(10).max(["n", "day"]) == {"max(n)": 9, "max(day)": day(10)}
    with pytest.raises(
        ArgumentError, match=r"^mean\('s'\): there is no such number for a column of type string"
    ):
        data.mean("s")


def test_metrics_before_it_are_not_counted() -> None:
    data = hr.range(4).accumulate(rows=hr.Count(), odd=hr.Mean("id"))
    assert data.sum("id") == 6 and data.mean() == 1.5
