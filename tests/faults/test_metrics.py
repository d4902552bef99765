"""Metrics of runs that were killed are those of a run that was not, to the last bit."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import JournalDamaged, PlanChanged

from .invariants import rows_of
from .job import Job


@pytest.fixture
def counted(job: Job) -> Job:
    return replace(job, metrics=True)


def clean(job: Job, folder: Path) -> str:
    """What the report of an undisturbed run in this process says."""
    other = replace(job, output=str(folder / "clean"))
    other.here()
    return metrics_in(other)


def metrics_in(job: Job) -> str:
    return json.dumps(job.metrics_of())


def check(job: Job, expected: str) -> None:
    """The metrics are these, and those of exactly the rows that are there; asking again tells the same."""
    assert metrics_in(job) == expected
    rows = rows_of(Path(job.output))
    assert rows == job.expected()
    found = job.metrics_of()
    assert found["rows"] == len(rows) == found["ids"]["rows"]
    assert found["ids"]["total"] == sum(row["id"] for row in rows)
    assert found["product"] == math.fsum(row["product"] for row in rows) / len(rows)
    assert found["tenths"] == math.fsum(row["id"] * 0.1 for row in rows)
    again = job.here()
    assert (again.metrics["tenths"], again.metrics["auc"]) == (found["tenths"], found["auc"])


def states(job: Job) -> list[Path]:
    return sorted(Path(job.output).glob("_headrace/*/states/*"))


def test_killed_again_and_again(counted: Job, tmp_path: Path) -> None:
    expected = clean(counted, tmp_path)
    points = {  # each is passed, however much the drivers before got done
        "state.written": "kill-driver@2",
        "journal.synced": "kill@1",
        "publish.renamed": "kill@1",
        "finish.manifest": "kill@1",
        "finish.success": "kill@1",
    }
    for point, fault in points.items():
        code, _, err = counted.start({point: fault}).wait()
        assert code == -signal.SIGKILL, (point, err)
    counted.here()
    check(counted, expected)
    assert len(states(counted)) == 8, "one for each shard, and nothing else"


@pytest.mark.parametrize(("staged", "point"), [(False, "state.written"), (True, "attempt.batch")])
def test_worker_killed(counted: Job, tmp_path: Path, staged: bool, point: str) -> None:
    expected = clean(counted, tmp_path)
    job = replace(counted, staged=staged)
    code, _, err = job.start({point: f"once:{tmp_path / point}:kill@2"}).wait()
    assert code == 0 and (tmp_path / point).exists(), err
    check(job, expected)


@pytest.mark.parametrize(("limit", "bad", "first"), [(333, 0, 55), (None, 50, 123), (250, 30, 0)])
@pytest.mark.parametrize("staged", [False, True])
def test_only_rows_that_are_written_count(
    counted: Job, tmp_path: Path, limit: int | None, bad: int, first: int, staged: bool
) -> None:
    job = replace(counted, limit=limit, bad=bad, first=first, staged=staged)
    job.here(**{"engine": "local", "workers": 2} if staged else {})
    check(job, clean(replace(job, staged=False), tmp_path))


def test_a_shard_that_is_lost_takes_its_metrics_with_it(counted: Job) -> None:
    counted.here()
    before = metrics_in(counted)
    sorted(Path(counted.output).glob("part-*"))[3].unlink()
    assert counted.here().resumed
    check(counted, before)
    states(counted)[2].unlink()
    counted.here()
    check(counted, before)
    assert len(states(counted)) == 8


def test_a_state_that_is_damaged_is_not_counted(counted: Job) -> None:
    counted.here()
    data = bytearray(states(counted)[5].read_bytes())
    data[100] ^= 1
    states(counted)[5].write_bytes(data)
    with pytest.raises(JournalDamaged, match=r"the state of a metric, is damaged"):
        counted.here()


def test_other_metrics_are_another_plan(counted: Job) -> None:
    counted.here()
    data = counted.dataset(engine="inline")
    import headrace as hr

    with pytest.raises(PlanChanged, match="another plan"):
        data.accumulate(more=hr.Count()).write_parquet(counted.output)
    changed: dict[str, Any] = {"product": hr.Mean("product", nan="count")}
    plan = replace(counted, metrics=False).dataset(engine="inline")
    with pytest.raises(PlanChanged, match="another plan"):
        plan.accumulate(**changed).write_parquet(counted.output)
