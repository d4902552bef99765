"""mode="overwrite": what was there stays until what is new is complete."""

from __future__ import annotations

import re
import shutil
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.errors import ForeignOutput, HeadraceError, OutputExists, PlanChanged, StepError
from headrace.result import Result

from .invariants import check, parts, rows_of, stamps
from .job import Job, make_input, write_input


@pytest.fixture
def new(job: Job) -> Job:
    return Job(job.source, job.output, factor=5)


UNFINISHED, KILLED = ("publish.renamed", 3), ("journal.synced", 4)
THERE: dict[str, tuple[list[tuple[dict[str, int], Any]], dict[str, int], bool]] = {
    "nothing": ([], {}, False),
    "itself": ([({}, None)], {}, False),
    "another": ([({}, None)], {"factor": 5}, False),
    "one of another shape": ([({}, None)], {"limit": 130}, False),
    "itself, unfinished": ([({}, UNFINISHED)], {}, True),
    "another, unfinished": ([({}, UNFINISHED)], {"factor": 5}, False),
    "another, and an overwrite that was killed": (
        [({}, None), ({"factor": 5}, KILLED)],
        {"factor": 7},
        False,
    ),
}


@pytest.mark.parametrize(
    ("mode", "words"),
    [("error", "holds a finished run already.*mode='ignore'"), ("append", "incremental=True")],
)
def test_a_finished_run_is_left_as_it_is(job: Job, mode: str, words: str) -> None:
    job.here()
    with pytest.raises(OutputExists, match=words):
        job.here(mode=mode)
    check(Path(job.output), job.expected(), job.here)


@pytest.mark.parametrize(("there", "now", "resumed"), THERE.values(), ids=THERE)
def test_over_what_is_there(job: Job, there: Any, now: dict[str, Any], resumed: bool) -> None:
    """``there``: jobs, and where each was killed, the second one as it overwrote the first."""
    runs = []
    for number, (which, killed) in enumerate(there):
        before, mode = replace(job, **which), "overwrite" if number else "resume"
        if killed is None:
            runs.append(before.here(mode=mode).run)
        else:
            code = before.start({killed[0]: f"kill@{killed[1]}"}, mode=mode).wait()[0]
            assert code == -signal.SIGKILL
    result = replace(job, **now).here(mode="overwrite")
    assert result.resumed == resumed and result.run not in runs
    check(Path(job.output), replace(job, **now).expected(), replace(job, **now).here)


def test_old_rows_stay_readable_when_the_new_run_fails(job: Job, new: Job) -> None:
    job.here()
    before = stamps(Path(job.output))

    def broken(batch: dict) -> dict:
        if batch["id"][0] >= 300:
            raise RuntimeError("no")
        return batch

    dataset = job.dataset(engine="inline", mode="overwrite").map_batches(broken)
    with pytest.raises(StepError):
        dataset.write_parquet(job.output)
    assert stamps(Path(job.output)) == before
    assert rows_of(Path(job.output)) == job.expected()


def test_a_refusal_does_not_touch_the_hidden_run(job: Job, new: Job) -> None:
    job.here()
    assert new.start({"journal.synced": "kill@4"}, mode="overwrite").wait()[0] == -signal.SIGKILL
    hidden = (Path(job.output) / "_headrace" / "next").read_text()
    with pytest.raises(PlanChanged):
        Job(job.source, job.output, factor=7).here()
    assert (Path(job.output) / "_headrace" / "next").read_text() == hidden
    faults = {"attempt.started": "EIO@8"}  # so fewer than eight are left to do
    assert new.here(faults, mode="overwrite").resumed
    check(Path(job.output), new.expected(), new.here)


def one_is_new(job: Job) -> None:
    write_input(Path(job.source), 8, range(8000, 8090))


def one_is_written_again(job: Job) -> None:
    write_input(Path(job.source), 7, range(7000, 7090))  # no shard that is done has read it


def one_is_gone(job: Job) -> None:
    (Path(job.source) / "in-07.parquet").unlink()


def all_are_others(job: Job) -> None:
    for number in range(8):
        write_input(Path(job.source), number, range(1000 * number, 1000 * number + 90))


CHANGES = [one_is_new, one_is_written_again, one_is_gone, all_are_others]


@pytest.fixture
def own(source: Path, tmp_path: Path) -> Job:
    """A job with an input of its own, which may change."""
    shutil.copytree(source, tmp_path / "in")
    return Job(str(tmp_path / "in"), str(tmp_path / "out"))


def rows_now(job: Job) -> list[dict[str, int]]:
    ids = [i for file in sorted(Path(job.source).iterdir()) for i in pq.read_table(file)["id"].to_pylist()]
    return [{"id": i, "product": i * job.factor} for i in ids]


def overwritten(job: Job) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left out
        return job.here(mode="overwrite")


@pytest.mark.parametrize("change", CHANGES)
def test_an_overwrite_whose_input_changed_begins_anew(own: Job, change: Callable[[Job], None]) -> None:
    own.here()
    new = replace(own, factor=5)
    assert new.start({"journal.synced": "kill@4"}, mode="overwrite").wait()[0] == -signal.SIGKILL
    change(own)
    assert not overwritten(new).resumed
    check(Path(own.output), rows_now(new), new.here)


@pytest.mark.parametrize("change", CHANGES)
def test_over_an_unfinished_run_whose_input_changed_begins_anew(
    own: Job, change: Callable[[Job], None]
) -> None:
    """The parts that readers find stay until all of the new ones are there, also if the overwrite is killed."""
    with pytest.raises(HeadraceError):
        own.here({"attempt.started": "EIO@4"})
    before = parts(Path(own.output))
    assert len(before) == 3
    change(own)
    with pytest.raises(HeadraceError):
        own.here({"attempt.started": "EIO@4"}, mode="overwrite")
    assert parts(Path(own.output)) == before
    result = overwritten(own)
    assert result.resumed and not result.left_out  # it goes on with the overwrite, not with the run before
    check(Path(own.output), rows_now(own), own.here)


@pytest.mark.parametrize("name", ["notes.txt", "copy-of-part-00000-k3f9a2xq.parquet"])
def test_foreign_files_are_refused(job: Job, new: Job, name: str) -> None:
    job.here()
    (Path(job.output) / name).write_text("mine")
    before = stamps(Path(job.output))
    with pytest.raises(ForeignOutput, match=re.escape(name)):
        new.here(mode="overwrite")
    assert stamps(Path(job.output)) == before


@pytest.mark.parametrize("point", ["plan.written", "run.opened", "journal.synced"])
def test_restart_killed(job: Job, new: Job, point: str) -> None:
    job.here()
    assert new.start({point: "kill"}, on_change="restart").wait()[0] == -signal.SIGKILL
    new.here()  # nothing of the old run is left to refuse for
    check(Path(job.output), new.expected(), new.here)


def test_an_empty_input_over_a_full_one(job: Job, tmp_path: Path) -> None:
    job.here()
    empty = Job(str(make_input(tmp_path / "none", rows=0)), job.output)
    empty.here(mode="overwrite")
    assert rows_of(Path(job.output)) == []
    check(Path(job.output), [], empty.here)
