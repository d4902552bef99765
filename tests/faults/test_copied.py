"""Killed while columns are copied; running again gives exactly the rows, and they were copied."""

from __future__ import annotations

import signal
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.worker.copy_choice import LEAST_ROWS

from .copied import BAD, CopiedJob, make_files
from .invariants import check, parts
from .job import Driver


@pytest.fixture
def job(tmp_path: Path) -> CopiedJob:
    return CopiedJob(str(make_files(tmp_path / "in", 3)), str(tmp_path / "out"))


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
def test_killed(job: CopiedJob, tmp_path: Path, point: str, action: str, code: int, stages: int) -> None:
    job = replace(job, stages=stages)
    faults = {point: action.format(tmp_path / "fired")}
    driver = Driver({**asdict(job), "options": {"workers": 2}}, faults, module="faults.copied")
    ended, _, err = driver.wait()
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
