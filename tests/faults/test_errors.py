"""A disk that is full or fails: one paragraph, no residue, and the next run goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, OutputWriteFailed

from .invariants import REPORT, assert_unlocked, check, rows_of, stamps
from .job import Job

DRIVER = [
    ("plan.written", "ENOSPC@1"),
    ("plan.written", "EIO@2"),
    ("journal.append", "ENOSPC@1"),
    ("journal.append", "ENOSPC@3"),
    ("journal.append", "EIO@4"),
    ("journal.sync", "EIO@1"),
    ("journal.sync", "EIO@3"),
    ("journal.sync", "ENOSPC@4"),
    ("publish.rename", "ENOSPC@1"),
    ("publish.rename", "EIO@5"),
    ("plan.written", "ENOSPC@3"),
    ("finish.success", "EIO@1"),
    ("finish.success", "ENOSPC@1"),
]
WORKER = [
    ("stage.write", "ENOSPC@1"),
    ("stage.write", "EIO@5"),
    ("stage.sync", "EIO@1"),
    ("stage.sync", "ENOSPC@3"),
    ("stage.closed", "ENOSPC@4"),
]


def assert_paragraph(error: HeadraceError) -> None:
    text = str(error)
    assert "\n" not in text and len(text) > 40 and text.endswith("."), text


@pytest.mark.parametrize(("point", "action"), DRIVER + WORKER)
def test_refused_by_the_system(job: Job, point: str, action: str) -> None:
    with pytest.raises(OutputWriteFailed) as caught:
        job.here({point: action})
    assert_paragraph(caught.value)
    output = Path(job.output)
    if output.exists():
        assert_unlocked(output)
        expected = {row["id"]: row for row in job.expected()}
        assert all(expected[row["id"]] == row for row in rows_of(output))
    job.here()
    check(output, job.expected(), job.here)


@pytest.mark.parametrize(("point", "action"), [DRIVER[4], DRIVER[9], WORKER[0], WORKER[3]])
def test_refused_with_workers(job: Job, point: str, action: str) -> None:
    code, _, err = job.start({point: action}).wait()
    assert code == 1
    assert "OutputWriteFailed" in err.splitlines()[-1], err
    job.here()
    check(Path(job.output), job.expected(), job.here)


@pytest.mark.parametrize("action", ["ENOSPC@*", "EIO@*"])
@pytest.mark.parametrize("point", ["journal.append", "journal.sync", "plan.written"])
def test_a_run_that_could_not_begin_leaves_no_trace(job: Job, point: str, action: str) -> None:
    with pytest.raises(OutputWriteFailed):
        job.here({point: action})
    assert not Path(job.output).exists()


@pytest.mark.parametrize("action", ["ENOSPC@*", "EIO@*"])
@pytest.mark.parametrize("point", ["stage.write", "stage.sync"])
def test_a_run_that_committed_nothing_leaves_its_record_and_report(job: Job, point: str, action: str) -> None:
    with pytest.raises(OutputWriteFailed):
        job.here({point: action})
    output = Path(job.output)
    assert_unlocked(output)
    (run,) = (path for path in (output / "_headrace").iterdir() if path.is_dir())
    left = {path.name for path in run.iterdir()}
    assert left == {"plan", "journal", "events.jsonl", *REPORT}
    assert os.listdir(output) == ["_headrace"]
    job.here()
    check(output, job.expected(), job.here)


OVERWRITE = [
    *(("plan.written", f"ENOSPC@{passage}") for passage in (1, 2, 3, 4)),
    ("journal.append", "ENOSPC@3"),
    ("stage.write", "ENOSPC@6"),
    ("publish.rename", "EIO@3"),
    ("finish.success", "EIO@1"),
]


@pytest.mark.parametrize(("point", "action"), OVERWRITE)
def test_refused_while_overwriting(job: Job, point: str, action: str) -> None:
    job.here()
    before = stamps(Path(job.output))
    new = Job(job.source, job.output, factor=5)
    with pytest.raises(OutputWriteFailed) as caught:
        new.here({point: action}, mode="overwrite")
    assert_paragraph(caught.value)
    if point not in ("publish.rename", "finish.success") and action != "ENOSPC@4":
        assert stamps(Path(job.output)) == before
        job.here()  # gives the overwrite up
        check(Path(job.output), job.expected(), job.here)
    result = new.here(mode="overwrite")
    assert result.rows == len(new.expected())
    check(Path(job.output), new.expected(), new.here)
