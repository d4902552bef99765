"""Rejected rows of an output in an S3 server are tried again; drivers are killed at each point of it."""

import dataclasses
import signal

import pytest

import headrace as hr
from faults.job import Job, make_input
from faults.test_retried import BAD, STILL, expected, repaired
from headrace.errors import RequirementNotMet
from stores import outputs

# One driver after the other, each killed at its point; until the journal has all, readers see what was there before.
LIVES = [
    [("attempt.started", 1), ("store.upload", 3), ("store.uploaded", 5), ("store.append", 1)],
    [("store.appended", 1), ("swap.recorded", 1), ("swap.removed", 1), ("publish.rename", 3)],
    [("publish.renamed", 2), ("swap.pointed", 1), ("finish.manifest", 1)],
    [("finish.success", 1), ("finish.closed", 1), ("attempt.started", 1)],
]


@pytest.fixture
def job(bucket, tmp_path):
    source = make_input(tmp_path / "in")
    return Job(str(source), f"{bucket.url}/out", bad=BAD, options={"engine": "inline"})


@pytest.mark.parametrize("points", LIVES, ids=lambda points: points[0][0])
@pytest.mark.parametrize("withheld", [False, True], ids=["seen", "withheld"])
def test_killed_again_and_again(job, bucket, tmp_path, withheld, points):
    job = dataclasses.replace(job, required=799 if withheld else 0)
    if withheld:
        with pytest.raises(RequirementNotMet):
            job.here()
    else:
        job.here()
    fix, before, died = repaired(job, folder=tmp_path), outputs.tags(bucket), 0
    for point, passage in points:
        code, _, err = job.start({point: f"kill@{passage}"}, refresh="rejected", fix=fix).wait()
        assert code in (-signal.SIGKILL, 0), err
        died += code != 0
        if points is LIVES[0] and code:
            assert outputs.tags(bucket) == before, point
    assert died > 1
    assert job.here(refresh="rejected", fix=fix).rejected == 1
    outputs.check(bucket, expected(job), job.here, tmp_path, rejected=[STILL])
    assert hr.verify(job.output).good
