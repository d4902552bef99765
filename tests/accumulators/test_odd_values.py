"""Null, NaN, one class, no rows, and what is no label, score or weight."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ArgumentError, BadInput


def counted(metric: Any, **columns: Any) -> Any:
    new = metric.empty()
    new.update(pa.record_batch({name: pa.array(values) for name, values in columns.items()}))
    return new


@pytest.mark.parametrize("hole", [None, math.nan])
def test_null_and_nan(hole: Any) -> None:
    rows = {"y": [0, 1, 1], "p": [0.1, hole, 0.9]}
    what = "null" if hole is None else "NaN"
    with pytest.raises(BadInput, match=f"column 'p' holds 1 {what}.*nan='count'"):
        counted(hr.AUROC("y", "p"), **rows)
    found = counted(hr.AUROC("y", "p", nan="count"), **rows)
    assert found.result() == 1.0
    assert found.note() == "1 row with null or NaN left out"
    assert counted(hr.Count("p"), **rows).result() == 2
    assert counted(hr.Nulls("p"), **rows).result() == 1 / 3


def test_a_null_label_keeps_large_integers_exact() -> None:
    found = counted(hr.Sum("n", nan="count"), n=[2**62 + 1, None, 2**62 + 1])
    assert found.result() == 2**63 + 2


@pytest.mark.parametrize("kind", [hr.AUROC, hr.AveragePrecision])
def test_one_class(kind: Any) -> None:
    found = counted(kind("y", "p"), y=[1, 1], p=[0.1, 0.2])
    assert found.result() is None
    assert found.note() == "all rows are positive: there is nothing to rank"
    assert counted(kind("y", "p"), y=[False], p=[1.0]).note().startswith("all rows are negative")


@pytest.mark.parametrize(
    "metric",
    [
        hr.Mean("x"),
        hr.Nulls("x"),
        hr.Variance("x"),
        hr.AUROC("y", "p"),
        hr.Accuracy("y", "p"),
        hr.LogLoss("y", "p"),
    ],
)
def test_no_rows(metric: Any) -> None:
    assert metric.result() is None
    assert "rows" in metric.note()
    assert hr.MinMax("x").result() == {"min": None, "max": None}
    assert hr.Sum("x").result() == hr.Count().result() == 0


def test_labels() -> None:
    for labels in ([True, False], [1, 0], [1.0, 0.0]):
        assert counted(hr.AUROC("y", "p"), y=labels, p=[0.9, 0.1]).result() == 1.0
    assert counted(hr.AUROC("y", "p", positive="cat"), y=["cat", "dog"], p=[0.9, 0.1]).result() == 1.0
    for labels in ([1, 2], ["a", "b"], [0.5, 1.0]):
        with pytest.raises(BadInput, match=r"not 0 and 1.*positive="):
            counted(hr.AUROC("y", "p"), y=labels, p=[0.9, 0.1])
    assert counted(hr.Accuracy("y", "p"), y=[True, False], p=[1, 1]).result() == 0.5
    assert counted(hr.Accuracy("y", "p"), y=["a", "b"], p=["a", "a"]).result() == 0.5


def test_scores() -> None:
    with pytest.raises(BadInput, match=r"below 0 or above 1.*sigmoid"):
        counted(hr.LogLoss("y", "p"), y=[0, 1], p=[0.5, 1.5])
    assert counted(hr.LogLoss("y", "p"), y=[0, 1], p=[1.0, 0.0]).result() == pytest.approx(36.04, abs=0.01)
    with pytest.raises(BadInput, match="holds no numbers"):
        counted(hr.AUROC("y", "p"), y=[0, 1], p=["a", "b"])
    assert counted(hr.AUROC("y", "p"), y=[0, 1], p=[-math.inf, math.inf]).result() == 1.0


def test_weights() -> None:
    for weights in ([1.0, -1.0], [1.0, math.inf]):
        with pytest.raises(BadInput, match="finite and not negative"):
            counted(hr.Mean("x", weight="w"), x=[1.0, 2.0], w=weights)
    assert counted(hr.Mean("x", weight="w"), x=[1.0, 2.0], w=[0.0, 0.0]).result() is None
    assert counted(hr.Mean("x", weight="w"), x=[math.inf, 2.0], w=[0.0, 1.0]).result() == 2.0


def test_infinity() -> None:
    assert counted(hr.Mean("x"), x=[math.inf, 1.0]).result() == math.inf
    assert math.isnan(counted(hr.Sum("x"), x=[math.inf, -math.inf]).result())
    found = counted(hr.Variance("x"), x=[math.inf, 1.0])
    assert found.result() is None and "infinity" in found.note()
    assert counted(hr.Quantiles("x", [0, 1]), x=[-math.inf, math.inf]).result() == {0: -math.inf, 1: math.inf}


def test_what_cancels() -> None:
    assert counted(hr.Sum("x"), x=[1e100, 1.0, -1e100]).result() == 1.0
    assert counted(hr.Variance("x"), x=[1e9 + i for i in (4, 7, 13, 16)]).result() == 22.5


def test_too_many_classes_and_groups() -> None:
    with pytest.raises(BadInput, match="threshold="):
        counted(hr.ConfusionMatrix("y", "p"), y=[0] * 20_000, p=list(range(20_000)))
    with pytest.raises(BadInput, match="more than 2 values"):
        counted(hr.By("g", hr.Count(), most=2), g=[1, 2, 3])
    by = counted(hr.By("g", hr.AUROC("y", "p")), g=["a", None, "a"], y=[0, 1, 1], p=[0.1, 0.2, 0.3])
    assert by.result() == {"a": 1.0, None: None}
    assert by.note() == "None: all rows are positive: there is nothing to rank"


@pytest.mark.parametrize(
    "make",
    [
        lambda: hr.Mean(3),  # type: ignore[arg-type]
        lambda: hr.Mean("x", nan="drop"),  # type: ignore[arg-type]
        lambda: hr.Variance("x", ddof=-1),
        lambda: hr.AUROC("y", "p", bins=0),
        lambda: hr.AUROC("y", "p", range=(1, 0)),
        lambda: hr.Histogram("x", [1]),
        lambda: hr.Quantiles("x", 2),
        lambda: hr.Quantiles("x", relative_error=0.9),
        lambda: hr.TopK("x", 0),
        lambda: hr.Calibration("y", "p", bins=0),
        lambda: hr.PrecisionRecallF1("y", "p", average="makro"),  # type: ignore[arg-type]
        lambda: hr.Accuracy("y", "p", threshold="x"),  # type: ignore[arg-type]
        lambda: hr.CohenKappa("y", "p", weighting="square"),  # type: ignore[arg-type]
        lambda: hr.ExactMatch("y", "p", normalize="sqad"),  # type: ignore[arg-type]
        lambda: hr.JSONFields("y", "p", fields=[]),
        lambda: hr.DistinctCount("x", limit=-1),
        lambda: hr.By("x", hr.Mean),  # type: ignore[arg-type]
        lambda: hr.TorchMetric(len, inputs=["x"]),
    ],
)
def test_settings_that_make_no_sense(make: Any) -> None:
    with pytest.raises(ArgumentError):
        make()


@pytest.mark.parametrize("type_", [pa.string_view(), pa.binary_view(), pa.large_string(), pa.large_binary()])
def test_texts_and_bytes_of_every_layout_are_counted(type_: pa.DataType) -> None:
    table = pa.table({"x": pa.array(["a", None, "b", "a"]).cast(type_)})
    metrics = (
        hr.from_arrow(table).with_options(engine="inline", progress=False).evaluate(d=hr.DistinctCount("x"))
    )
    assert metrics["d"] == 2


def test_groups_of_arrays_are_refused_by_the_column() -> None:
    table = pa.table({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))})
    with pytest.raises(BadInput, match="column 'x' has an array in each row"):
        hr.from_arrow(table).with_options(engine="inline", progress=False).evaluate(n=hr.By("x", hr.Count()))
