"""kill -9 of the driver and of workers at every named point; running again gives exactly the rows."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossed import crossed
from headrace.core import failpoints

from .invariants import check, parts, rows_of, stamps
from .job import FILES, ROWS, Job


def passages(**points: str) -> list[tuple[str, int]]:
    """Return points, and at which passages the driver kills itself there."""
    return [
        (f"{group}.{point}", int(passage))
        for group, words in points.items()
        for point, _, numbers in (word.partition(":") for word in words.split())
        for passage in numbers.split(",")
    ]


def elsewhere(group: str, words: str) -> list[str]:
    return [f"{group}.{word}" for word in words.split()]


# Passages of plan.written: plan, pointer, manifest; of the journal: opened, schema, then commits in groups.
DRIVER = passages(
    plan="written:1,2,3",
    run="opened:1",
    journal="append:1,2,3 sync:1,2,3 synced:1,2,3",
    publish=f"rename:1,6 renamed:1,{FILES}",
    finish="manifest:1 success:1 closed:1",
)
PARTING = passages(shard="divided:1,5", journal="append:4 sync:4 synced:4", publish="rename:3")
# An overwrite also passes the points of every run while its parts are hidden.
SWAP = passages(
    journal="synced:3",
    swap="recorded:1 removed:1 pointed:1",
    publish="rename:1 renamed:5",
    finish="manifest:1 success:1 closed:1",
)
WORKER = ["attempt.started", "attempt.batch", "stage.write", "stage.closed", "stage.sync"]
METRICS = ["state.written"]  # see test_metrics.py
MAKER = ["block.made"]
# Where a shard is done in parts as it takes long, and where a worker leaves a part to another.
PARTED, LEFT = ["attempt.parted"], ["attempt.left"]
RECOVER = elsewhere("recover", "opened revoked swept")
STORE = elsewhere("store", "upload uploaded append appended")  # see tests/stores/test_killed.py
UPLOADER = ["worker.upload", "worker.uploaded"]  # see tests/stores/test_uploaded.py
TABLE = ["table.filled"]  # see tests/annex/together/test_every_sink.py
COLUMNS = ["table.joined"]  # see tests/annex/lakes/test_add_columns.py
QUERY = elsewhere("query", "inputs answered synced done")  # see tests/annex/queries/test_faults.py
FLEET = ["note.add", "note.added", "fleet.fenced"]  # see tests/annex/fleet/test_fleet.py
BATCHES = elsewhere(
    "batch", "chosen sending uploaded creating created open fetched settled"
)  # tests/annex/llm
REQUIRED = ["finish.withheld"]  # see tests/annex/together/test_unseen.py


def test_every_point_is_killed_at_somewhere() -> None:
    points = {point for point, _ in DRIVER + SWAP + PARTING}
    points |= {*WORKER, *METRICS, *MAKER, *PARTED, *LEFT, *RECOVER, *STORE, *UPLOADER, *TABLE}
    points |= {*COLUMNS, *REQUIRED, *QUERY, *FLEET, *BATCHES}
    assert points == failpoints.POINTS


# ---------------------------------------------------------------- one table for drivers, one for workers


def crossing(make: Callable[..., Any], *values: Sequence[Any]) -> list[Any]:
    """Return a case for each combination; some of them for the soak, as ``crossed`` has it."""
    return [make(*each.values, marks=each.marks) for each in crossed(*values)]


def driver(
    points: str,
    dying: dict[str, Any] | None = None,
    then: dict[str, Any] | None = None,
    *,
    files: int | None = None,
    marks: Any = (),
    **changes: Any,
) -> Any:
    """Drivers of a job with ``changes`` end one after another at ``points``; ``then`` are options of the last one."""
    return pytest.param(
        points, dying or {}, then or {}, files, changes, marks=marks, id=f"{points} {changes or ''}"
    )


def worker(
    point: str,
    action: str,
    options: dict[str, Any] | None = None,
    *,
    files: int | None = None,
    marks: Any = (),
    **changes: Any,
) -> Any:
    """One worker of a job with ``changes`` ends at a point, and others do its work."""
    named = f"{point} {action} {changes or ''}"
    return pytest.param(point, action, options or {}, files, changes, marks=marks, id=named)


EVERY = {"commit_every": 1e-9}  # shards are done in parts
INLINE = {"engine": "inline", "workers": None}
ONE_SHARD: dict[str, Any] = {
    "meets": "met",
    "options": {"shard_rows": FILES * ROWS},
}  # which two workers share
SHELVES: dict[str, Any] = {"shelves": True, "files": 3 * FILES}
NONE = {"first": 10_000}  # no row passes
TWO = ["union", "zip"]

DRIVERS = [
    *(driver(f"{point}=kill@{passage}") for point, passage in DRIVER),
    *(driver(f"{point}=kill-driver@2") for point in WORKER),
    # Limits, no rows, several deaths, and what is not synced.
    *(driver(at, limit=250) for at in ("publish.renamed=kill@2", "journal.synced=kill")),
    *(driver(f"{at}=kill", limit=250) for at in ("finish.manifest", "finish.closed")),
    *(driver(f"{at}=kill", **NONE) for at in ("finish.success", "finish.closed")),
    driver("journal.synced=kill@2 journal.synced=kill@2 journal.synced=kill"),
    driver("publish.renamed=kill@2", options={"durability": "process"}),
    # Two datasets.
    *crossing(
        lambda at, combined, marks: driver(at[0], combined=combined, staged=at[1], marks=marks),
        [
            ("journal.append=kill@1", False),
            ("journal.synced=kill@2", False),
            ("publish.rename=kill@6", True),
            ("finish.success=kill@1", True),
        ],
        TWO,
    ),
    # Shards that are done in parts: by both drivers, or the first alone.
    *crossing(
        lambda at, anew, marks: driver(
            f"{at[0]}=kill@{at[1]}", EVERY, EVERY if anew else {}, files=-FILES if anew else None, marks=marks
        ),
        PARTING,
        [True, False],
    ),
    driver("attempt.parted=kill-driver@2", EVERY, EVERY, bad=50, options={"shard_rows": 4 * ROWS}),
    # A shard that two workers share; the rest may be parted again.
    *crossing(
        lambda at, anew, marks: driver(
            at, then={"commit_every": 1e-9 if anew else None}, **ONE_SHARD, marks=marks
        ),
        [
            "attempt.left=kill-driver",
            "attempt.parted=kill-driver",
            "shard.divided=kill",
            "journal.append=kill@3",
            "journal.synced=kill@3",
            "journal.append=kill@4",
            "publish.rename=kill@2",
        ],
        [True, False],
    ),
    # Stages.
    *(driver(f"{point}=kill-driver@2", staged=True) for point in (*MAKER, "attempt.batch")),
    driver("journal.synced=kill@3", staged=True),
    # Rows that are set aside.
    *(driver("attempt.batch=kill-driver@4", bad=50, staged=staged) for staged in (False, True)),
    *(driver("journal.synced=kill@3", bad=50, staged=staged) for staged in (False, True)),
    driver("stage.closed=kill-driver@3", bad=50),
    driver("stage.sync=kill-driver@4", bad=50, staged=True),
    driver("publish.rename=kill@1", bad=50),
    driver("publish.rename=kill@2", bad=50, staged=True),
    driver("publish.renamed=kill@3", bad=50),
    driver("finish.manifest=kill@1", bad=50),
    driver("finish.success=kill@1", bad=50, staged=True),
    # Parts in folders: some files of a shard are staged, or published, and others are not.
    *(
        driver(at, INLINE, **SHELVES)
        for at in (
            "stage.closed=kill@5",
            "journal.synced=kill@3",
            "publish.rename=kill@5",
            "publish.renamed=kill@7",
            "finish.success=kill@1",
        )
    ),
]
WORKERS = [
    *(worker(point, "kill@2", files=FILES) for point in WORKER),
    *crossing(
        lambda at, combined, marks: worker(
            at[0], "kill@2", combined=combined, staged=at[1], bad=50, marks=marks
        ),
        [("attempt.batch", False), ("block.made", True), ("stage.write", True)],
        ["union"],
    ),
    worker("stage.write", "kill@2", combined="zip", staged=True, bad=50),  # while it is made, or read
    worker("attempt.parted", "kill@4", EVERY, files=4 * FILES),  # batches of 30 rows, of 100
    *(worker(point, "kill", **ONE_SHARD) for point in ("attempt.left", "attempt.parted", "stage.closed")),
    *crossing(
        lambda point, passage, marks: worker(point, f"kill@{passage}", staged=True, files=FILES, marks=marks),
        [*MAKER, "attempt.started", "attempt.batch", "stage.closed"],
        [1, 3],
    ),
    worker("stage.closed", "kill@2", **SHELVES),
    worker("stage.write", "kill@2", limit=330),
]


def of(job: Job, folder: Path, changes: dict[str, Any]) -> tuple[Job, list[int]]:
    """Return the job with changes, and which rows it sets aside."""
    if "meets" in changes:
        (folder / "met").mkdir()
        changes = {**changes, "meets": str(folder / "met")}
    job = replace(job, **changes)
    return job, [i for i in range(FILES * ROWS) if job.fails(i)]


@pytest.mark.parametrize(("points", "dying", "then", "files", "changes"), DRIVERS)
def test_drivers_killed(
    job: Job,
    tmp_path: Path,
    points: str,
    dying: dict[str, Any],
    then: dict[str, Any],
    files: int | None,
    changes: dict[str, Any],
) -> None:
    """``files``: how many the output has; less than 0: more than that."""
    job, rejected = of(job, tmp_path, changes)
    for point, _, action in (each.partition("=") for each in points.split()):
        code, _, err = job.start({point: action}, **dying).wait()
        assert code == -signal.SIGKILL, err
    result = job.here(**then)
    assert (result.rows, result.rejected) == (len(job.expected()), len(rejected))
    assert files is None or (result.files == files if files > 0 else result.files > -files)
    check(Path(job.output), job.expected(), job.here, rejected)


@pytest.mark.parametrize(("point", "action", "options", "files", "changes"), WORKERS)
def test_workers_killed(
    job: Job,
    tmp_path: Path,
    point: str,
    action: str,
    options: dict[str, Any],
    files: int | None,
    changes: dict[str, Any],
) -> None:
    job, rejected = of(job, tmp_path, changes)
    code, out, err = job.start({point: f"once:{tmp_path / 'fired'}:{action}"}, **options).wait()
    assert code == 0 and (tmp_path / "fired").exists(), err
    rows, made, resumed = json.loads(out)
    assert (rows, made, resumed) == (len(job.expected()), files or made, False)
    check(Path(job.output), job.expected(), job.here, rejected)


def test_a_shard_is_shared_by_two_workers(job: Job, tmp_path: Path) -> None:
    shared, _ = of(job, tmp_path, ONE_SHARD)
    code, out, err = shared.start().wait()
    assert code == 0, err
    assert out.strip() == f"[{FILES * ROWS}, 2, false]"
    assert len(os.listdir(shared.meets)) == 2
    check(Path(shared.output), shared.expected(), shared.here)


# ---------------------------------------------------------------- twice, and over another output


@pytest.mark.parametrize("point", RECOVER)
def test_killed_again_during_recovery(job: Job, point: str) -> None:
    assert job.start({"publish.rename": "kill@4"}).wait()[0] == -signal.SIGKILL
    published = parts(Path(job.output))
    assert len(published) == 3
    (Path(job.output) / published[1]).unlink()  # so that there is something to revoke
    assert job.start({point: "kill"}).wait()[0] == -signal.SIGKILL
    job.here()
    check(Path(job.output), job.expected(), job.here)


@pytest.mark.parametrize(
    ("point", "passage", "shelves"),
    [*((*at, False) for at in SWAP), ("swap.removed", 1, True), ("publish.rename", 1, True)],
)
def test_overwrite_killed(job: Job, point: str, passage: int, shelves: bool) -> None:
    """``shelves``: what is replaced has its parts in folders."""
    output, job = Path(job.output), replace(job, shelves=shelves)
    job.here()
    before = stamps(output)
    new = Job(job.source, job.output, factor=5)
    driver = new.start({point: f"kill@{passage}"}, mode="overwrite")
    assert driver.wait()[0] == -signal.SIGKILL
    if point in ("journal.synced", "finish.manifest", "swap.recorded"):
        assert stamps(output) == before and rows_of(output) == job.expected()
    finished = point == "finish.closed"
    result = new.here(mode="overwrite" if not finished else "resume")
    assert result.rows == len(new.expected()) and result.resumed
    check(output, new.expected(), new.here)
    assert not list(output.glob("shelf=*"))


@pytest.mark.parametrize(
    ("point", "passage"), [("swap.recorded", 1), ("swap.removed", 1), ("swap.pointed", 1)]
)
def test_a_swap_that_began_is_ended_whatever_is_asked_next(job: Job, point: str, passage: int) -> None:
    job.here()
    new = Job(job.source, job.output, factor=5, limit=250)
    assert new.start({point: f"kill@{passage}"}, mode="overwrite").wait()[0] == -signal.SIGKILL
    new.here()
    check(Path(job.output), new.expected(), new.here)
