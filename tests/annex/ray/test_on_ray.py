"""Workers on Ray nodes that do not see where the driver stages, as on other machines, into the S3 server."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from annex.ray.ray_nodes import ELSEWHERE, MARKS, node_elsewhere
from faults.job import FILES, ROWS, Job, make_input
from headrace.errors import OutputWriteFailed
from stores import outputs

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

pytestmark = MARKS


def on_ray() -> dict[str, Any]:
    return {"engine": hr.Ray(pool_timeout=60, remote_args=ELSEWHERE), "progress": False}


def test_exact_from_nodes_with_disks_of_their_own(
    address: str, hidden: Path, bucket: Any, tmp_path: Path
) -> None:
    """One is lost while it works, with all that it has staged; of two that go on, one sees the driver's folder."""
    source = make_input(tmp_path / "in")
    job = Job(str(source), f"{bucket.url}/out", bad=50, options=on_ray())
    rejected = [i for i in range(FILES * ROWS) if job.fails(i)]
    go = tmp_path / "go"

    def slowly(batch: dict[str, Any]) -> dict[str, Any]:
        while batch["id"][0] >= 300 and not go.exists():
            time.sleep(0.02)
        return batch

    with node_elsewhere(address, hidden, 2) as lost, ThreadPoolExecutor(1) as aside:
        data = job.dataset().map_batches(slowly, version="1")
        run = aside.submit(job.write, data)
        while not any(name.startswith("part-") for name in outputs.names(bucket)):
            assert not run.done() or run.result()
            time.sleep(0.05)
        with node_elsewhere(address, hidden), node_elsewhere(address, None):
            os.killpg(lost.pid, signal.SIGKILL)
            go.touch()
            result = run.result(120)
    assert (result.rows, result.rejected) == (FILES * ROWS - len(rejected), len(rejected))
    assert not [name for name in outputs.names(bucket) if "/parts/" in name]
    again = job.dataset(engine="inline").map_batches(slowly, version="1")
    outputs.check(bucket, job.expected(), lambda: job.write(again), tmp_path, rejected=rejected)


JOB = """
import json, sys, time
import headrace as hr

def slowly(batch):
    time.sleep(0.02)
    return {"id": batch["id"], "double": batch["id"] * 2}

def write(output, **options):
    data = hr.range(40_000).map_batches(slowly, batch_size=500, version="1")
    return data.with_options(progress=False, shard_rows=1_000, **options).write_parquet(output)

if __name__ == "__main__":
    write(sys.argv[1], engine=hr.Ray(pool_timeout=60, remote_args=json.loads(sys.argv[2])))
"""


def test_the_driver_is_killed_while_workers_elsewhere_upload(
    address: str, hidden: Path, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers live on for a moment; one machine goes on at once, without them."""
    (tmp_path / "uploading_job.py").write_text(JOB)
    monkeypatch.syspath_prepend(tmp_path)
    out = f"{bucket.url}/out"
    command = [sys.executable, str(tmp_path / "uploading_job.py"), out, json.dumps(ELSEWHERE)]
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(sys.path)}
    with node_elsewhere(address, hidden, 2, {"PYTHONPATH": environment["PYTHONPATH"]}):
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as driver:
            while len([name for name in outputs.names(bucket) if name.startswith("part-")]) < 3:
                assert driver.poll() is None
                time.sleep(0.02)
            driver.kill()
        import uploading_job  # type: ignore[import-not-found]

        result = uploading_job.write(out, engine="inline")
    assert result.rows == 40_000 and result.resumed and hr.verify(out).good
    rows = hr.read_parquet(out).with_options(engine="inline", progress=False).take_all()
    assert [row["id"] for row in rows] == list(range(40_000))


def test_a_node_whose_environment_leads_to_another_store(address: str, hidden: Path, bucket: Any) -> None:
    def never(batch: Any) -> Any:
        raise AssertionError("work was begun")

    class Other(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
        with node_elsewhere(address, hidden, env=there):
            data = hr.range(10).map_batches(never, concurrency=1).with_options(**on_ray())
            with pytest.raises(
                OutputWriteFailed, match=r"does not see the folder.*AWS_ENDPOINT_URL.*another"
            ):
                data.write_parquet(f"{bucket.url}/out")
        server.shutdown()


def test_a_table_of_a_database_needs_a_folder_that_all_see(
    address: str, hidden: Path, tmp_path: Path
) -> None:
    with node_elsewhere(address, hidden):
        data = hr.range(10).map_batches(lambda batch: batch, concurrency=1).with_options(**on_ray())
        with pytest.raises(hr.errors.ResourcesUnavailable, match=r"do not see.*object store"):
            data.write_sql("t", f"sqlite:///{hidden}/db.sqlite", output=hidden / "parts")
