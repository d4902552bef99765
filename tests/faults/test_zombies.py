"""Workers that are stopped, given up, and wake when nobody waits for them any more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.core.target_ports import Sink
from headrace.core.work import Shard, Task
from headrace.errors import HeadraceError, OutputWriteFailed
from headrace.output.layout import open_output, read_plan
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet

from .invariants import check
from .job import FILES, Job

SCHEMA = pa.schema([("id", pa.int64()), ("product", pa.int64())])


@pytest.mark.parametrize("point", ["attempt.started", "stage.write", "stage.sync"])
def test_a_stopped_worker_is_given_up(job: Job, tmp_path: Path, point: str) -> None:
    fault = {point: f"once:{tmp_path / 'fired'}:stop@2"}
    code, out, err = job.start(fault, stall_timeout=0.4).wait()
    assert code == 0, err
    assert out.strip() == f"[{len(job.expected())}, {FILES}, false]"
    check(Path(job.output), job.expected(), job.here)


def cut(job: Job) -> Sink:
    """Interrupt a run; return the sink as a worker of it holds it."""
    with pytest.raises(HeadraceError):
        job.here({"attempt.started": "EIO@4"})
    output = open_output(Path(job.output))
    run = output.current()
    assert run is not None
    digits = read_plan(output.folder(run)).digits()
    output.close()
    staging = str(output.folder(run) / "staging")
    return FileSink(job.output, Parquet()).bind(run=run, staging=staging, digits=digits, durability="power")


def rows(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "product": list(ids)}, schema=SCHEMA)


def test_a_zombie_that_ends_its_part_after_the_run_is_done(job: Job) -> None:
    writer = cut(job).open(Task(Shard(7, ()), 0), SCHEMA)
    writer.write(rows(1, 2))
    job.here()
    writer.write(rows(3))
    writer.close()
    writer.sync()
    check(Path(job.output), job.expected(), job.here)


def test_a_zombie_that_begins_its_part_after_the_run_is_done(job: Job) -> None:
    writer = cut(job).open(Task(Shard(7, ()), 0), SCHEMA)
    job.here()
    with pytest.raises(OutputWriteFailed):
        writer.write(rows(1, 2))
    check(Path(job.output), job.expected(), job.here)


def test_a_zombie_that_stages_after_the_next_driver_swept(job: Job) -> None:
    sink = cut(job)
    assert job.start({"recover.swept": "kill"}).wait()[0] == -9
    writer = sink.open(Task(Shard(7, ()), 0), SCHEMA)
    writer.write(rows(1, 2))
    writer.close()
    job.here()
    check(Path(job.output), job.expected(), job.here)
