"""Parts that a compaction of their table has rewritten are not lost; what else is missing is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.sources.range import RangeSource

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}


def vacuumed(table: deltalake.DeltaTable) -> None:
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with rows of a run in four parts, and of others, compacted twice and vacuumed."""
    place = tmp_path_factory.mktemp("lake") / "t"
    data = hr.Dataset.from_source(RangeSource(100, rows_per_split=25)).with_options(shard_rows=25, **QUIET)
    data.write_delta(place)
    table = deltalake.DeltaTable(place)
    table.optimize.compact()
    hr.range(7).with_options(**QUIET).write_delta(place, output="other")
    table = deltalake.DeltaTable(place)
    table.optimize.compact()
    vacuumed(table)
    return place


@pytest.fixture
def table(compacted: Path, tmp_path: Path) -> Path:
    shutil.copytree(compacted, tmp_path / "t")
    return tmp_path / "t"


def checked(table: Path) -> hr.Verification:
    return hr.verify(table / "headrace-output")


def test_rows_that_are_in_other_files(compacted: Path) -> None:
    assert not list((compacted / "headrace-output").glob("part-*"))
    found = checked(compacted)
    assert found.good and found.rows == 100
    assert found.note.startswith(
        "4 parts with 100 rows are not there any more: the history of the Delta table"
    )
    assert "(version 1)" in found.note
    other = hr.verify(compacted / "other")
    assert other.good and "1 part with 7 rows" in other.note and "(version 3)" in other.note


def test_their_files_are_lost(table: Path) -> None:
    (file,) = table.glob("*.parquet")
    pq.write_table(pq.read_table(file).slice(1), file)
    found = checked(table)
    assert found.state == "damaged" and len(found.findings) == 4 and not found.note
    words = (
        f"a compaction of the table (version 1) has rewritten it, and {file.name}, which holds its rows since"
    )
    assert found.findings[0].message == f"it is not there: {words}, is not as the table describes it."
    file.unlink()
    assert found.findings == checked(table).findings


def test_rows_that_somebody_deleted_since(table: Path) -> None:
    open_ = deltalake.DeltaTable(table)
    open_.delete("id = 3")
    vacuumed(open_)
    found = checked(table)
    assert found.state == "damaged"
    assert "later commands have removed part-" in str(found.findings[0])


def test_parts_of_which_the_history_says_nothing(table: Path, tmp_path: Path) -> None:
    deltalake.DeltaTable(table).create_checkpoint()
    for version in range(4):  # as logs are cleaned up after a month
        (table / f"_delta_log/{version:020}.json").unlink()
    assert [each.message for each in checked(table).findings] == ["it is not there; it had 25 rows."] * 4
    for each in (table / "_delta_log").iterdir():
        each.write_bytes(b"{")
    assert (
        "25 rows. It could not be checked whether a compaction of the table has rewritten it"
        in checked(table).findings[0].message
    )
    shutil.rmtree(table / "_delta_log")
    *parts, gone = [each.message for each in checked(table).findings]
    assert parts == ["it is not there; it had 25 rows."] * 4 and "is gone, and with it the 100 rows" in gone
    lone = tmp_path / "lone"
    hr.range(9).with_options(**QUIET).write_delta(lone)
    next((lone / "headrace-output").glob("part-*")).unlink()
    assert [each.kind for each in checked(lone).findings] == ["missing"]


def test_partitions_with_names_that_need_marks(tmp_path: Path) -> None:
    def marked(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "name": ["a b/ü%" if i % 2 else "y" for i in batch["id"]]}

    data = hr.Dataset.from_source(RangeSource(20, rows_per_split=10)).with_options(shard_rows=10, **QUIET)
    for _ in range(2):
        data.map_batches(marked, version="1").write_delta(tmp_path / "t", partition_by=["name"])
        assert checked(tmp_path / "t").good and not checked(tmp_path / "t").note
    open_ = deltalake.DeltaTable(tmp_path / "t")
    open_.optimize.z_order(["id"])
    vacuumed(open_)
    found = checked(tmp_path / "t")
    assert found.good and "4 parts with 20 rows" in found.note
    shutil.rmtree(tmp_path / "t/name=y")
    lost = [finding.file.partition("/")[0] for finding in checked(tmp_path / "t").findings]
    assert lost == ["name=y"] * 2
