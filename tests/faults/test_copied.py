"""Killed while columns are copied; running again gives exactly the rows, and they were copied."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.worker.copy_choice import LEAST_ROWS

from .invariants import check, parts
from .job import Job

PER_FILE = 3 * LEAST_ROWS
BAD = 2 * PER_FILE + 5


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Of files of three row groups, gzipped: nothing that is encoded anew is."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        ids = pa.array(range(number * PER_FILE, (number + 1) * PER_FILE), pa.int64())
        path = tmp_path / "in" / f"in-{number}.parquet"
        pq.write_table(pa.table({"id": ids}), path, row_group_size=LEAST_ROWS, compression="gzip")
    return Job(
        str(tmp_path / "in"),
        str(tmp_path / "out"),
        bad=BAD,
        options={"shard_rows": PER_FILE, "commit_every": None},
    )


@pytest.mark.parametrize(
    ("point", "action", "code", "stages"),
    [
        ("stage.write", "once:{}:kill@3", 0, 1),
        ("stage.sync", "once:{}:kill@2", 0, 1),
        ("stage.write", "kill-driver@3", -signal.SIGKILL, 1),
        ("journal.synced", "kill@3", -signal.SIGKILL, 1),
        ("publish.rename", "kill@2", -signal.SIGKILL, 1),
        ("stage.write", "once:{}:kill@3", 0, 2),
        ("block.made", "once:{}:kill@2", 0, 2),
        ("stage.write", "kill-driver@3", -signal.SIGKILL, 2),
    ],
)
def test_killed(job: Job, tmp_path: Path, point: str, action: str, code: int, stages: int) -> None:
    job = replace(job, copied=stages)
    ended, _, err = job.start({point: action.format(tmp_path / "fired")}).wait()
    assert ended == code, err
    job.here()
    check(Path(job.output), job.expected(), job.here, [BAD])
    codecs = []
    for name in parts(Path(job.output)):
        metadata = pq.read_metadata(Path(job.output) / name)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            assert LEAST_ROWS - 1 <= group.num_rows <= LEAST_ROWS
            codecs.append((group.num_rows, group.column(0).compression))
    assert sorted(codecs) == [(LEAST_ROWS - 1, "SNAPPY"), *[(LEAST_ROWS, "GZIP")] * 8]
