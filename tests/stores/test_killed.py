"""kill -9 of a driver that writes to an S3 server; the next one has nothing but what is in the bucket."""

import dataclasses
import random
import signal

import pytest

import headrace as hr
from faults.job import FILES, ROWS, Job, make_input, write_input
from stores import outputs

# One driver after the other, each killed at its point; the last one ends the run.
LIVES = [
    [("plan.written", 1), ("run.opened", 1), ("store.upload", 3), ("store.appended", 2)],
    [("store.uploaded", 4), ("recover.opened", 1), ("store.append", 1), ("finish.success", 1)],
    [("finish.closed", 1), ("store.appended", 1)],
]
ELSEWHERE = [  # workers upload by themselves
    [("worker.upload", 1), ("worker.uploaded", 4), ("store.uploaded", 3), ("publish.rename", 2)],
    [("publish.renamed", 3), ("store.append", 1), ("recover.opened", 1), ("finish.success", 1)],
]
SWAPS = [
    (False, [("store.uploaded", 3), ("swap.recorded", 1), ("publish.rename", 2)]),
    (False, [("swap.removed", 1), ("swap.pointed", 1)]),
    (True, [("worker.uploaded", 3), ("store.appended", 2), ("swap.recorded", 1), ("publish.renamed", 3)]),
]


@pytest.fixture
def job(bucket, tmp_path):
    source = make_input(tmp_path / "in")
    return Job(str(source), f"{bucket.url}/out", options={"engine": "inline"})


def killed(job, point, passage, **options):
    code, _, err = job.start({point: f"kill@{passage}"}, **options).wait()
    assert code in (-signal.SIGKILL, 0), err  # 0: it never came so far, as earlier lives did the work
    return code != 0


@pytest.mark.parametrize(
    ("points", "elsewhere"), [*((each, False) for each in LIVES), *((each, True) for each in ELSEWHERE)]
)
def test_killed_again_and_again(job, bucket, tmp_path, points, elsewhere):
    job = dataclasses.replace(job, elsewhere=elsewhere)
    died = [killed(job, point, passage) for point, passage in points]
    assert died[0] and sum(died) > 1
    assert job.here().rows == FILES * ROWS
    assert not [name for name in outputs.names(bucket) if "/parts/" in name]
    outputs.check(bucket, job.expected(), job.here, tmp_path)


@pytest.mark.parametrize(("elsewhere", "points"), SWAPS)
def test_an_overwrite_killed_again_and_again(job, bucket, tmp_path, elsewhere, points):
    """Until all new parts are there, the old ones are the output."""
    job.here()
    before, swapping = outputs.tags(bucket), False
    new = dataclasses.replace(job, factor=5, elsewhere=elsewhere)
    for point, passage in points:
        died = killed(new, point, passage, mode="overwrite")
        swapping |= died and point.startswith(("swap.", "publish.")) and point != "swap.recorded"
        assert swapping or outputs.tags(bucket) == before
    assert swapping
    assert new.here(mode="overwrite").rows == FILES * ROWS
    assert not [name for name in outputs.names(bucket) if "/parts/" in name]
    outputs.check(bucket, new.expected(), new.here, tmp_path)


def test_a_further_run_killed_again_and_again(job, bucket, tmp_path):
    """Until all of its parts are there, the bucket is what it was; then the store copies them, and says so."""
    first = job.here(incremental=True)
    kept, before = job.expected(), outputs.tags(bucket)
    write_input(tmp_path / "in", 8, range(8_000, 8_000 + ROWS))
    write_input(tmp_path / "in", 9, range(9_000, 9_000 + ROWS))
    for point, passage in [("store.uploaded", 1), ("store.append", 3), ("swap.recorded", 1)]:
        assert killed(job, point, passage, incremental=True)
        assert outputs.tags(bucket) == before
    verified = hr.verify(job.output)
    assert verified.good and verified.rows == len(kept) and "further run" in verified.note
    assert killed(job, "publish.rename", 2, incremental=True)
    there = outputs.copied(bucket, tmp_path / "there")
    assert not (there / "_SUCCESS").exists() and outputs.invariants.rows_of(there)[: len(kept)] == kept
    result = job.here(incremental=True)
    assert [run["run"] for run in result.runs] == [first.run, f"{first.run}-2"]
    outputs.check(bucket, job.expected(), lambda: job.here(incremental=True), tmp_path)


def test_folders_and_rows_that_were_set_aside(job, bucket, tmp_path):
    job = dataclasses.replace(job, bad=50, shelves=True)
    assert killed(job, "store.uploaded", 7)
    rejected = [i for i in range(FILES * ROWS) if job.fails(i)]
    assert job.here().rejected == len(rejected)
    outputs.check(bucket, job.expected(), job.here, tmp_path, rejected=rejected)


def test_metrics_whose_states_no_record_holds(job, bucket):
    job = dataclasses.replace(job, metrics=True)
    assert killed(job, "store.appended", 3)
    assert job.here().metrics["ids"] == {"rows": FILES * ROWS, "total": sum(range(FILES * ROWS))}
    assert "states" in {name.split("/")[2] for name in outputs.names(bucket) if name.count("/") > 2}


def test_workers_of_their_own(job, bucket, tmp_path):
    job = dataclasses.replace(job, options={"engine": "local", "workers": 2})
    assert killed(job, "store.uploaded", 3)
    assert job.here(engine="local").rows == FILES * ROWS
    outputs.check(bucket, job.expected(), job.here, tmp_path)


def play(bucket, proxy, tmp_path, seed):
    """One round: maybe an older output; drivers killed at some request of theirs; a store that fails now and then."""
    dice = random.Random(seed)
    source = tmp_path / "in"
    if not source.exists():
        make_input(source)
    mode = dice.choice(["resume", "overwrite"])
    job = Job(
        str(source),
        f"{bucket.url}/out-{seed}",
        limit=dice.choice([None, None, 330]),
        elsewhere=bool(seed % 2),
        options={"mode": mode},
    )
    if mode == "overwrite":
        dataclasses.replace(job, factor=11, elsewhere=False, options={}).here()
    engine = dice.choice([{"workers": 2}, {"engine": "inline"}])

    def fault(asked):
        if dice.random() > 0.05:
            return None
        return dice.choice([503, 429, "drop", "lost"] if asked.method == "PUT" else [503, "drop"])

    proxy.fault = fault
    for _ in range(dice.randint(1, 3)):
        goal = len(proxy.asked) + dice.randint(1, 60)
        driver = job.start(**engine)
        driver.until(lambda: len(proxy.asked) >= goal)  # noqa: B023
        driver.process.kill()
        code, _, err = driver.wait()
        assert code in (0, -signal.SIGKILL), err
    assert job.here().rows == len(job.expected())
    proxy.fault = lambda asked: None
    outputs.check(bucket, job.expected(), lambda: job.here(mode="resume"), tmp_path, folder=f"out-{seed}")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(201))
def test_soak(bucket, proxy, tmp_path, seed):
    play(bucket, proxy, tmp_path, seed)
