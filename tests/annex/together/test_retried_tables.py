"""Rejected rows of tables, databases and folders by values are tried again: each is there once, counts are exact."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from annex.together.sinks import lake
from annex.together.test_unseen import ALL, BAD, GOOD, MOVED, ROWS, repaired, rows, seen
from headrace.errors import HeadraceError, RequirementNotMet, SinkError

Write = Callable[..., hr.Result]


def sql(scheme: str, mode: str) -> Write:
    def write(data: hr.Dataset, place: str, **how: Any) -> hr.Result:
        key = {"key": "id"} if mode == "upsert" else {}
        return data.write_sql(
            "t",
            f"{scheme}:///{place}/a.db",
            mode=mode,
            output=f"{place}/out",
            **key,
            **how,  # type: ignore[arg-type]
        )

    return write


def table(verb: str, mode: str) -> Write:
    def write(data: hr.Dataset, place: str, **how: Any) -> hr.Result:
        result: hr.Result
        if verb == "write_iceberg":
            result = data.write_iceberg("shop.t", catalog=lake(place), mode=mode, **how)  # type: ignore[arg-type]
        else:
            result = getattr(data, verb)(f"{place}/t", mode=mode, **how)
        return result

    return write


def partitioned(data: hr.Dataset, place: str, **how: Any) -> hr.Result:
    data = data.with_column("third", lambda batch: batch["id"] % 3)
    return data.write_parquet(f"{place}/t", partition_by="third", max_rows_per_file=4, **how)


SQL = "SELECT id, product FROM t"
WRITES: dict[str, tuple[Write, Callable[[str], hr.Dataset]]] = {
    "partitioned": (partitioned, lambda place: hr.read_parquet(f"{place}/t")),
    **{
        f"{scheme}, {mode}": (
            sql(scheme, mode),
            lambda place, at=scheme: hr.read_sql(SQL, f"{at}:///{place}/a.db"),
        )
        for scheme, mode in [
            ("sqlite", "append"),
            ("sqlite", "overwrite"),
            ("sqlite", "upsert"),
            ("duckdb", "error"),
        ]
    },
    **{
        f"delta, {mode}": (table("write_delta", mode), lambda place: hr.read_delta(f"{place}/t"))
        for mode in ("append", "overwrite", "error")
    },
    "lance, append": (table("write_lance", "append"), lambda place: hr.read_lance(f"{place}/t")),
    "lance, overwrite": (table("write_lance", "overwrite"), lambda place: hr.read_lance(f"{place}/t")),
    "iceberg, append": (
        table("write_iceberg", "append"),
        lambda p: hr.read_iceberg("shop.t", catalog=lake(p)),
    ),
}


@pytest.mark.parametrize("withheld", [False, True], ids=["seen", "withheld"])
@pytest.mark.parametrize("name", WRITES)
def test_as_if_they_had_never_failed(name: str, withheld: bool, tmp_path: Path) -> None:
    library = {"delta": "deltalake", "lance": "lance", "iceberg": "pyiceberg", "duckdb": "duckdb"}
    pytest.importorskip(library.get(name.partition(",")[0], "pyarrow"))
    write, read = WRITES[name]
    place, data = str(tmp_path), rows().accumulate(rows=hr.Count(), total=hr.Sum("product"))
    if withheld:
        data = data.require(rejected=hr.at_most(0.06))
        with pytest.raises(RequirementNotMet):
            write(data, place)
    else:
        assert write(data, place).rejected == ROWS // BAD

    def there() -> Any:
        found = read(place).with_options(engine="inline", progress=False).take_all()
        return seen((row["id"], row["product"]) for row in found)

    fixes: list[Any] = [
        lambda batch: {"id": batch["id"] + MOVED * (batch["id"] < ROWS // 2)},  # half of them
        lambda batch: batch,
        lambda batch: {"id": batch["id"] + MOVED},
    ]
    half = {(i, p) for i, p in ALL if i < ROWS or i < MOVED + ROWS // 2}
    for fix, left, expected in zip(fixes, (6, 6, 0), (half, half, ALL), strict=True):
        result = write(data, place, refresh="rejected", fix=fix)
        assert (result.rows, result.rejected) == (ROWS - left, left)
        assert result.metrics["rows"] == ROWS - left
        assert result.metrics["total"] == sum(product for _, product in expected)
        assert there() == expected
        found = hr.verify(result.path, catalog=lake(place) if name.startswith("iceberg") else None)
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
    write, _ = WRITES["sqlite, append"]
    write(rows(), str(tmp_path))
    with pytest.raises(SinkError, match="refuses rows"):
        write(rows(), str(tmp_path), refresh="rejected", fix=repaired)
    assert seen(of_sqlite(tmp_path, SQL)) == GOOD
    assert write(rows(), str(tmp_path)).rejected == 2
    assert hr.verify(tmp_path / "out").good
    assert [row["id"] for row in hr.read_rejected(tmp_path / "out").take_all()] == [7, 17]
    other = lambda batch: {"id": batch["id"] + MOVED + 1000}  # noqa: E731
    assert write(rows(), str(tmp_path), refresh="rejected", fix=other).rejected == 0
    moved = {(i + MOVED + (1000 if i < 20 else 0)) for i in range(7, ROWS, BAD)}
    assert seen(of_sqlite(tmp_path, SQL)) == GOOD | {(i, i * 3) for i in moved}


@pytest.mark.parametrize("how", ["discarded", "lost"])
def test_a_retry_that_comes_to_nothing(how: str, tmp_path: Path) -> None:
    """Rows that the table has are not made again, and not added again."""
    deltalake = pytest.importorskip("deltalake")
    write, read = WRITES["delta, append"]
    place, out = str(tmp_path), tmp_path / "t" / "headrace-output"
    write(rows(), place)
    asked = rows().require(rows=hr.at_least(ROWS + 1))
    with pytest.raises(RequirementNotMet):
        write(asked, place, refresh="rejected", fix=repaired)
    if how == "discarded":
        hr.discard(out)
        hr.discard(out)
    else:
        for path in out.glob("_headrace/*/staging/*"):
            path.unlink()
    assert write(rows(), place).rejected == ROWS // BAD
    assert hr.verify(out).good and hr.read_rejected(out).count() == ROWS // BAD
    table = deltalake.DeltaTable(f"{place}/t").to_pyarrow_table().to_pydict()
    assert seen(zip(table["id"], table["product"], strict=True)) == GOOD
    assert write(rows(), place, refresh="rejected", fix=repaired).rows == ROWS
    found = read(place).with_options(engine="inline", progress=False).take_all()
    assert seen((row["id"], row["product"]) for row in found) == ALL


def test_a_table_that_others_changed(tmp_path: Path) -> None:
    """Compacted: it goes on. Without a row of ours: refused."""
    deltalake = pytest.importorskip("deltalake")
    write, _ = WRITES["delta, append"]
    place = str(tmp_path)
    write(rows(), place)
    table = deltalake.DeltaTable(f"{place}/t")
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert write(
        rows(), place, refresh="rejected", fix=lambda batch: {"id": batch["id"] + MOVED * (batch["id"] < 50)}
    )
    table = deltalake.DeltaTable(f"{place}/t")
    assert table.to_pyarrow_table().num_rows == ROWS - 7
    table.delete()
    with pytest.raises(HeadraceError, match="Nothing was touched"):
        write(rows(), place, refresh="rejected", fix=repaired)
    assert deltalake.DeltaTable(f"{place}/t").to_pyarrow_table().num_rows == 0
