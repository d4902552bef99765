"""A run behind a query that is killed, fails, or finds another input: the same rows, and nothing left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from forked import Forked
from headrace import errors
from headrace.annex.report.writing import folder_of
from headrace.core import failpoints
from headrace.output.clean import leftovers

from . import job

QUERIES = Path("out", "_headrace", "queries")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job.write_input(tmp_path)
    return tmp_path


def program(folder: Path, *told: str, what: str = "") -> subprocess.Popen[bytes]:
    text = f"import sys; from annex.queries import job; job.main(*sys.argv[1:]{what})"
    return Forked(
        [sys.executable, "-c", text, str(folder), *told],
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },  # which workers import from
        also="duckdb annex.queries.job",
    )


def check(folder: Path) -> None:
    """The output has each row once, in an order that stays, and nothing else is left."""
    before = sorted(folder.glob("out/*.parquet"))
    result = job.dataset(folder).write_parquet(folder / "out")
    assert result.resumed and sorted(folder.glob("out/*.parquet")) == before
    rows = pq.read_table(folder / "out").to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == job.expected()
    assert hr.verify(folder / "out").good
    assert not (folder / QUERIES).exists()


KILLS = [
    ("journal.append=kill@2", False),  # in the run before the query
    ("journal.append=kill@4", False),
    ("finish.success=kill@1", False),
    ("query.inputs=kill", False),
    ("query.answered=kill", False),
    ("query.synced=kill", False),
    ("query.done=kill", True),
    ("run.opened=kill@3", True),  # the run itself, behind those of both inputs
    ("finish.closed=kill@3", True),
]


@pytest.mark.parametrize(("kill", "answered"), KILLS)
def test_killed_at_any_point(folder: Path, kill: str, answered: bool) -> None:
    process = program(folder, kill)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not list(folder.glob("out/part-*")) or kill.startswith("finish.closed")
    if kill.startswith("query"):
        with pytest.raises(errors.NothingMatched, match="what comes before it"):
            folder_of(folder / "out")
    results = list(folder.joinpath(QUERIES).glob("*/result/answer.json"))
    assert bool(results) == answered
    before = [path.stat().st_ino for path in results]
    if not kill.startswith("finish.closed"):  # what the next driver goes on with
        assert not [each for each in leftovers(folder / "out") if "queries" in each.path]
    job.dataset(folder, keep_queries=True).write_parquet(folder / "out")
    if answered and not kill.startswith("finish"):
        assert [
            path.stat().st_ino for path in folder.joinpath(QUERIES).glob("*/result/answer.json")
        ] == before
    (folder / QUERIES / "keep").unlink(missing_ok=True)
    check(folder)


GROUP_KILLS = [
    *(f"query.{point}=kill" for point in ("inputs", "answered", "synced", "done")),
    *(f"run.opened=kill@{number}" for number in (1, 2)),  # the run before the query, and the run itself
    *(f"journal.append=kill@{number}" for number in (2, 4, 6)),
    *(f"publish.renamed=kill@{number}" for number in (1, 2)),
    "finish.closed=kill@2",
]
IN_STEPS = ["group-0", "group-57", "group-99", "behind"]  # what runs there is killed: the driver, or a worker


@pytest.mark.parametrize(
    ("kill", "engine"),
    [*((kill, "inline") for kill in GROUP_KILLS + IN_STEPS), *((kill, "local") for kill in IN_STEPS)],
)
def test_killed_in_groups_and_behind_them(folder: Path, kill: str, engine: str) -> None:
    told = [kill] if "=" in kill else []
    if not told:
        (folder / kill).touch()
    process = program(folder, *told, f"engine={engine}", what=", text=''")
    _, said = process.communicate(timeout=60)
    dies = engine == "inline" or bool(told)  # else it is a worker that dies, and the run goes on
    assert process.returncode == (-signal.SIGKILL if dies else 0) and not (folder / kill).exists(), said
    result = job.grouped(folder).write_parquet(folder / "out")
    assert result.ledger.gathered == job.ROWS and result.ledger.read == job.KEYS
    rows = pq.read_table(folder / "out").to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == job.expected_of_groups()
    assert hr.verify(folder / "out").good and not (folder / QUERIES).exists()


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_until_it_is_done(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        process = program(folder, f"engine={chance.choice(['local', 'inline'])}")
        time.sleep(chance.random() * 1.5)  # a moment, whichever it is
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL)
        if process.returncode == 0:
            break
    job.dataset(folder).write_parquet(folder / "out")
    check(folder)


def test_a_changed_input_is_another_plan(folder: Path) -> None:
    process = program(folder, "journal.append=kill@12")
    process.communicate(timeout=60)
    zones = folder / "zones.csv"
    os.utime(zones, ns=(1, 1))
    with pytest.raises(errors.PlanChanged, match=r"zones, its files was '1 file, state .*mode='overwrite'"):
        job.dataset(folder).write_parquet(folder / "out")
    result = job.dataset(folder).write_parquet(folder / "out", mode="overwrite")
    assert result.rows == len(job.expected())
    check(folder)


def test_changed_text_and_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job.dataset(folder).write_parquet(folder / "out")
    with pytest.raises(errors.PlanChanged, match=r"the input: text was 'SELECT id.*is 'SELECT id, name, 1.0"):
        job.dataset(
            folder, "SELECT id, name, 1.0::DOUBLE AS km FROM rides JOIN zones USING (zone)"
        ).write_parquet(folder / "out")
    other: Any = lambda batch: {**batch, "km": batch["id"] * 1.5}  # noqa: E731
    monkeypatch.setattr(job, "longer", other)
    with pytest.raises(errors.PlanChanged, match="The code of map_batches"):
        job.dataset(folder).write_parquet(folder / "out")
    with pytest.raises(errors.PlanChanged, match=r"before a query.*on_change='restart'"):
        job.dataset(folder).write_parquet(folder / "out", on_change="continue")
    result = job.dataset(folder).write_parquet(folder / "out", on_change="restart")
    assert result.rows == len(job.expected()) and not (folder / QUERIES).exists()
    assert pq.read_table(folder / "out")["fare"].to_pylist() != [row["fare"] for row in job.expected()]


def test_a_result_that_is_gone_is_not_made_twice(folder: Path) -> None:
    """Rows that are written are of the result that was there: another one may have another order."""
    process = program(folder, "publish.renamed=kill@4")
    process.communicate(timeout=60)
    assert list(folder.glob("out/*.parquet"))
    for path in folder.joinpath(QUERIES).glob("*/result/*"):
        path.unlink()
    with pytest.raises(errors.InputChanged, match="changed, or is gone, since rows"):
        job.dataset(folder, "SELECT id, name, km FROM rides JOIN zones USING (zone)").write_parquet(
            folder / "out"
        )


@pytest.mark.parametrize("point", ["query.answered", "query.synced"])
def test_a_full_folder_is_our_error(folder: Path, point: str) -> None:
    failpoints.activate({point: "ENOSPC"})
    try:
        with pytest.raises(errors.OutputWriteFailed):
            job.dataset(folder).write_parquet(folder / "out")
    finally:
        failpoints.activate({})
    assert not list(folder.glob("out/part-*"))
    job.dataset(folder).write_parquet(folder / "out")
    check(folder)


def test_what_is_made_before_a_query_that_fails_is_kept(folder: Path) -> None:
    text = "SELECT id, name::INT::VARCHAR AS name, km FROM rides JOIN zones USING (zone)"
    with pytest.raises(errors.SourceError, match="DuckDB failed in the query: Conversion Error"):
        job.dataset(folder, text).write_parquet(folder / "out")
    (before,) = folder.joinpath(QUERIES).glob("*/input-0/_SUCCESS")
    assert not list(folder.joinpath(QUERIES).glob("*/made")) and not list(folder.glob("out/part-*"))
    inode = before.stat().st_ino
    with pytest.raises(errors.SourceError):
        job.dataset(folder, text).write_parquet(folder / "out")
    assert before.stat().st_ino == inode
    job.dataset(folder).write_parquet(folder / "out")
    check(folder)
    with pytest.raises(errors.SourceError):
        hr.sql("SELECT 'a'::INT AS x FROM t", t=hr.read_parquet(folder / "rides")).write_parquet(
            folder / "new"
        )
    assert not (folder / "new").exists()


def test_too_little_memory_is_our_error(folder: Path) -> None:
    text = "SELECT id, string_agg(repeat(name, 2000), '') AS name, 1.0::DOUBLE AS km FROM rides, zones GROUP BY id"
    with pytest.raises(errors.OutOfMemory, match="DuckDB cannot answer the query within 64 MiB, its part"):
        job.dataset(folder, text, memory_limit="64MiB").write_parquet(folder / "out")
    assert not list(folder.glob("out/part-*"))


def test_the_driver_folder_of_a_read_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    assert job.dataset(folder).count() == len(job.expected())
    assert len(job.dataset(folder).take(3)) == 3
    assert not list(place.iterdir())
