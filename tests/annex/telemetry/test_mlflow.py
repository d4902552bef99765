"""Runs in a real tracking store of MLflow: SQLite, and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from annex.models.test_mlflow import mlflow
from headrace.annex.telemetry import mlflow as annex
from headrace.errors import ArgumentError, RequirementNotMet, StepError
from later import needs

pytestmark = [needs("mlflow"), pytest.mark.filterwarnings("default")]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty tracking store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(annex, "_PATIENCE", 300)
    yield f"{tmp_path}/mlruns"
    while mlflow.active_run() is not None:
        mlflow.end_run()


def write(out: Path, store: str, function: Any = None, least: float = 0, **options: Any) -> hr.Result:
    observer = hr.observers.MLflow(experiment="fares", tracking_uri=store, tags={"team": "prices"})
    rows = [{"id": i, "even": str(i % 2 == 0)} for i in range(100)]
    data = hr.from_items(rows).predict(function or fare, inputs=["id"], output="fare")
    data = data.accumulate(mean=hr.Mean("fare"), by=hr.By("even", hr.Mean("fare")))
    data = data.require(mean=hr.at_least(least))
    options = {"engine": "inline", "progress": False, "observers": [observer], "show_data": True, **options}
    return data.with_options(**options).write_parquet(out)


def fare(batch: dict[str, Any]) -> Any:
    return batch["id"] * 2.0


def failing(batch: dict[str, Any]) -> Any:
    raise ValueError("no answer of https://ada:hunter2@example.com/x")


class Registered:
    """Predicts as a model of the registry would, and has its name."""

    label = "models:/fare/1"

    def load(self) -> None:
        """Nothing is loaded."""

    def predict(self, batch: dict[str, Any]) -> Any:
        return batch["id"] * 2.0

    def close(self) -> None:
        """Nothing is held."""


def runs_in(store: str) -> list[Any]:
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("fares")
    return list(reversed(client.search_runs([experiment.experiment_id])))


def test_a_run_has_parameters_metrics_and_the_report(tmp_path: Path, store: str) -> None:
    result = write(tmp_path / "out", store)
    (run,) = runs_in(store)
    assert run.info.status == "FINISHED" and run.info.run_name == "out"
    assert run.data.tags["headrace.run"] == result.run and run.data.tags["team"] == "prices"
    assert run.data.tags["headrace.required"] == "met"
    assert run.data.metrics["mean"] == 99.0 and run.data.metrics["by.True"] == 98.0
    assert (run.data.metrics["headrace.rows"], run.data.metrics["headrace.rejected"]) == (100, 0)
    assert run.data.params["engine"] == "inline" and run.data.params["version"] == hr.__version__
    assert "fingerprint" in run.data.params["model.predict_fare_"]
    assert run.info.start_time <= run.info.end_time
    page = mlflow.MlflowClient(store).download_artifacts(run.info.run_id, "report.html", str(tmp_path))
    assert Path(page).read_bytes() == Path(result.report).read_bytes()


def test_runs_that_are_not_complete(tmp_path: Path, store: str) -> None:
    with pytest.raises(StepError):
        write(tmp_path / "failed", store, failing)
    with pytest.raises(RequirementNotMet):
        write(tmp_path / "unpublished", store, least=1000)
    failed, unpublished = runs_in(store)
    assert failed.info.status == unpublished.info.status == "FAILED"
    assert "ValueError" in failed.data.tags["headrace.error"] and "hunter2" not in str(failed.data)
    assert (
        unpublished.data.tags["headrace.required"] == "not met" and unpublished.data.metrics["mean"] == 99.0
    )


def test_a_model_of_mlflow_is_linked_and_an_active_run_is_the_parent(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    mlflow.set_experiment("fares")
    client = mlflow.MlflowClient()
    with mlflow.start_run() as parent:
        logged = client.create_logged_model(
            parent.info.experiment_id, "fare", source_run_id=parent.info.run_id
        )
        client.create_registered_model("fare")
        client.create_model_version("fare", f"models:/{logged.model_id}", model_id=logged.model_id)
        write(tmp_path / "out", store, Registered())
    child, _ = sorted(runs_in(store), key=lambda run: "mlflow.parentRunId" not in run.data.tags)
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags["headrace.model"] == "models:/fare/1"
    assert [each.model_id for each in child.inputs.model_inputs] == [logged.model_id]


def test_a_server_that_does_not_answer_costs_no_row(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert write(tmp_path / "out", "http://127.0.0.1:9").rows == 100
    assert "MLflow did not take it" in caplog.text
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    monkeypatch.setattr(annex, "_PATIENCE", 0.1)
    assert write(tmp_path / "slow", "http://127.0.0.1:9").rows == 100
    assert "is not waited for" in caplog.text


@pytest.mark.parametrize("wrong", [{"experiment": 3}, {"tracking_uri": ""}, {"tags": {"a": 1}}])
def test_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="MLflow"):
        hr.observers.MLflow(**wrong)
