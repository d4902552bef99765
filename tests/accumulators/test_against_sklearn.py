"""The numbers are those of scikit-learn and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from later import Later

sk = Later("sklearn.metrics")

N = 3000
rng = np.random.default_rng(7)
y = rng.integers(0, 2, N)
p = np.clip(np.round(y * 0.2 + rng.random(N) * 0.8, 2), 0, 1)  # with many ties
w = rng.random(N) * (rng.random(N) < 0.9)  # some weigh nothing
c = rng.integers(0, 4, N)
d = np.where(rng.random(N) < 0.7, c, rng.integers(0, 4, N))
x = rng.normal(1e6, 1, N)
z = x + rng.normal(size=N)
g = rng.integers(0, 80, N)
DATA = {"y": y, "p": p, "w": w, "c": c, "d": d, "x": x, "z": z, "g": g}
BATCH = pa.record_batch({name: pa.array(values) for name, values in DATA.items()})


def result(metric: Any) -> Any:
    """What comes of counting in parts and merging them."""
    total = metric.empty()
    for at in range(0, N, 500):
        part = metric.empty()
        part.update(BATCH.slice(at, 250))
        part.update(BATCH.slice(at + 250, 250))
        total.merge(part.from_bytes(part.to_bytes()))
    return total.result()


def near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-11, abs=1e-14)


@pytest.mark.parametrize("weight", [None, "w"])
def test_one_number(weight: str | None) -> None:
    by = {"sample_weight": w if weight else None}
    more: dict[str, Any] = {"weight": weight}
    assert result(hr.AUROC("y", "p", **more)) == near(sk.roc_auc_score(y, p, **by))
    assert result(hr.AveragePrecision("y", "p", **more)) == near(sk.average_precision_score(y, p, **by))
    assert result(hr.LogLoss("y", "p", **more)) == near(sk.log_loss(y, p, **by))
    assert result(hr.BrierScore("y", "p", **more)) == near(sk.brier_score_loss(y, p, **by))
    assert result(hr.Accuracy("c", "d", **more)) == near(sk.accuracy_score(c, d, **by))
    assert result(hr.MSE("x", "z", **more)) == near(sk.mean_squared_error(x, z, **by))
    assert result(hr.MAE("x", "z", **more)) == near(sk.mean_absolute_error(x, z, **by))
    assert result(hr.R2("x", "z", **more)) == pytest.approx(sk.r2_score(x, z, **by), rel=1e-9)
    mean = np.average(x, weights=w if weight else None)
    assert result(hr.Mean("x", **more)) == near(mean)
    assert result(hr.Variance("x", **more)) == near(
        np.average((x - mean) ** 2, weights=w if weight else None)
    )


@pytest.mark.parametrize("weight", [None, "w"])
def test_classes(weight: str | None) -> None:
    by = {"sample_weight": w if weight else None}
    matrix = result(hr.ConfusionMatrix("c", "d", weight=weight))["matrix"]
    assert np.allclose(matrix, sk.confusion_matrix(c, d, **by), rtol=1e-12)
    for average in ("macro", "micro", "weighted"):
        expected = sk.precision_recall_fscore_support(c, d, average=average, **by)[:3]
        found = result(hr.PrecisionRecallF1("c", "d", average=average, weight=weight))  # type: ignore[arg-type]
        assert list(found.values()) == near(list(expected))
    expected = sk.precision_recall_fscore_support(y, p >= 0.5, average="binary", **by)[:3]
    assert list(result(hr.PrecisionRecallF1("y", "p", threshold=0.5, weight=weight)).values()) == near(
        expected
    )


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("weighting", [None, "linear", "quadratic"])
def test_kappa(weighting: Any, weight: str | None) -> None:
    by = {"weights": weighting, "sample_weight": w if weight else None}
    assert result(hr.CohenKappa("c", "d", weighting=weighting, weight=weight)) == near(
        sk.cohen_kappa_score(c, d, **by)
    )
    turned = [2, 0, 3, 1, 9]
    assert result(hr.CohenKappa("c", "d", weighting=weighting, weight=weight, classes=turned)) == near(
        sk.cohen_kappa_score(c, d, labels=turned, **by)
    )


def test_probabilities_of_several_classes() -> None:
    shares = rng.random((N, 4)).astype(np.float32)
    shares /= shares.sum(axis=1, keepdims=True)
    column = pa.FixedSizeListArray.from_arrays(pa.array(shares.ravel()), 4)
    batch = pa.record_batch({"c": pa.array(c), "p": column})
    loss, accuracy = hr.LogLoss("c", "p"), hr.Accuracy("c", "p")
    for metric in (loss, accuracy):
        metric.update(batch)
    assert loss.result() == pytest.approx(sk.log_loss(c, shares), rel=1e-6)
    assert accuracy.result() == sk.accuracy_score(c, shares.argmax(axis=1))


def test_groups() -> None:
    by_group = result(hr.By("g", hr.Mean("x")))
    assert by_group == {each: near(x[g == each].mean()) for each in np.unique(g).tolist()}


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("how", [{"bins": 20}, {"limit": 30}, {"bins": 5, "range": (0.3, 0.6)}])
def test_bounds_hold(how: dict[str, Any], weight: str | None) -> None:
    for kind in (hr.AUROC, hr.AveragePrecision):
        exact, rough = (result(kind("y", "p", weight=weight, **each)) for each in ({}, how))
        assert rough.low <= exact <= rough.high
        assert rough.low <= rough <= rough.high
    assert type(exact) is float


def test_what_a_column_is_like() -> None:
    counts = np.histogram(p, [0, 0.3, 0.6, 1])[0].tolist()
    assert result(hr.Histogram("p", [0, 0.3, 0.6, 1])) == {
        "edges": [0, 0.3, 0.6, 1],
        "counts": counts,
        "below": 0,
        "above": 0,
    }
    values = x - 1e6
    batch = pa.record_batch({"v": pa.array(values)})
    found = hr.Quantiles("v", [0, 0.1, 0.5, 0.9, 1], relative_error=0.02)
    found.update(batch)
    expected = np.quantile(values, [0, 0.1, 0.5, 0.9, 1], method="inverted_cdf")
    assert np.allclose(list(found.result().values()), expected, rtol=0.0201)  # type: ignore[union-attr]
    assert result(hr.DistinctCount("x")) == len(np.unique(x))
    rough = result(hr.DistinctCount("x", limit=10))
    assert rough.low <= len(np.unique(x)) <= rough.high
    assert result(hr.MinMax("x")) == {"min": x.min(), "max": x.max()}
    assert [row["x"] for row in result(hr.TopK("x", 3))] == sorted(x)[::-1][:3]
