"""The examples for Dagster and Airflow, with the real packages: `make test-orchestrators` installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr

EXAMPLES = Path(__file__).parents[3] / "examples"
pytestmark = [pytest.mark.orchestrators, pytest.mark.filterwarnings("default")]


def put(folder: Path, kilometres: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"km": [kilometres] * 3}), folder / "a.parquet")


def test_an_asset_of_dagster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dg = pytest.importorskip("dagster")
    monkeypatch.setenv("FARES", str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from dagster_asset import fares

    put(tmp_path / "trips", 2.0)
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([fares], instance=instance)
        assert done.success
        (made,) = done.asset_materializations_for_node("fares")
        shown = {name: each.value for name, each in made.metadata.items()}
        assert (shown["dagster/row_count"], shown["rejected"], shown["mean"]) == (3, 0, 8.0)
        assert Path(shown["report"]).exists()

        shutil.rmtree(tmp_path / "fares")
        put(tmp_path / "trips", 200.0)
        failed = dg.materialize([fares], instance=instance, raise_on_error=False)
        assert not failed.success and not [each for each in failed.all_events if each.is_step_up_for_retry]
        assert "mean is 503" in str(failed.failure_data_for_node("fares"))
    assert hr.runs(tmp_path / "fares")[0].status == "unpublished"


def test_an_operator_of_airflow(tmp_path: Path) -> None:
    pytest.importorskip("airflow")
    (tmp_path / "dags").mkdir()
    shutil.copy(EXAMPLES / "airflow_dag.py", tmp_path / "dags")
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "FARES": str(tmp_path),
    }

    def airflow(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "airflow", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    put(tmp_path / "trips/2026-11-24", 2.0)
    put(tmp_path / "trips/2026-11-25", 200.0)
    for words in (["db", "migrate"], ["dags", "reserialize"]):
        assert airflow(*words).returncode == 0
    assert "state=success" in airflow("dags", "test", "fares", "2026-11-24").stdout
    assert "state=failed" in airflow("dags", "test", "fares", "2026-11-25").stdout
    found = {Path(row.output).name: row for row in hr.runs(tmp_path / "fares")}
    assert {day: row.status for day, row in found.items()} == {
        "2026-11-24": "complete",
        "2026-11-25": "unpublished",
    }
    assert found["2026-11-24"].metrics == {"mean": 8.0}
