"""kill -9 of the driver and of workers at every named point; running again gives exactly the rows."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

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


@pytest.mark.parametrize(("point", "passage"), DRIVER)
def test_driver_killed(job: Job, point: str, passage: int) -> None:
    code, _, err = job.start({point: f"kill@{passage}"}).wait()
    assert code == -signal.SIGKILL, err
    result = job.here()
    assert result.rows == len(job.expected())
    check(Path(job.output), job.expected(), job.here)


@pytest.mark.parametrize("point", WORKER)
def test_driver_killed_while_a_worker_stands_at(job: Job, point: str) -> None:
    code, _, err = job.start({point: "kill-driver@2"}).wait()
    assert code == -signal.SIGKILL, err
    job.here()
    check(Path(job.output), job.expected(), job.here)


@pytest.mark.parametrize("point", WORKER)
def test_worker_killed(job: Job, tmp_path: Path, point: str) -> None:
    code, out, err = job.start({point: f"once:{tmp_path / 'fired'}:kill@2"}).wait()
    assert code == 0, err
    assert (tmp_path / "fired").exists()
    assert out.strip() == f"[{len(job.expected())}, {FILES}, false]"
    check(Path(job.output), job.expected(), job.here)


@pytest.mark.parametrize(
    ("at", "combined"),
    crossed(
        [
            ("journal.append", 1, False),
            ("journal.synced", 2, False),
            ("publish.rename", 6, True),
            ("finish.success", 1, True),
        ],
        ["union", "zip"],
    ),
)
def test_driver_of_two_datasets_killed(job: Job, combined: str, at: tuple[str, int, bool]) -> None:
    point, passage, staged = at
    united = replace(job, combined=combined, staged=staged)
    code, _, err = united.start({point: f"kill@{passage}"}).wait()
    assert code == -signal.SIGKILL, err
    result = united.here()
    assert result.rows == FILES * ROWS
    check(Path(job.output), job.expected(), united.here)


@pytest.mark.parametrize(
    ("at", "combined"),
    crossed([("attempt.batch", False), ("block.made", True), ("stage.write", True)], ["union", "zip"]),
)
def test_worker_of_two_datasets_killed(job: Job, tmp_path: Path, combined: str, at: tuple[str, bool]) -> None:
    point, staged = at
    united = replace(job, combined=combined, staged=staged, bad=50)
    rejected = [i for i in range(FILES * ROWS) if united.fails(i)]
    code, _, err = united.start({point: f"once:{tmp_path / 'fired'}:kill@2"}).wait()
    assert code == 0, err
    assert (tmp_path / "fired").exists()
    check(Path(job.output), united.expected(), united.here, rejected)


@pytest.mark.parametrize(("at", "anew"), crossed(PARTING, [True, False]))
def test_driver_killed_where_shards_are_parted(job: Job, at: tuple[str, int], anew: bool) -> None:
    point, passage = at
    code, _, err = job.start({point: f"kill@{passage}"}, commit_every=1e-9).wait()
    assert code == -signal.SIGKILL, err
    options = {"commit_every": 1e-9} if anew else {}  # both drivers part shards, or the first alone
    result = job.here(**options)
    assert result.rows == len(job.expected()) and (result.files > FILES or not anew)
    check(Path(job.output), job.expected(), job.here)


def test_worker_killed_where_shards_are_parted(job: Job, tmp_path: Path) -> None:
    fault = {"attempt.parted": f"once:{tmp_path / 'fired'}:kill@4"}
    code, out, err = job.start(fault, commit_every=1e-9).wait()
    assert code == 0, err
    assert (tmp_path / "fired").exists()
    assert out.strip() == f"[{len(job.expected())}, {4 * FILES}, false]"  # batches of 30 rows, of 100
    check(Path(job.output), job.expected(), job.here)


@pytest.fixture
def shared(job: Job, tmp_path: Path) -> Job:
    """A job of one shard, which the two workers share."""
    (tmp_path / "met").mkdir()
    return replace(job, meets=str(tmp_path / "met"), options={"shard_rows": FILES * ROWS})


def test_a_shard_is_shared_by_two_workers(shared: Job) -> None:
    code, out, err = shared.start().wait()
    assert code == 0, err
    assert out.strip() == f"[{FILES * ROWS}, 2, false]"
    assert len(os.listdir(shared.meets)) == 2
    check(Path(shared.output), shared.expected(), shared.here)


SHARED = [
    ("attempt.left", "kill-driver"),
    ("attempt.parted", "kill-driver"),
    ("shard.divided", "kill"),
    ("journal.append", "kill@3"),
    ("journal.synced", "kill@3"),
    ("journal.append", "kill@4"),
    ("publish.rename", "kill@2"),
]


@pytest.mark.parametrize(("at", "anew"), crossed(SHARED, [True, False]))
def test_driver_killed_where_a_shard_is_shared(shared: Job, at: tuple[str, str], anew: bool) -> None:
    point, action = at
    code, _, err = shared.start({point: action}).wait()
    assert code == -signal.SIGKILL, err
    result = shared.here(commit_every=1e-9 if anew else None)  # the rest may be parted again
    assert result.rows == FILES * ROWS
    check(Path(shared.output), shared.expected(), shared.here)


@pytest.mark.parametrize("point", ["attempt.left", "attempt.parted", "stage.closed"])
def test_worker_killed_where_a_shard_is_shared(shared: Job, tmp_path: Path, point: str) -> None:
    code, out, err = shared.start({point: f"once:{tmp_path / 'fired'}:kill"}).wait()
    assert code == 0, err
    assert (tmp_path / "fired").exists()
    assert out.startswith(f"[{FILES * ROWS}, ")
    check(Path(shared.output), shared.expected(), shared.here)


def test_rows_that_were_set_aside_where_shards_are_parted(job: Job) -> None:
    picky = replace(
        job, bad=50, options={"shard_rows": 4 * ROWS}
    )  # batches of 30 and of 25 rows: parted at 150
    rejected = [i for i in range(FILES * ROWS) if picky.fails(i)]
    code, _, err = picky.start({"attempt.parted": "kill-driver@2"}, commit_every=1e-9).wait()
    assert code == -signal.SIGKILL, err
    assert picky.here(commit_every=1e-9).rejected == len(rejected)
    check(Path(picky.output), picky.expected(), picky.here, rejected)


@pytest.mark.parametrize(
    ("point", "passage"), crossed([*MAKER, "attempt.started", "attempt.batch", "stage.closed"], [1, 3])
)
def test_worker_of_either_stage_killed(staged: Job, tmp_path: Path, point: str, passage: int) -> None:
    code, out, err = staged.start({point: f"once:{tmp_path / 'fired'}:kill@{passage}"}).wait()
    assert code == 0, err
    assert (tmp_path / "fired").exists()
    assert out.strip() == f"[{len(staged.expected())}, {FILES}, false]"
    check(Path(staged.output), staged.expected(), staged.here)


@pytest.mark.parametrize("point", [*MAKER, "attempt.batch", "journal.synced"])
def test_driver_of_stages_killed(staged: Job, point: str) -> None:
    action = "kill@3" if point == "journal.synced" else "kill-driver@2"
    code, _, err = staged.start({point: action}).wait()
    assert code == -signal.SIGKILL, err
    staged.here()
    check(Path(staged.output), staged.expected(), staged.here)


@pytest.mark.parametrize(
    ("point", "action", "staging"),
    [
        ("attempt.batch", "kill-driver@4", False),
        ("attempt.batch", "kill-driver@4", True),
        ("stage.closed", "kill-driver@3", False),
        ("stage.sync", "kill-driver@4", True),
        ("journal.synced", "kill@3", False),
        ("journal.synced", "kill@3", True),
        ("publish.rename", "kill@1", False),
        ("publish.rename", "kill@2", True),
        ("publish.renamed", "kill@3", False),
        ("finish.manifest", "kill@1", False),
        ("finish.success", "kill@1", True),
    ],
)
def test_rows_that_were_set_aside_outlive_any_crash(job: Job, point: str, action: str, staging: bool) -> None:
    picky = replace(job, bad=50, staged=staging)
    rejected = [i for i in range(FILES * ROWS) if picky.fails(i)]
    code, _, err = picky.start({point: action}).wait()
    assert code == -signal.SIGKILL, err
    assert picky.here().rejected == len(rejected)
    check(Path(picky.output), picky.expected(), picky.here, rejected)


@pytest.mark.parametrize("point", RECOVER)
def test_killed_again_during_recovery(job: Job, point: str) -> None:
    assert job.start({"publish.rename": "kill@4"}).wait()[0] == -signal.SIGKILL
    published = parts(Path(job.output))
    assert len(published) == 3
    (Path(job.output) / published[1]).unlink()  # so that there is something to revoke
    assert job.start({point: "kill"}).wait()[0] == -signal.SIGKILL
    job.here()
    check(Path(job.output), job.expected(), job.here)


@pytest.mark.parametrize(("point", "passage"), SWAP)
def test_overwrite_killed(job: Job, point: str, passage: int) -> None:
    output = Path(job.output)
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


@pytest.mark.parametrize(
    ("point", "passage"), [("swap.recorded", 1), ("swap.removed", 1), ("swap.pointed", 1)]
)
def test_a_swap_that_began_is_ended_whatever_is_asked_next(job: Job, point: str, passage: int) -> None:
    job.here()
    new = Job(job.source, job.output, factor=5, limit=250)
    assert new.start({point: f"kill@{passage}"}, mode="overwrite").wait()[0] == -signal.SIGKILL
    new.here()
    check(Path(job.output), new.expected(), new.here)
