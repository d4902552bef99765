"""Queries of a run on a cluster: DuckDB answers them beside the driver, and workers of other machines do the rest."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from annex.ray.ray_nodes import ELSEWHERE, MARKS, node_elsewhere
from headrace.errors import HeadraceError

from . import job

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

pytestmark = MARKS


def on_ray() -> hr.Ray:
    return hr.Ray(pool_timeout=60, remote_args=ELSEWHERE)


def test_inputs_and_rows_behind_a_query_are_of_the_cluster(
    address: str, hidden: Path, tmp_path: Path
) -> None:
    job.write_input(tmp_path)

    def where(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "hidden": [len(list(hidden.iterdir()))] * len(batch["id"])}

    with node_elsewhere(address, hidden, 2):
        (hidden / "of the driver").touch()
        rides = hr.read_parquet(tmp_path / "rides").map_batches(job.longer).map_batches(where)
        rides = rides.with_options(engine=on_ray(), progress=False)
        sorted_rides = rides.sort("id", descending=True).map_batches(job.longer, batch_size=100)
        result = sorted_rides.write_parquet(tmp_path / "sorted")
        rows = pq.read_table(tmp_path / "sorted").to_pylist()
        assert [row["id"] for row in rows] == [*range(job.ROWS)][::-1] and result.ledger.gathered == job.ROWS
        assert {row["hidden"] for row in rows} == {0}  # a worker elsewhere had them before the query
        groups = job.grouped(tmp_path, engine=on_ray()).write_parquet(tmp_path / "groups")
        assert groups.ledger.gathered == job.ROWS and groups.ledger.read == job.KEYS
    rows = pq.read_table(tmp_path / "groups").to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == job.expected_of_groups()


def test_what_others_do_not_see_is_said(address: str, hidden: Path, tmp_path: Path) -> None:
    job.write_input(tmp_path)
    with node_elsewhere(address, hidden, 2):
        for data in (
            job.dataset(tmp_path, engine=on_ray()),  # an input that is written there
            hr.read_parquet(tmp_path / "rides")
            .sort("id")
            .map_batches(job.longer)
            .with_options(engine=on_ray()),
        ):
            with pytest.raises(HeadraceError, match=r"hidden.*(several machines|On a cluster)"):
                data.with_options(progress=False).to_arrow()


def test_killed_amid_the_query(address: str, tmp_path: Path) -> None:
    job.write_input(tmp_path)
    text = "import sys; from annex.queries import job; job.main(*sys.argv[1:])"
    environment = {
        **os.environ,
        "RAY_ADDRESS": address,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with node_elsewhere(address, None, 2, {"PYTHONPATH": environment["PYTHONPATH"]}):
        for kill in ("query.inputs=kill", "query.answered=kill", "query.done=kill"):
            command = [sys.executable, "-c", text, str(tmp_path), kill, "engine=ray"]
            assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
            answers = list(tmp_path.glob("out/_headrace/queries/*/result/answer.json"))
            assert bool(answers) == (kill == "query.done=kill") and not list(tmp_path.glob("out/*.parquet"))
        result = job.dataset(tmp_path, engine=on_ray()).write_parquet(tmp_path / "out")
    assert result.ledger.gathered == job.ROWS + job.ZONES
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == job.expected() and hr.verify(tmp_path / "out").good
