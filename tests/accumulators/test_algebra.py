"""Every metric is a commutative monoid, to the byte: any cut of the rows, any order of merging, any trip as bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.accumulators.exact import ExactSum, fixed, fixed_by

METRICS: list[Any] = [
    mr.Count(),
    mr.Count("x"),
    mr.Sum("x"),
    mr.Sum("c"),
    mr.Sum("x", weight="w"),
    mr.Mean("x", nan="count"),
    mr.Mean("x", weight="w"),
    mr.Variance("x", ddof=1),
    mr.Variance("x", weight="w"),
    mr.MinMax("x"),
    mr.Histogram("x", edges=[-1, 0, 1, 100]),
    mr.Histogram("x", edges=[-1, 0, 1, 100], weight="w"),
    mr.Quantiles("x"),
    mr.Quantiles("x", weight="w"),
    mr.DistinctCount("x"),
    mr.DistinctCount("x", limit=5),
    mr.DistinctCount("g"),
    mr.TopK("x", k=3, keep=["g"]),
    mr.TopK("x", k=3, keep=["g"], smallest=True),
    mr.Accuracy("c", "d"),
    mr.Accuracy("c", "d", weight="w"),
    mr.ConfusionMatrix("c", "d"),
    mr.ConfusionMatrix("g", "g", weight="w"),
    mr.PrecisionRecallF1("c", "d", average="none"),
    mr.AUROC("y", "p"),
    mr.AUROC("y", "p", weight="w"),
    mr.AUROC("y", "p", limit=4),
    mr.AUROC("y", "p", limit=4, weight="w"),
    mr.AUROC("y", "p", bins=7),
    mr.AveragePrecision("y", "p", bins=7, weight="w"),
    mr.AveragePrecision("y", "p"),
    mr.LogLoss("y", "p"),
    mr.LogLoss("y", "p", weight="w"),
    mr.BrierScore("y", "p"),
    mr.Calibration("y", "p", bins=4),
    mr.Calibration("y", "p", bins=4, weight="w"),
    mr.MSE("x", "z"),
    mr.MAE("x", "z", weight="w"),
    mr.R2("x", "z"),
    mr.R2("x", "z", weight="w"),
    mr.NDCG("g", "c", "p", k=2),
    mr.RecallAtK("g", "y", "p", k=2),
    mr.By("g", mr.Mean("x")),
    mr.By("y", mr.AUROC("y", "p", limit=3)),
]

plain = st.floats(-1e9, 1e9)
wild = st.floats(allow_nan=False, allow_infinity=False)
shares = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1)
rows = st.fixed_dictionaries(
    {
        "x": plain,
        "z": plain,
        "w": st.sampled_from([0.0, 1.0, 0.1]) | st.floats(0, 1e6),
        "p": shares,
        "y": st.booleans(),
        "c": st.integers(0, 3),
        "d": st.integers(0, 3),
        "g": st.sampled_from(["a", "b", "ç"]),
    }
)
SCHEMA = pa.schema(
    [
        ("x", pa.float64()),
        ("z", pa.float64()),
        ("w", pa.float64()),
        ("p", pa.float64()),
        ("y", pa.bool_()),
        ("c", pa.int64()),
        ("d", pa.int64()),
        ("g", pa.string()),
    ]
)


def of(metric: Any, parts: list[dict[str, Any]], size: int = 1000) -> Any:
    """The metric after these rows, in batches of ``size``."""
    new = metric.empty()
    for at in range(0, len(parts), size):
        new.update(pa.RecordBatch.from_pylist(parts[at : at + size], schema=SCHEMA))
    return new


def merged(*parts: Any) -> Any:
    """What comes of merging, without touching the parts."""
    total = parts[0].empty()
    for part in parts:
        total.merge(part.from_bytes(part.to_bytes()))
    return total


def same(a: Any, b: Any) -> bool:
    return a.to_bytes() == b.to_bytes() and repr(a.result()) == repr(b.result()) and a.note() == b.note()


@pytest.mark.parametrize("metric", METRICS, ids=repr)
@settings(max_examples=15, deadline=None)
@given(data=st.tuples(st.lists(rows, max_size=12), st.lists(rows, max_size=12), st.lists(rows, max_size=12)))
def test_merging(metric: Any, data: tuple[list[Any], list[Any], list[Any]]) -> None:
    a, b, c = (of(metric, part) for part in data)
    whole = of(metric, [*data[0], *data[1], *data[2]])
    assert same(merged(merged(a, b), c), whole)
    assert same(merged(a, merged(b, c)), whole)
    assert same(merged(c, a, b), whole)
    assert same(merged(a, metric.empty()), a)
    assert same(merged(metric.empty(), a), a)
    assert same(a.from_bytes(a.to_bytes()), a)
    assert same(of(metric, [*data[2], *data[1], *data[0]][::-1], size=3), whole)
    assert metric.empty().to_bytes() == metric.to_bytes(), "the metric itself is as it was"


@settings(max_examples=200, deadline=None)
@given(st.lists(wild, max_size=50))
def test_sums_are_exact(values: list[float]) -> None:
    total = ExactSum()
    total.add(np.array(values, np.float64))
    try:
        expected = math.fsum(values)
    except OverflowError:
        return  # somewhere on the way, which is not the end
    assert total.value() == expected


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, allow_nan=False, allow_infinity=False)), max_size=50)
)
def test_sums_by_key_are_exact(pairs: list[tuple[int, float]]) -> None:
    keys = np.array([key for key, _ in pairs], np.int64)
    values = np.array([value for _, value in pairs], np.float64)
    assert fixed_by(keys, values, 5) == [fixed(values[keys == key]) for key in range(5)]


def test_sums_of_many_values_of_all_sizes() -> None:
    rng = np.random.default_rng(0)
    values = np.ldexp(rng.normal(size=200_000), rng.integers(-1000, 900, 200_000))
    assert fixed(values) == fixed(values[::-1].copy()) == fixed(values[:777]) + fixed(values[777:])
    assert fixed(np.array([2.0**1023, 2.0**-1074])) == (1 << 2097) + 1


def test_a_state_of_another_metric_is_refused() -> None:
    with pytest.raises(mr.errors.ArgumentError, match="the state of Mean, not of Sum"):
        mr.Sum("x").from_bytes(mr.Mean("x").to_bytes())
