"""Input files that come after a run was planned: left out, or taken in as further shards, never twice."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import HeadraceError, InputChanged
from headrace.result import Result

from .invariants import check, parts, rows_of, stamps
from .job import FILES, ROWS, Job, write_input

GO_ON = {"on_change": "continue"}


@pytest.fixture
def job(source: Path, tmp_path: Path) -> Job:
    folder = tmp_path / "in"
    shutil.copytree(source, folder)
    return Job(str(folder), str(tmp_path / "out"))


def come(job: Job) -> list[dict[str, int]]:
    """Put two files in, one before all others by its name; return the rows that the output should have then."""
    write_input(Path(job.source), 8, range(8000, 8000 + ROWS))
    first = write_input(Path(job.source), 9, range(9000, 9050))
    first.rename(first.with_name("a-first.parquet"))
    ids = [*range(FILES * ROWS), *range(9000, 9050), *range(8000, 8000 + ROWS)]
    return [{"id": i, "product": i * job.factor} for i in ids][: job.limit]


def quietly(run: Callable[[], Result]) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return run()


def test_a_file_that_came_after_the_dataset_was_looked_at_is_in_the_plan(job: Job, tmp_path: Path) -> None:
    """Its plan has the files of which its shards are, which were listed again; else they would have other numbers."""
    mended = tmp_path / "mended"

    def work(batch: dict[str, Any]) -> dict[str, Any]:
        if not mended.exists() and (batch["id"] == 3 * ROWS).any():
            raise ValueError("not yet")
        return {"id": batch["id"]}

    def data() -> hr.Dataset:
        found = hr.read_parquet(job.source).map_batches(work, version="1")
        return found.with_options(engine="inline", progress=False, shard_rows=ROWS)

    looked_at = data()
    assert "id" in looked_at.schema().names
    come(job)
    with pytest.raises(HeadraceError, match="not yet"):
        looked_at.write_parquet(job.output)
    assert parts(Path(job.output))
    mended.touch()
    result = quietly(lambda: data().write_parquet(job.output))
    assert result.resumed and not result.left_out
    ids = [row["id"] for row in hr.read_parquet(job.output).with_options(engine="inline").take_all()]
    assert ids == [*range(9000, 9050), *range(FILES * ROWS), *range(8000, 8000 + ROWS)]


@pytest.mark.parametrize("end", ["finished", "failed"])
def test_the_message_names_the_word_and_the_word_works(job: Job, end: str) -> None:
    if end == "failed":
        with pytest.raises(HeadraceError):
            job.here({"attempt.started": "EIO@4"})
    else:
        job.here()
    before = stamps(Path(job.output)) if end == "finished" else {}
    expected = come(job)
    if end == "finished":
        with pytest.warns(UserWarning, match=r"2 input files are new.*on_change='continue'"):
            assert len(job.here().left_out) == 2
        assert stamps(Path(job.output)) == before
    result = quietly(lambda: job.here(**GO_ON))
    assert result.resumed and not result.left_out
    check(Path(job.output), expected, lambda: quietly(job.here))
    kept = stamps(Path(job.output))
    assert all(kept[name] == stamp for name, stamp in before.items() if name != "_SUCCESS")


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ("journal.append", GO_ON),
        ("journal.synced", {}),  # what is recorded needs no word any more
        ("attempt.started", {}),
        ("publish.renamed", {}),
        ("finish.manifest", {}),
    ],
)
def test_a_driver_that_ends_while_it_takes_them_in(job: Job, point: str, words: dict[str, str]) -> None:
    """What was complete before stays so until the new parts are on their way into the folder."""
    job.here()
    before, expected = stamps(Path(job.output)), come(job)
    with pytest.raises((HeadraceError, OSError)):
        job.here({point: "EIO"}, **GO_ON)
    late = point in ("publish.renamed", "finish.manifest")
    assert (Path(job.output) / "_SUCCESS").exists() != late
    if not late:
        assert stamps(Path(job.output)) == before and hr.verify(job.output).good
    quietly(lambda: job.here(**words))
    check(Path(job.output), expected, lambda: quietly(job.here))


def test_with_other_code_the_new_files_are_made_by_it(job: Job) -> None:
    job.here()
    expected = come(job)
    new = replace(job, factor=5)
    new.here(**GO_ON)
    old = FILES * ROWS
    made = [{"id": row["id"], "product": row["id"] * 5} for row in expected[old:]]
    assert rows_of(Path(job.output)) == expected[:old] + made


@pytest.mark.parametrize("limit", [150, FILES * ROWS + 20])
def test_a_limit_counts_over_all_files_in_their_order(job: Job, limit: int) -> None:
    job = replace(job, limit=limit)
    job.here()
    expected = come(job)
    job.here(**GO_ON)
    check(Path(job.output), expected, lambda: job.here(**GO_ON))


def test_an_output_without_rows_gets_some(job: Job) -> None:
    job = replace(job, first=8_000)
    assert job.here().rows == 0 and len(parts(Path(job.output))) == 1
    expected = [row for row in come(job) if row["id"] >= 8_000]
    job.here(**GO_ON)
    check(Path(job.output), expected, job.here)


def test_changed_and_removed_files_are_refused_all_the_same(job: Job) -> None:
    job.here()
    come(job)
    before = stamps(Path(job.output))
    write_input(Path(job.source), 3, range(5))
    with pytest.raises(InputChanged, match=r"in-03\.parquet"):
        job.here(**GO_ON)
    (Path(job.source) / "in-03.parquet").unlink()
    with pytest.raises(InputChanged, match=r"in-03\.parquet"):
        job.here(**GO_ON)
    assert stamps(Path(job.output)) == before


def test_files_of_other_columns_are_refused_before_anything_is_touched(job: Job) -> None:
    job.here()
    before = stamps(Path(job.output))
    pq.write_table(pa.table({"id": [1], "more": [2]}), Path(job.source) / "other.parquet")
    with pytest.raises(InputChanged, match=r"other\.parquet.*more.*mode='overwrite'") as caught:
        job.here(**GO_ON)
    assert "\n" not in str(caught.value) and stamps(Path(job.output)) == before
    job.here(mode="overwrite")
    assert len(rows_of(Path(job.output))) == FILES * ROWS + 1


@pytest.mark.parametrize("kind", ["text", "binary", "csv", "json"])
def test_files_that_are_read_several_at_a_time(tmp_path: Path, kind: str) -> None:
    """No split of the new ones reads one of the old ones again."""
    folder = tmp_path / "in"
    folder.mkdir()
    line = {"csv": "n\n{}\n", "json": '{{"n": {}}}\n'}.get(kind, "{}\n")

    def put(*numbers: int) -> None:
        for number in numbers:
            suffix = {"text": "txt", "binary": "bin", "csv": "csv", "json": "jsonl"}[kind]
            (folder / f"{number:02d}.{suffix}").write_text(line.format(number))

    def run(**options: Any) -> Result:
        readers: dict[str, Any] = {
            "text": hr.read_text,
            "binary": hr.read_binary_files,
            "csv": hr.read_csv,
            "json": hr.read_json,
        }
        dataset = readers[kind](str(folder)).with_options(engine="inline", progress=False, **options)
        return dataset.write_parquet(str(tmp_path / "out"))

    put(*range(10, 22))
    run()
    put(*range(5), 30, 31)
    run(**GO_ON)
    found = [next(iter(row.values())) for row in rows_of(tmp_path / "out")]
    numbers = [int(value) for value in found]
    assert numbers == [*range(10, 22), *range(5), 30, 31]
    assert run().resumed
