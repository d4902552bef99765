"""Small jobs of scikit-learn begin in the program's own process; whatever could end it is left to workers."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forked
import headrace as hr
from headrace.core.events import RowsRead, Worked
from headrace.dataset.dataset import Dataset
from headrace.engines.inline import DriverFirstEngine
from headrace.session import context
from headrace.session.engines import MOST_BYTES, MOST_FILES, uses_only_known
from headrace.session.execution_plan import ExecutionPlan
from headrace.testing.engines import until
from headrace.worker import attempt
from later import Later, needs

pytestmark = needs("sklearn")
sklearn = Later("sklearn")
LogisticRegression = Later("sklearn.linear_model:LogisticRegression")
make_pipeline = Later("sklearn.pipeline:make_pipeline")
FunctionTransformer = Later("sklearn.preprocessing:FunctionTransformer")
StandardScaler = Later("sklearn.preprocessing:StandardScaler")

ROWS = 3_000
RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(ROWS, 2)).astype(np.float32)
LABELS = POINTS[:, 0] > POINTS[:, 1]


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a program is run: no number of workers, warnings are none but warnings."""
    monkeypatch.delenv("HEADRACE_WORKERS", raising=False)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        yield


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "points.parquet"
    table = pa.table({"id": np.arange(ROWS), "x": POINTS[:, 0], "y": POINTS[:, 1]})
    pq.write_table(table, path, row_group_size=500)
    return str(path)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(POINTS, LABELS)


def predicted(source: str, model: Any, **options: Any) -> Dataset:
    data = hr.read_parquet(source).predict(model, inputs=["x", "y"], output="p")
    return data.with_options(progress=False, **options)


def begins_here(data: Dataset) -> bool:
    return ExecutionPlan(data._plan, data._options).begins_here


class Started:
    """Notes which processes are there below this one, when something happens in a run, and were not before."""

    def __init__(self) -> None:
        self._before = self._now()
        self.processes: set[int] = set()

    def _now(self) -> set[int]:
        return {child.pid for child in psutil.Process().children(recursive=True)}

    def on_event(self, event: Any) -> None:
        self.processes |= self._now() - self._before


# ---------------------------------------------------------------- what begins here


def with_patience(seconds: float, made: list[DriverFirstEngine]) -> type[DriverFirstEngine]:
    """The engine that begins here, with other patience than is usual; those that were made are listed."""

    class Patient(DriverFirstEngine):
        def __init__(self, open_local: Any) -> None:
            super().__init__(open_local, patience=seconds)
            made.append(self)

    return Patient


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than the usual patience for a small job."""
    monkeypatch.setattr(context, "DriverFirstEngine", with_patience(1e6, []))


@pytest.mark.usefixtures("patient")
def test_a_small_job_starts_no_worker(source: str, model: Any, tmp_path: Path) -> None:
    started = Started()
    data = predicted(source, model, observers=(started,))
    assert data.write_parquet(tmp_path / "out").rows == ROWS
    assert started.processes == set()
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1
    out = pq.read_table(tmp_path / "out").sort_by("id")
    assert out["p"].to_pylist() == model.predict(POINTS).tolist()
    assert "starts in this process" in str(data.explain())


@pytest.mark.usefixtures("patient")
def test_rows_that_fail_are_rejected_one_by_one(source: str, tmp_path: Path) -> None:
    path = tmp_path / "holes.parquet"
    holes = pq.read_table(source).to_pandas()
    holes.loc[[7, 1_800], "x"] = np.nan
    pq.write_table(pa.Table.from_pandas(holes), path)
    started = Started()
    regression = LogisticRegression().fit(POINTS, LABELS)
    data = predicted(str(path), regression, on_error="reject", observers=(started,))
    result = data.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (ROWS - 2, 2)
    assert started.processes == set()


class WaitsForWorkers:
    """Holds the work in this process up until others can work; notes which workers did what."""

    def __init__(self, engines: list[DriverFirstEngine]) -> None:
        self._engines = engines
        self.workers: list[int] = []

    def on_event(self, event: Any) -> None:
        if isinstance(event, RowsRead):
            (pool,) = self._engines[0]._pools
            until(lambda: pool._others is not None)
        if isinstance(event, Worked) and event.rows:
            self.workers.append(event.worker)


def test_what_takes_long_goes_to_workers(
    source: str, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[DriverFirstEngine] = []

    monkeypatch.setattr(context, "DriverFirstEngine", with_patience(0.0, engines))
    monkeypatch.setattr(attempt, "REPORT_SECONDS", 0.0)
    watch = WaitsForWorkers(engines)
    data = predicted(source, model, observers=(watch,), shard_rows=500)
    assert data.write_parquet(tmp_path / "out").rows == ROWS
    (pool,) = engines[0]._pools
    assert watch.workers[0] == pool._number
    assert set(watch.workers[1:]) - {pool._number}
    out = pq.read_table(tmp_path / "out")
    assert out["id"].to_pylist() == list(range(ROWS))
    assert out["p"].to_pylist() == model.predict(POINTS).tolist()


# ---------------------------------------------------------------- what is left to workers


def shifted(values: Any) -> Any:
    return values + 1


def own() -> Any:
    """Return an estimator of the user's."""

    class Own(sklearn.base.ClassifierMixin, sklearn.base.BaseEstimator):  # type: ignore[misc]
        def fit(self, x: Any, y: Any) -> Own:
            self.classes_ = np.unique(y)
            return self

        def predict(self, x: Any) -> Any:
            return np.zeros(len(x))

    return Own()


