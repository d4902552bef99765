"""Every metric is a commutative monoid, to the byte: any cut of the rows, any order of merging, any trip as bytes."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.accumulators.exact import ExactSum, ExactSums, fixed, fixed_by

METRICS: list[Any] = [
    hr.Count(),
    hr.Count("x"),
    hr.Nulls("x"),
    hr.By("g", hr.Nulls("x")),
    hr.Sum("x"),
    hr.Sum("c"),
    hr.Sum("x", weight="w"),
    hr.Mean("x", nan="count"),
    hr.Mean("x", weight="w"),
    hr.Variance("x", ddof=1),
    hr.Variance("x", weight="w"),
    hr.MinMax("x"),
    hr.Histogram("x", edges=[-1, 0, 1, 100]),
    hr.Histogram("x", edges=[-1, 0, 1, 100], weight="w"),
    hr.Quantiles("x"),
    hr.Quantiles("x", weight="w"),
    hr.Differences("c", "d", classes=2),
    hr.Differences("g", "x"),
    hr.DistinctCount("x"),
    hr.DistinctCount("x", limit=5),
    hr.DistinctCount("g"),
    hr.TopK("x", k=3, keep=["g"]),
    hr.TopK("x", k=3, keep=["g"], smallest=True),
    hr.Accuracy("c", "d"),
    hr.Accuracy("c", "d", weight="w"),
    hr.ConfusionMatrix("c", "d"),
    hr.ConfusionMatrix("g", "g", weight="w"),
    hr.PrecisionRecallF1("c", "d", average="none"),
    hr.CohenKappa("c", "d"),
    hr.CohenKappa("c", "d", weighting="quadratic", weight="w"),
    hr.CohenKappa("c", "d", weighting="linear", classes=[3, 2, 1, 0]),
    hr.ExactMatch("g", "s"),
    hr.ExactMatch("g", "s", normalize=None, weight="w"),
    hr.TokenF1("g", "s"),
    hr.JSONFields("j", "s"),
    hr.JSONFields("j", "j", fields=["b", "z"]),
    hr.AUROC("y", "p"),
    hr.AUROC("y", "p", weight="w"),
    hr.AUROC("y", "p", limit=4),
    hr.AUROC("y", "p", limit=4, weight="w"),
    hr.AUROC("y", "p", bins=7),
    hr.AveragePrecision("y", "p", bins=7, weight="w"),
    hr.AveragePrecision("y", "p"),
    hr.LogLoss("y", "p"),
    hr.LogLoss("y", "p", weight="w"),
    hr.BrierScore("y", "p"),
    hr.Calibration("y", "p", bins=4),
    hr.Calibration("y", "p", bins=4, weight="w"),
    hr.MSE("x", "z"),
    hr.MAE("x", "z", weight="w"),
    hr.R2("x", "z"),
    hr.R2("x", "z", weight="w"),
    hr.By("g", hr.Mean("x")),
    hr.By("g", hr.Mean("x", weight="w")),
    hr.By("c", hr.Count("x")),
    hr.By("c", hr.TokenF1("g", "s")),
    hr.By("d", hr.JSONFields("j", "s")),
    hr.By("x", hr.Sum("c")),
    hr.By("g", hr.Sum("z", weight="w")),
    hr.By("y", hr.MinMax("x")),
    hr.By("d", hr.LogLoss("y", "p")),
    hr.By("y", hr.AUROC("y", "p", limit=3)),
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
        "s": st.sampled_from(["b ç b", "The B.", "", '{"b": 1}', '{"b": null, "z": [1]}']),
        "j": st.sampled_from(['{"b": 1}', '{"b": 2, "z": [1]}', "{}"]),
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
        ("s", pa.string()),
        ("j", pa.string()),
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


@settings(max_examples=few(4), deadline=None)
@given(st.lists(rows, max_size=12), st.lists(rows, max_size=12), st.lists(rows, max_size=12))
def test_merging(first: list[Any], second: list[Any], third: list[Any]) -> None:
    for metric in METRICS:
        a, b, c = (of(metric, part) for part in (first, second, third))
        whole = of(metric, [*first, *second, *third])
        assert same(merged(merged(a, b), c), whole), metric
        assert same(merged(a, merged(b, c)), whole), metric
        assert same(merged(c, a, b), whole), metric
        assert same(merged(a, metric.empty()), a), metric
        assert same(merged(metric.empty(), a), a), metric
        assert same(a.from_bytes(a.to_bytes()), a), metric
        assert same(of(metric, [*third, *second, *first][::-1], size=3), whole), metric
        assert metric.empty().to_bytes() == metric.to_bytes(), "the metric itself is as it was"


@settings(max_examples=few(24), deadline=None)
@given(st.lists(wild, max_size=50))
def test_sums_are_exact(values: list[float]) -> None:
    total = ExactSum()
    total.add(np.array(values, np.float64))
    try:
        expected = math.fsum(values)
    except OverflowError:
        return  # somewhere on the way, which is not the end
    assert total.value() == expected


@settings(max_examples=few(16), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), wild), max_size=50))
def test_sums_by_key_are_exact(pairs: list[tuple[int, float]]) -> None:
    keys = np.array([key for key, _ in pairs], np.int64)
    values = np.array([value for _, value in pairs], np.float64)
    assert fixed_by(keys, values, 5) == [fixed(values[keys == key]) for key in range(5)]


ODD = {
    "f": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.inf]) | st.none()),
    "h": (pa.float32(), st.floats(width=32) | st.none()),
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.none()),
    "u": (pa.uint64(), st.integers(0, 2**64 - 1) | st.none()),
    "b": (pa.bool_(), st.booleans() | st.none()),
}
KEYS = {
    **ODD,
    "s": (pa.string(), st.sampled_from(["a", "", "ç"]) | st.none()),
    "t": (pa.timestamp("us"), st.datetimes() | st.none()),
    "c": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b"]) | st.none()),
    "n": (pa.null(), st.none()),
    "l": (pa.struct([("v", pa.int8())]), st.fixed_dictionaries({"v": st.integers(0, 1)})),
}


class Alone:
    """A metric that ``By`` knows nothing of."""

    def __init__(self, metric: Any) -> None:
        self.metric, self.columns = metric, metric.columns

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["metric"], name)

    def empty(self) -> Alone:
        return Alone(self.metric.empty())

    def merge(self, other: Alone) -> None:
        self.metric.merge(other.metric)

    def from_bytes(self, data: bytes) -> Alone:
        return Alone(self.metric.from_bytes(data))


ALONE: list[Any] = [
    lambda x: hr.Count(),
    hr.Count,
    lambda x: hr.Sum(x, nan="count"),
    lambda x: hr.Mean(x, nan="count"),
    lambda x: hr.MinMax(x, nan="count"),
]


@settings(max_examples=few(80), deadline=None)
@given(st.data(), st.sampled_from(ALONE), st.sampled_from(sorted(ODD)))
def test_groups_in_arrays_count_what_one_metric_for_each_does(data: Any, metric: Any, value: str) -> None:
    key = data.draw(st.sampled_from(sorted(KEYS)))
    pairs = data.draw(st.lists(st.tuples(KEYS[key][1], ODD[value][1]), max_size=12))
    cut = data.draw(st.integers(0, len(pairs)))
    arrays, alone = hr.By("k", metric("x")), hr.By("k", Alone(metric("x")))
    for by in (arrays, alone):
        for part in (pairs[:cut], pairs[cut:]):
            one = by.empty()
            columns = [
                pa.array([row[at] for row in part], type_)
                for at, type_ in enumerate((KEYS[key][0], ODD[value][0]))
            ]
            one.update(pa.record_batch(columns, ["k", "x"]))
            by.merge(by.from_bytes(one.to_bytes()))
    assert repr(arrays.result()) == repr(alone.result())
    assert arrays.note() == alone.note()
    assert type(arrays.to_bytes()) is bytes
    old = arrays.from_bytes(alone.to_bytes())  # as states were, before there were arrays
    old.merge(arrays)
    twice = alone.from_bytes(alone.to_bytes())
    twice.merge(alone)
    assert repr(old.result()) == repr(twice.result())


@settings(max_examples=few(24), deadline=None)
@given(data=st.data())
def test_integers_are_groups_however_far_apart_they_lie(data: Any) -> None:
    kind = data.draw(st.sampled_from([pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64()]))
    bits, least = kind.bit_width, 0 if "u" in str(kind) else -(2 ** (kind.bit_width - 1))
    start = data.draw(st.integers(least, least + 2**bits - 1))
    near = st.integers(max(least, start - 99), min(least + 2**bits - 1, start + 99))
    keys = st.one_of(near, near, near, st.integers(least, least + 2**bits - 1), st.none())
    by, expected = hr.By("k", hr.Count()), Counter[int | None]()
    for batch in data.draw(st.lists(st.lists(keys, max_size=9), max_size=5)):
        by.update(pa.record_batch([pa.array(batch, kind)], ["k"]))
        expected.update(batch)
    assert by.result() == expected
    assert by.from_bytes(by.to_bytes()).result() == expected


@pytest.mark.parametrize("step", [1, 1_000_003, 2**17 - 1, -(2**40)])
def test_integers_of_one_hash_are_different_groups(step: int) -> None:
    keys = np.random.default_rng(0).integers(-40, 5000, 100_000) * step
    by = hr.By("k", hr.Count())
    for at in range(0, len(keys), 30_000):
        by.update(pa.record_batch({"k": keys[at : at + 30_000]}))
    assert by.result() == dict(zip(*map(np.ndarray.tolist, np.unique(keys, return_counts=True)), strict=True))


def test_a_sum_of_many_chunks_is_carried() -> None:
    values = np.full(600, float(2**52 - 1))
    sums = ExactSums()
    for at in range(len(values)):
        sums.add(np.zeros(1, np.int64), values[at : at + 1], np.array([3]))
    assert sums.totals(4) == [0, 0, 0, fixed(values)]


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100, 5000])
def test_sums_of_groups_of_any_size_are_exact(rows: int) -> None:
    rng = np.random.default_rng(rows)
    for spread in (1, 60, 900):  # as bits of a value that is huge beside the others may be left in no limb
        values = np.ldexp(1 - rng.random(20_000) * 2.0**-20, rng.integers(-spread, spread, 20_000))
        values = np.where(rng.random(20_000) < 0.5, values, -values)
        codes = rng.permutation(np.arange(20_000) // rows)
        by = hr.By("k", hr.Sum("x"), most=20_000)
        for at in range(0, 20_000, 7_000):
            by.update(pa.record_batch({"k": codes[at : at + 7_000], "x": values[at : at + 7_000]}))
        found = by.result()
        assert all(found[key] == math.fsum(values[codes == key]) for key in np.unique(codes)[:50].tolist())


def test_sums_of_many_values_of_all_sizes() -> None:
    rng = np.random.default_rng(0)
    values = np.ldexp(rng.normal(size=200_000), rng.integers(-1000, 900, 200_000))
    assert fixed(values) == fixed(values[::-1].copy()) == fixed(values[:777]) + fixed(values[777:])
    assert fixed(np.array([2.0**1023, 2.0**-1074])) == (1 << 2097) + 1


def test_a_state_of_another_metric_is_refused() -> None:
    with pytest.raises(hr.errors.ArgumentError, match="the state of Mean, not of Sum"):
        hr.Sum("x").from_bytes(hr.Mean("x").to_bytes())
