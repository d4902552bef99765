"""Limits, runs without rows, lost parts, leftovers: what a run that is taken up has to get right."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import (
    ForeignOutput,
    HeadraceError,
    JournalDamaged,
    PlanChanged,
)

from .invariants import check, parts, rows_of, stamps
from .job import FILES, ROWS, Job

# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("limit", [0, 1, 100, 250, 800, 5000])
def test_limit(job: Job, limit: int) -> None:
    job = Job(job.source, job.output, limit=limit)
    assert job.here().rows == min(limit, FILES * ROWS)
    check(Path(job.output), job.expected(), job.here)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_limit_with_a_lost_part(job: Job, lost: int) -> None:
    job = Job(job.source, job.output, limit=250)
    job.here()
    os.unlink(Path(job.output) / parts(Path(job.output))[lost])
    job.here()
    check(Path(job.output), job.expected(), job.here)


# ---------------------------------------------------------------- no rows


def test_empty_shards_write_no_part(job: Job) -> None:
    job = Job(job.source, job.output, first=400)
    result = job.here()
    assert result.files == FILES // 2 and result.rows == 400
    check(Path(job.output), job.expected(), job.here)


# ---------------------------------------------------------------- lost and left over


def cut(job: Job, passage: int) -> None:
    """End a run after it has published so many parts; killed ones are in test_kill.py."""
    with pytest.raises(HeadraceError):
        job.here({"publish.renamed": f"EIO@{passage}"})


@pytest.mark.parametrize("harm", ["unlink", "truncate", "grow"])
def test_a_lost_part_is_made_again(job: Job, harm: str) -> None:
    first = job.here()
    success = (Path(job.output) / "_SUCCESS").stat().st_mtime_ns
    part = Path(job.output) / parts(Path(job.output))[3]
    if harm == "unlink":
        part.unlink()
    else:
        data = part.read_bytes()
        part.write_bytes(data[:-1] if harm == "truncate" else data + b"x")
    second = job.here()
    assert second.run == first.run and second.rows == first.rows and second.ledger == first.ledger
    assert (Path(job.output) / "_SUCCESS").stat().st_mtime_ns > success
    check(Path(job.output), job.expected(), job.here)


def test_a_shard_with_a_lost_file_is_revoked_whole(job: Job) -> None:
    job, output = replace(job, shelves=True), Path(job.output)
    job.here()
    before = stamps(output)
    lost = sorted(output.glob("shelf=1/part-*"))[2]
    lost.unlink()
    job.here()
    check(output, job.expected(), job.here)
    after = stamps(output)
    others = [name for name in before if not name.endswith((lost.name, "_SUCCESS"))]
    assert after.keys() == before.keys() and len(others) == 3 * (FILES - 1)
    assert all(after[name] == before[name] for name in others)
    shutil.rmtree(output / "shelf=2")  # a folder that is lost
    job.here()
    check(output, job.expected(), job.here)


@pytest.mark.parametrize("name", ["_SUCCESS", "manifest"])
def test_a_lost_mark_is_made_again(job: Job, name: str) -> None:
    run = job.here().run
    os.unlink(Path(job.output) / (name if name == "_SUCCESS" else f"_headrace/{run}/manifest"))
    job.here()
    check(Path(job.output), job.expected(), job.here)


def test_leftovers_are_swept(job: Job) -> None:
    cut(job, 4)
    home = Path(job.output) / "_headrace"
    run = (home / "current").read_text().strip()
    (home / run / "staging" / "00099-0-1-aa.staged").write_bytes(b"zombie")
    (home / run / "manifest.1.tmp").write_bytes(b"half")
    (home / "current.1.tmp").write_bytes(b"half")
    (home / "abcdefgh").mkdir()
    (home / "abcdefgh" / "plan").write_bytes(b"old")
    (Path(job.output) / f"part-00007-{run}.parquet").write_bytes(b"never committed")
    job.here()
    check(Path(job.output), job.expected(), job.here)


def test_resumes_with_other_workers_sizes_and_durability(job: Job) -> None:
    cut(job, 2)
    result = job.here(durability="process", workers=1, shard_rows=17)
    assert result.resumed and result.files == FILES
    check(Path(job.output), job.expected(), job.here)


def test_an_output_that_was_moved_is_still_the_run(job: Job, tmp_path: Path) -> None:
    cut(job, 2)
    shutil.move(job.output, tmp_path / "moved")
    moved = Job(job.source, str(tmp_path / "moved"))
    assert moved.here().resumed
    check(Path(moved.output), moved.expected(), moved.here)


# ---------------------------------------------------------------- refusals


def test_another_shape_is_refused_with_a_diff(job: Job) -> None:
    job.here()
    before = stamps(Path(job.output))
    with pytest.raises(PlanChanged, match=r"its steps were .*limit") as caught:
        Job(job.source, job.output, limit=9).here()
    assert "\n" not in str(caught.value)
    assert stamps(Path(job.output)) == before


def test_changed_code_is_refused_with_the_words_to_add(job: Job) -> None:
    with pytest.raises(HeadraceError):
        job.here({"attempt.started": "EIO@4"})
    published = rows_of(Path(job.output))
    assert ROWS < len(published) < FILES * ROWS
    new = Job(job.source, job.output, factor=5)
    with pytest.raises(PlanChanged) as caught:
        new.here()
    assert "on_change='continue'" in str(caught.value) and "on_change='restart'" in str(caught.value)
    assert "map_batches(times)" in str(caught.value)
    result = new.here(on_change="continue")
    assert result.resumed
    rows = rows_of(Path(job.output))
    assert [row["id"] for row in rows] == [row["id"] for row in new.expected()]
    old = {row["id"]: row for row in published}
    assert rows == [old.get(row["id"], row) for row in new.expected()]


@pytest.mark.parametrize("name", ["plan", "journal"])
@pytest.mark.parametrize("harm", ["gone", "flipped"])
def test_damage_to_what_is_known_is_refused(job: Job, name: str, harm: str) -> None:
    run = job.here().run
    path = Path(job.output) / "_headrace" / run / name
    data = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    else:
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
    before = stamps(Path(job.output))
    with pytest.raises(JournalDamaged) as caught:
        job.here()
    assert "\n" not in str(caught.value)
    assert stamps(Path(job.output)) == before


# ---------------------------------------------------------------- the schema


@pytest.mark.parametrize("values", [[None, None, 2.5, None], [None, None]])
def test_a_null_column_waits_for_a_type(tmp_path: Path, values: list[Any]) -> None:
    def run() -> hr.Result:
        data = hr.read_parquet(str(tmp_path / "in")).map_batches(items, version="1")
        data = data.with_options(progress=False, engine="inline", shard_rows=3)
        return data.write_parquet(tmp_path / "out")

    def items(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "v": [values[i] for i in batch["id"]]}

    (tmp_path / "in").mkdir()
    for number in range(len(values)):
        pq.write_table(pa.table({"id": [number] * 3}), tmp_path / f"in/{number}.parquet")
    run()
    rows = [{"id": number, "v": value} for number, value in enumerate(values) for _ in range(3)]
    check(tmp_path / "out", rows, run)


def test_a_foreign_file_that_came_meanwhile(job: Job) -> None:
    cut(job, 3)
    foreign = Path(job.output) / "part-00001-other.parquet"
    foreign.write_bytes(b"x")
    with pytest.raises(ForeignOutput, match="part-00001-other"):
        job.here()
    foreign.unlink()
    job.here()
    check(Path(job.output), job.expected(), job.here)
