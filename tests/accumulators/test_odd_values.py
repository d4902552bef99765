"""Null, NaN, one class, no rows, and what is no label, score or weight."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.errors import ArgumentError, BadInput


def counted(metric: Any, **columns: Any) -> Any:
    new = metric.empty()
    new.update(pa.record_batch({name: pa.array(values) for name, values in columns.items()}))
    return new


@pytest.mark.parametrize("hole", [None, math.nan])
def test_null_and_nan(hole: Any) -> None:
    rows = {"y": [0, 1, 1], "p": [0.1, hole, 0.9]}
    what = "null" if hole is None else "NaN"
    with pytest.raises(BadInput, match=f"column 'p' holds 1 {what}.*nan='count'"):
        counted(mr.AUROC("y", "p"), **rows)
    found = counted(mr.AUROC("y", "p", nan="count"), **rows)
    assert found.result() == 1.0
    assert found.note() == "1 row with null or NaN left out"
    assert counted(mr.Count("p"), **rows).result() == 2


def test_a_null_label_keeps_large_integers_exact() -> None:
    found = counted(mr.Sum("n", nan="count"), n=[2**62 + 1, None, 2**62 + 1])
    assert found.result() == 2**63 + 2


@pytest.mark.parametrize("kind", [mr.AUROC, mr.AveragePrecision])
def test_one_class(kind: Any) -> None:
    found = counted(kind("y", "p"), y=[1, 1], p=[0.1, 0.2])
    assert found.result() is None
    assert found.note() == "all rows are positive: there is nothing to rank"
    assert counted(kind("y", "p"), y=[False], p=[1.0]).note().startswith("all rows are negative")


@pytest.mark.parametrize(
    "metric",
    [mr.Mean("x"), mr.Variance("x"), mr.AUROC("y", "p"), mr.Accuracy("y", "p"), mr.LogLoss("y", "p")],
)
def test_no_rows(metric: Any) -> None:
    assert metric.result() is None
    assert "rows" in metric.note()
    assert mr.MinMax("x").result() == {"min": None, "max": None}
    assert mr.Sum("x").result() == mr.Count().result() == 0


def test_labels() -> None:
    for labels in ([True, False], [1, 0], [1.0, 0.0]):
        assert counted(mr.AUROC("y", "p"), y=labels, p=[0.9, 0.1]).result() == 1.0
    assert counted(mr.AUROC("y", "p", positive="cat"), y=["cat", "dog"], p=[0.9, 0.1]).result() == 1.0
    for labels in ([1, 2], ["a", "b"], [0.5, 1.0]):
        with pytest.raises(BadInput, match=r"not 0 and 1.*positive="):
            counted(mr.AUROC("y", "p"), y=labels, p=[0.9, 0.1])
    assert counted(mr.Accuracy("y", "p"), y=[True, False], p=[1, 1]).result() == 0.5
    assert counted(mr.Accuracy("y", "p"), y=["a", "b"], p=["a", "a"]).result() == 0.5


def test_scores() -> None:
    with pytest.raises(BadInput, match=r"below 0 or above 1.*sigmoid"):
        counted(mr.LogLoss("y", "p"), y=[0, 1], p=[0.5, 1.5])
    assert counted(mr.LogLoss("y", "p"), y=[0, 1], p=[1.0, 0.0]).result() == pytest.approx(36.04, abs=0.01)
    with pytest.raises(BadInput, match="holds no numbers"):
        counted(mr.AUROC("y", "p"), y=[0, 1], p=["a", "b"])
    assert counted(mr.AUROC("y", "p"), y=[0, 1], p=[-math.inf, math.inf]).result() == 1.0


def test_weights() -> None:
    for weights in ([1.0, -1.0], [1.0, math.inf]):
        with pytest.raises(BadInput, match="finite and not negative"):
            counted(mr.Mean("x", weight="w"), x=[1.0, 2.0], w=weights)
    assert counted(mr.Mean("x", weight="w"), x=[1.0, 2.0], w=[0.0, 0.0]).result() is None
    assert counted(mr.Mean("x", weight="w"), x=[math.inf, 2.0], w=[0.0, 1.0]).result() == 2.0


def test_infinity() -> None:
    assert counted(mr.Mean("x"), x=[math.inf, 1.0]).result() == math.inf
    assert math.isnan(counted(mr.Sum("x"), x=[math.inf, -math.inf]).result())
    found = counted(mr.Variance("x"), x=[math.inf, 1.0])
    assert found.result() is None and "infinity" in found.note()
    assert counted(mr.Quantiles("x", [0, 1]), x=[-math.inf, math.inf]).result() == {0: -math.inf, 1: math.inf}


def test_what_cancels() -> None:
    assert counted(mr.Sum("x"), x=[1e100, 1.0, -1e100]).result() == 1.0
    assert counted(mr.Variance("x"), x=[1e9 + i for i in (4, 7, 13, 16)]).result() == 22.5


def test_too_many_classes_and_groups() -> None:
    with pytest.raises(BadInput, match="threshold="):
        counted(mr.ConfusionMatrix("y", "p"), y=[0] * 20_000, p=list(range(20_000)))
    with pytest.raises(BadInput, match="more than 2 values"):
        counted(mr.By("g", mr.Count(), most=2), g=[1, 2, 3])
    by = counted(mr.By("g", mr.AUROC("y", "p")), g=["a", None, "a"], y=[0, 1, 1], p=[0.1, 0.2, 0.3])
    assert by.result() == {"a": 1.0, None: None}
    assert by.note() == "None: all rows are positive: there is nothing to rank"


@pytest.mark.parametrize(
    "make",
    [
        lambda: mr.Mean(3),  # type: ignore[arg-type]
        lambda: mr.Mean("x", nan="drop"),  # type: ignore[arg-type]
        lambda: mr.Variance("x", ddof=-1),
        lambda: mr.AUROC("y", "p", bins=0),
        lambda: mr.AUROC("y", "p", range=(1, 0)),
        lambda: mr.Histogram("x", [1]),
        lambda: mr.Quantiles("x", 2),
        lambda: mr.Quantiles("x", relative_error=0.9),
        lambda: mr.TopK("x", 0),
        lambda: mr.Calibration("y", "p", bins=0),
        lambda: mr.PrecisionRecallF1("y", "p", average="makro"),  # type: ignore[arg-type]
        lambda: mr.Accuracy("y", "p", threshold="x"),  # type: ignore[arg-type]
        lambda: mr.NDCG("g", "y", "p", k=0),
        lambda: mr.DistinctCount("x", limit=-1),
        lambda: mr.By("x", mr.Mean),  # type: ignore[arg-type]
        lambda: mr.TorchMetric(len, inputs=["x"]),
    ],
)
def test_settings_that_make_no_sense(make: Any) -> None:
    with pytest.raises(ArgumentError):
        make()
