"""Rejected rows of tables, databases and folders by values are tried again: each is there once, counts are exact."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from annex.together.test_unseen import ALL, BAD, GOOD, MOVED, ROWS, repaired, rows, seen
from headrace.errors import HeadraceError, RequirementNotMet, SinkError
from targets import TARGETS

SQL = "SELECT id, product FROM t"
MODES = {
    "parquet, partitioned": [""],
    "sqlite": ["", "overwrite"],
    "sqlite, upsert": [""],
    "duckdb": ["error"],
    "delta": ["", "overwrite", "error"],
    "lance": ["", "overwrite"],
    "iceberg": [""],
}
CASES = [pytest.param(kind, mode, id=f"{kind} {mode}") for kind, modes in MODES.items() for mode in modes]


def write(data: hr.Dataset, place: Path, kind: str, mode: str = "", **how: Any) -> hr.Result:
    how |= {"mode": mode} if mode else {}
    how |= {"max_rows_per_file": 4} if kind == "parquet, partitioned" else {}
    return TARGETS[kind](place).write(data, **how)


@pytest.mark.parametrize("withheld", [False, True], ids=["seen", "withheld"])
@pytest.mark.parametrize(("kind", "mode"), CASES)
def test_as_if_they_had_never_failed(kind: str, mode: str, withheld: bool, tmp_path: Path) -> None:
    target = TARGETS[kind](tmp_path)
    pytest.importorskip("duckdb" if kind == "duckdb" else target.imports or "pyarrow")
    data = rows().accumulate(rows=hr.Count(), total=hr.Sum("product"))
    if withheld:
        data = data.require(rejected=hr.at_most(0.06))
        with pytest.raises(RequirementNotMet):
            write(data, tmp_path, kind, mode)
    else:
        assert write(data, tmp_path, kind, mode).rejected == ROWS // BAD
    fixes: list[Any] = [
        lambda batch: {"id": batch["id"] + MOVED * (batch["id"] < ROWS // 2)},  # half of them
        lambda batch: batch,
        lambda batch: {"id": batch["id"] + MOVED},
    ]
    half = {(i, p) for i, p in ALL if i < ROWS or i < MOVED + ROWS // 2}
    for fix, left, expected in zip(fixes, (6, 6, 0), (half, half, ALL), strict=True):
        result = write(data, tmp_path, kind, mode, refresh="rejected", fix=fix)
        assert (result.rows, result.rejected) == (ROWS - left, left)
        assert result.metrics["rows"] == ROWS - left
        assert result.metrics["total"] == sum(product for _, product in expected)
        assert seen(target.pairs()) == expected
        found = hr.verify(result.path, **target.told)
        assert found.good and not found.note, found
        aside = hr.read_rejected(result.path).take_all()
        assert [row["id"] for row in aside] == [i for i in range(7, ROWS, BAD) if i >= ROWS // 2][:left]


def of_sqlite(place: Path, sql: str) -> list[Any]:
    database = sqlite3.connect(place / "a.db")
    try:
        found = database.execute(sql).fetchall()
        database.commit()
        return found
    finally:
        database.close()


def test_a_database_that_refuses_a_repaired_row(tmp_path: Path) -> None:
    """It has none of them; a plain run adds those of other parts, and another repair is taken."""
    of_sqlite(tmp_path, f"CREATE TABLE t (id INTEGER CHECK (id <> {17 + MOVED}), product INTEGER)")
    write(rows(), tmp_path, "sqlite")
    with pytest.raises(SinkError, match="refuses rows"):
        write(rows(), tmp_path, "sqlite", refresh="rejected", fix=repaired)
    assert seen(of_sqlite(tmp_path, SQL)) == GOOD
    assert write(rows(), tmp_path, "sqlite").rejected == 2
    assert hr.verify(tmp_path / "out").good
    assert [row["id"] for row in hr.read_rejected(tmp_path / "out").take_all()] == [7, 17]
    other = lambda batch: {"id": batch["id"] + MOVED + 1000}  # noqa: E731
    assert write(rows(), tmp_path, "sqlite", refresh="rejected", fix=other).rejected == 0
    moved = {(i + MOVED + (1000 if i < 20 else 0)) for i in range(7, ROWS, BAD)}
    assert seen(of_sqlite(tmp_path, SQL)) == GOOD | {(i, i * 3) for i in moved}


@pytest.mark.parametrize("how", ["discarded", "lost"])
def test_a_retry_that_comes_to_nothing(how: str, tmp_path: Path) -> None:
    """Rows that the table has are not made again, and not added again."""
    pytest.importorskip("deltalake")
    out = tmp_path / "t" / "headrace-output"
    write(rows(), tmp_path, "delta")
    asked = rows().require(rows=hr.at_least(ROWS + 1))
    with pytest.raises(RequirementNotMet):
        write(asked, tmp_path, "delta", refresh="rejected", fix=repaired)
    if how == "discarded":
        hr.discard(out)
        hr.discard(out)
    else:
        for path in out.glob("_headrace/*/staging/*"):
            path.unlink()
    assert write(rows(), tmp_path, "delta").rejected == ROWS // BAD
    assert hr.verify(out).good and hr.read_rejected(out).count() == ROWS // BAD
    assert seen(TARGETS["delta"](tmp_path).pairs()) == GOOD
    assert write(rows(), tmp_path, "delta", refresh="rejected", fix=repaired).rows == ROWS
    assert seen(TARGETS["delta"](tmp_path).pairs()) == ALL


def test_a_table_that_others_changed(tmp_path: Path) -> None:
    """Compacted: it goes on. Without a row of ours: refused."""
    deltalake = pytest.importorskip("deltalake")
    write(rows(), tmp_path, "delta")
    table = deltalake.DeltaTable(tmp_path / "t")
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    some = lambda batch: {"id": batch["id"] + MOVED * (batch["id"] < 50)}  # noqa: E731
    assert write(rows(), tmp_path, "delta", refresh="rejected", fix=some)
    table = deltalake.DeltaTable(tmp_path / "t")
    assert table.to_pyarrow_table().num_rows == ROWS - 7
    table.delete()
    with pytest.raises(HeadraceError, match="Nothing was touched"):
        write(rows(), tmp_path, "delta", refresh="rejected", fix=repaired)
    assert deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().num_rows == 0