@pytest.mark.parametrize(
    "made",
    [
        lambda: make_pipeline(FunctionTransformer(shifted), LogisticRegression()),
        lambda: make_pipeline(FunctionTransformer(functools.partial(np.add, shifted(1))), own()),
        lambda: make_pipeline(FunctionTransformer(os._exit), LogisticRegression()),
    ],
)
def test_code_of_the_users_is_left_to_workers(made: Any) -> None:
    assert not uses_only_known(made())
    assert not uses_only_known([{"model": (made(),)}])


def test_known_functions_within_a_pipeline_are_known() -> None:
    assert uses_only_known(make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()))


def test_functions_and_classes_are_left_to_workers(source: str, model: Any) -> None:
    assert begins_here(predicted(source, model))
    assert not begins_here(predicted(source, model).map_batches(lambda batch: batch))
    assert not begins_here(predicted(source, model).filter(lambda row: True))
    assert not begins_here(predicted(source, lambda batch: batch["x"]))
    assert begins_here(predicted(source, model).filter(expr=hr.col("x") > 0).select_columns(["p"]))


def test_a_run_that_was_interrupted_is_left_to_workers(source: str, model: Any) -> None:
    data = predicted(source, model)
    with context.RunContext.open(data._plan, data._options, sink="headrace.sinks.parquet") as opened:
        assert isinstance(opened.engine, DriverFirstEngine)
        opened.leave_to_workers()
        assert not isinstance(opened.engine, DriverFirstEngine)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 2},
        {"batch_timeout": 60.0},
        {"memory_limit": "8GiB"},
        {"worker_start": "spawn"},
        {"commit_every": None},
    ],
)
def test_what_only_a_worker_can_be_bound_to_is_left_to_workers(
    source: str, model: Any, options: dict[str, Any]
) -> None:
    assert not begins_here(predicted(source, model, **options))


def test_a_step_that_says_what_it_needs_is_left_to_workers(source: str, model: Any) -> None:
    data = hr.read_parquet(source).predict(model, inputs=["x", "y"], concurrency=2)
    assert not begins_here(data)
    assert not begins_here(predicted(source, model).limit(10))


def test_a_file_of_a_model_is_left_to_workers(source: str, model: Any, tmp_path: Path) -> None:
    import joblib

    joblib.dump(model, tmp_path / "model.joblib")
    loaded = hr.load_model(tmp_path / "model.joblib", trust_pickle=True)
    assert not begins_here(predicted(source, loaded))


def test_big_input_is_left_to_workers(model: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": POINTS[:, 0], "y": POINTS[:, 1]}), tmp_path / "0.parquet")
    for number in range(1, MOST_FILES + 1):
        os.link(tmp_path / "0.parquet", tmp_path / f"{number}.parquet")
    assert not begins_here(predicted(str(tmp_path), model))
    big = tmp_path / "big"
    big.mkdir()
    noise = RNG.random(MOST_BYTES // 8)
    pq.write_table(pa.table({"x": noise, "y": noise}), big / "0.parquet", compression=None)
    assert not begins_here(predicted(str(big), model))


def test_settings_of_the_program_that_workers_do_not_have(source: str, model: Any) -> None:
    data = predicted(source, model)
    with sklearn.config_context(transform_output="pandas"):
        assert not begins_here(data)
    with np.errstate(all="raise"):
        assert not begins_here(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not begins_here(data)
    assert begins_here(data)


# ---------------------------------------------------------------- what if this process ends over it

KILLED = """
    import json, os, signal, sys
    import headrace as hr, joblib, psutil

    class Watch:
        children = 0
        def on_event(self, event):
            self.children = max(self.children, len(psutil.Process().children()))
            if sys.argv[1] == "die" and type(event).__name__ == "WorkerReady":
                os.kill(os.getpid(), signal.SIGKILL)

    watch = Watch()
    data = hr.read_parquet("points.parquet").predict(joblib.load("model.joblib"), inputs=["x", "y"], output="p")
    rows = data.with_options(progress=False, observers=(watch,)).write_parquet("out").rows
    print(json.dumps([rows, watch.children]))
"""


def test_a_run_whose_process_was_killed_goes_on_in_workers(source: str, model: Any, tmp_path: Path) -> None:
    import joblib

    joblib.dump(model, tmp_path / "model.joblib")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(KILLED))

    def run(how: str) -> subprocess.CompletedProcess[str]:
        also = "joblib sklearn.linear_model sklearn.pipeline"
        return forked.run([sys.executable, str(program), how], also=also, cwd=tmp_path)

    assert run("die").returncode == -signal.SIGKILL
    again = run("live")
    assert again.returncode == 0, again.stderr
    rows, children = json.loads(again.stdout)
    assert rows == ROWS
    assert children > 0
    ids = pq.read_table(tmp_path / "out")["id"].to_pylist()
    assert ids == list(range(ROWS))
