"""accumulate and evaluate: what counts, where, and what is refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError, BadInput, NotPicklable, PlanError, StepError, UnknownColumn

N = 5000


def score(batch: dict[str, Any]) -> Any:
    return (batch["id"] * 7919 % 1009) / 1009


def fussy(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] % 10 == 3:
        raise ValueError("not this one")
    return {"id": row["id"]}


@pytest.fixture
def data() -> Dataset:
    rows = hr.range(N).predict(score, inputs=["id"], output="score")
    return rows.with_column("label", lambda batch: batch["id"] % 3 == 0).with_options(progress=False)


def auc(ids: Any) -> float:
    from sklearn.metrics import roc_auc_score

    ids = np.asarray(ids)
    return float(roc_auc_score(ids % 3 == 0, score({"id": ids})))


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_rows_that_are_written_count(data: Dataset, tmp_path: Path, engine: str) -> None:
    measured = (
        data.accumulate(auc=hr.AUROC("label", "score"), rows=hr.Count())
        .select_columns(["id"])
        .filter(expr="id >= 1000")
        .map(fussy)
        .with_column("more", lambda batch: batch["id"] * 2)
        .limit(2000)
        .accumulate(most=hr.MinMax("more"))
        .rename_columns({"more": "label"})
    )
    measured = measured.with_options(on_error="reject", engine=engine, workers=2, shard_rows=700)
    result = measured.write_parquet(tmp_path / "out")
    ids = pq.read_table(tmp_path / "out")["id"].to_numpy()
    assert ids.tolist() == [i for i in range(1000, N) if i % 10 != 3][:2000]
    assert result.metrics == {
        "auc": pytest.approx(auc(ids)),
        "rows": 2000,
        "most": {"min": 2 * ids.min(), "max": 2 * ids.max()},
    }
    report = json.loads((tmp_path / "out" / "_SUCCESS").read_text())
    assert report["metrics"] == result.metrics
    assert f"auc:  {result.metrics['auc']:.6g}" in str(result).splitlines()
    assert measured.write_parquet(tmp_path / "out").metrics == result.metrics
    with pytest.warns(UserWarning, match="rows failed"):
        assert measured.evaluate() == result.metrics


def test_every_sink_and_no_sink_give_the_same(data: Dataset, tmp_path: Path) -> None:
    measured = data.accumulate(auc=hr.AUROC("label", "score"), loss=hr.LogLoss("label", "score"))
    found = measured.evaluate()
    assert found["auc"] == pytest.approx(auc(range(N)))
    for verb in ("parquet", "csv", "json"):
        engine = "local" if verb == "csv" else "inline"
        small = measured.with_options(shard_rows=999, workers=2, engine=engine)
        assert getattr(small, f"write_{verb}")(tmp_path / verb).metrics == found


def test_evaluate_adds_to_what_is_accumulated(data: Dataset) -> None:
    found = data.accumulate(a=hr.Count()).filter(expr="id < 10").evaluate(b=hr.Sum("id"))
    assert found == {"a": 10, "b": 45}
    assert found.notes == {}
    assert data.limit(0).evaluate(a=hr.Mean("id"), n=hr.Count()) == {"a": None, "n": 0}
    assert data.filter(expr="id < 0").evaluate(a=hr.AUROC("label", "score")).notes == {"a": "no rows"}


def test_looking_counts_nothing_and_costs_nothing(data: Dataset) -> None:
    class Loud:
        columns = ("id",)

        def empty(self) -> Loud:
            return self

        def update(self, batch: Any) -> None:
            raise AssertionError

        merge = result = to_bytes = from_bytes = update

    measured = data.accumulate(loud=Loud())
    assert measured.count() == len(measured.take_all()) == N
    assert measured.take(1)[0]["id"] == 0
    assert measured.schema().names == ["id", "score", "label"]


def test_evaluate_reads_only_what_somebody_needs(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, 2.0], "y": ["a", "b"], "z": [1, 2]})
    pq.write_table(table, tmp_path / "in.parquet")
    seen: list[list[str]] = []
    source = hr.read_parquet(tmp_path / "in.parquet").with_options(engine="inline")
    read = type(source._plan.source).read

    def spied(self: Any, split: Any, columns: Any, *args: Any) -> Any:
        seen.append(list(columns))
        return read(self, split, columns, *args)

    source._plan.source.read = spied.__get__(source._plan.source)  # type: ignore[method-assign]
    assert source.evaluate(x=hr.Mean("x")) == {"x": 1.5}
    assert seen == [["x"]]


def test_steps_that_may_give_other_rows_are_refused_behind(data: Dataset) -> None:
    measured = data.accumulate(auc=hr.AUROC("label", "score"))
    with pytest.raises(
        PlanError, match=r"map_batches\(.*\) comes after accumulate\(auc\).*Put accumulate after"
    ):
        measured.map_batches(lambda batch: batch)
    with pytest.raises(PlanError, match="flat_map"):
        measured.flat_map(lambda row: [row, row])
    assert data.flat_map(lambda row: [row, row]).evaluate(n=hr.Count()) == {"n": 2 * N}


def test_what_is_no_metric(data: Dataset) -> None:
    for wrong, words in [(hr.AUROC, "it is a class"), (3, "is not a metric"), (len, "is not a metric")]:
        with pytest.raises(ArgumentError, match=words):
            data.accumulate(auc=wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="takes metrics by name"):
        data.evaluate()
    with pytest.raises(ArgumentError, match="counts a metric of this name already"):
        data.accumulate(n=hr.Count()).accumulate(n=hr.Count())
    with pytest.raises(UnknownColumn, match=r"evaluate\(auc\) asks for column 'lable'.*Did you mean 'label'"):
        data.evaluate(auc=hr.AUROC("lable", "score"))
    with pytest.raises(UnknownColumn, match="asks for column 'it'"):
        hr.range(3).evaluate(m=hr.Mean("it"))


def test_a_value_that_does_not_fit_says_where(tmp_path: Path) -> None:
    for number in range(2):
        table = pa.table({"x": [1.0, float("nan") if number else 2.0]})
        pq.write_table(table, tmp_path / f"in-{number}.parquet")
    data = hr.read_parquet(tmp_path / "in-*.parquet").with_options(engine="inline")
    with pytest.raises(
        BadInput, match=r"accumulate\(m\): Mean\(column='x'\): column 'x' holds 1 NaN.*in-1.parquet"
    ):
        data.evaluate(m=hr.Mean("x"))
    found = data.evaluate(m=hr.Mean("x", nan="count"))
    assert (found, found.notes) == ({"m": 4 / 3}, {"m": "1 row with null or NaN left out"})


class Faulty:
    """A metric of one's own that fails at ``at``; a lock is what cannot travel."""

    columns = ("id",)

    def __init__(self, at: str = "", lock: Any = None) -> None:
        self.at, self.lock = at, lock

    def empty(self) -> Faulty:
        return Faulty(self.at, self.lock)

    def update(self, batch: pa.RecordBatch) -> None:
        self._do("update")

    def merge(self, other: Faulty) -> None:
        self._do("merge")

    def result(self) -> Any:
        self._do("result")

    def to_bytes(self) -> bytes:
        self._do("to_bytes")
        return b""

    def from_bytes(self, data: bytes) -> Faulty:
        return self.empty()

    def _do(self, what: str) -> None:
        if what == self.at:
            raise ZeroDivisionError(f"secret in {what}")


@pytest.mark.parametrize("at", ["update", "merge", "result", "to_bytes"])
def test_a_metric_that_fails_is_named(data: Dataset, at: str) -> None:
    with pytest.raises(StepError, match=rf"failed: .*ZeroDivisionError: secret in {at}") as caught:
        data.with_options(engine="inline").evaluate(mine=Faulty(at))
    if at == "update":
        assert "accumulate(mine)" in str(caught.value) and "row" in str(caught.value)
        with pytest.raises(StepError) as caught:
            data.with_options(engine="inline", show_data=False).evaluate(mine=Faulty(at))
        assert "secret" not in str(caught.value)


def test_a_metric_that_cannot_travel_is_named(data: Dataset, tmp_path: Path) -> None:
    measured = data.with_options(engine="local").accumulate(mine=Faulty(lock=threading.Lock()))
    with pytest.raises(
        NotPicklable, match=r"accumulate\(mine\) cannot travel.*the metric 'mine' cannot be pickled"
    ):
        measured.write_parquet(tmp_path / "out")


def test_several_stages_with_other_columns_on_the_way(tmp_path: Path) -> None:
    data = (
        hr.range(N)
        .with_column("y", lambda batch: batch["id"] % 2, num_cpus=1)
        .accumulate(first=hr.By("y", hr.Sum("id")))
        .drop_columns(["y"])
        .accumulate(second=hr.DistinctCount("id"))
        .predict(score, inputs=["id"], output="score", batch_size=333, concurrency=1)
        .accumulate(third=hr.Quantiles("score", 0.5))
        .filter(lambda row: row["id"] % 5 != 0)
        .with_options(progress=False, shard_rows=1500, engine="local")
    )
    result = data.write_parquet(tmp_path / "out")
    ids = np.array([i for i in range(N) if i % 5])
    assert result.rows == len(ids)
    assert result.metrics["first"] == {0: ids[ids % 2 == 0].sum(), 1: ids[ids % 2 == 1].sum()}
    assert result.metrics["second"] == len(ids)
    assert result.metrics["third"][0.5] == pytest.approx(np.median(score({"id": ids})), rel=0.01)


def test_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    from torchmetrics.classification import BinaryAUROC

    data = hr.range(N).map_batches(
        lambda batch: {"p": score(batch), "y": (batch["id"] % 3 == 0).astype(np.int64)}
    )
    data = data.with_options(progress=False, engine="inline", shard_rows=1000)
    mean = torchmetrics.MeanMetric()
    with pytest.raises(ArgumentError, match="does not say which columns it reads"):
        data.evaluate(mean=mean)
    with pytest.raises(ArgumentError, match="cannot be repeated shard by shard"):
        hr.TorchMetric(torchmetrics.PearsonCorrCoef(), inputs=["p", "y"])
    found = data.evaluate(
        mean=hr.TorchMetric(mean, inputs=["p"]),
        rough=hr.TorchMetric(BinaryAUROC(thresholds=100), inputs=["p", "y"]),
        auc=hr.TorchMetric(BinaryAUROC(), inputs=["p", "y"]),
        exact=hr.AUROC("y", "p"),
    )
    assert found["mean"] == pytest.approx(np.mean(score({"id": np.arange(N)})), rel=1e-6)
    assert found["auc"] == pytest.approx(found["exact"], abs=1e-6)
    assert found["rough"] == pytest.approx(found["exact"], abs=0.01)
