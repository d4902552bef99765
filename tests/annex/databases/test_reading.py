"""Rows of a query: each exactly once, with exactly its values, or an error in words."""

from __future__ import annotations

import math
import pickle
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from annex.databases.conftest import Store
from headrace.annex.databases.connections import parse
from headrace.annex.databases.source import SqlSource
from headrace.errors import (
    ArgumentError,
    HeadraceError,
    InputChanged,
    PlanChanged,
    SourceError,
    UnknownArgument,
    UnknownColumn,
)
from headrace.testing.sources import SourceContract, read_all

ROWS = "INSERT INTO t VALUES " + ", ".join(f"({i % 17}, 'name {i % 5}', {i / 4})" for i in range(60))
MAKE = "CREATE TABLE t (a INTEGER, b VARCHAR(20), c DOUBLE PRECISION)"


def source(store: Store, query: str = "SELECT * FROM t", **options: Any) -> SqlSource:
    return SqlSource(query, parse(store.uri, "read_sql"), **options)


MADE: dict[str, Store] = {}  # each contract reads one table


class Contract(SourceContract):
    kind: str

    @pytest.fixture(autouse=True)
    def store(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
        if self.kind not in MADE:
            store: Store = request.getfixturevalue(self.kind)
            if self.kind != "postgresql":
                store = Store(self.kind, f"{self.kind}:///{tmp_path_factory.mktemp('contract')}/a.db")
            nulls = "INSERT INTO t VALUES (NULL, NULL, NULL), (NULL, 'x', 1), (NULL, NULL, NULL)"
            store.run(MAKE, ROWS, nulls)
            MADE[self.kind] = store
        self.database = MADE[self.kind]

    def make(self) -> SqlSource:
        return source(self.database, partition_column="a", partitions=2)


class TestSqlite(Contract):
    kind = "sqlite"


class TestDuckdb(Contract):
    kind = "duckdb"


class TestPostgresql(Contract):
    kind = "postgresql"


MOST = "9999999999999999"
COLUMNS = {
    "small": "INTEGER",
    "big": "BIGINT",
    "wide": "DOUBLE PRECISION",
    "day": "DATE",
    "moment": "TIMESTAMP",
    "zoned": "TIMESTAMP WITH TIME ZONE",
    "exact": "NUMERIC(20, 4)",
}


@pytest.mark.parametrize("kind", ["duckdb", "postgresql"])
def test_each_row_is_in_one_range_whatever_the_column(kind: str, request: pytest.FixtureRequest) -> None:
    store: Store = request.getfixturevalue(kind)
    limits = [
        ("-2147483648", "-9223372036854775808", "'-Infinity'", "'0001-01-01'", "'0001-01-01'", f"-{MOST}"),
        ("2147483647", "9223372036854775807", "'NaN'", "'9999-12-31'", "'9999-12-31 23:59:59.999999'", MOST),
        ("0", "0", "'Infinity'", "'1970-01-01'", "'1970-01-01'", "0"),
        ("1", "1", "1e308", "'1970-01-02'", "'1970-01-01 00:00:00.000001'", "0.0001"),
        ("-1", "-1", "-1e308", "'2000-02-29'", "'2000-02-29'", "-0.0001"),
    ]  # fmt: skip
    lines = [
        f"({n}, {s}, {b}, {w}, {d}, {t}, {t.rstrip(chr(39))}{'+00' if ':' in t else ' 00:00:00+00'}', {e})"
        for n, (s, b, w, d, t, e) in enumerate(limits * 3)
    ]
    lines += [f"({n}, NULL, NULL, NULL, NULL, NULL, NULL, NULL)" for n in (15, 16)]
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    store.run(f"CREATE TABLE t (n INTEGER, {columns})", f"INSERT INTO t VALUES {', '.join(lines)}")
    whole = sorted(read_all(source(store)).column("n").to_pylist())
    assert whole == list(range(17))
    for name in COLUMNS:
        parted = source(store, partition_column=name, partitions=7)
        splits = parted.splits()
        assert len(splits) > 1, name
        assert sorted(read_all(parted, splits).column("n").to_pylist()) == whole, name
        assert [read_all(parted, [split]).num_rows for split in splits] == [split.rows for split in splits]


def test_values_are_exact(store: Store) -> None:
    store.run(
        "CREATE TABLE t (n BIGINT, x DOUBLE PRECISION, s VARCHAR)",
        "INSERT INTO t VALUES (9223372036854775807, 0.1, '')",
        "INSERT INTO t VALUES (9007199254740993, 1e-300, 'ä\U0001f600'), (-1, NULL, NULL)",
    )
    rows = (
        hr.read_sql("select n, x, s from t -- all of it", store.uri).with_options(engine="inline").take_all()
    )
    assert rows == [
        {"n": -1, "x": None, "s": None},
        {"n": 9007199254740993, "x": 1e-300, "s": "ä\U0001f600"},
        {"n": 9223372036854775807, "x": 0.1, "s": ""},
    ]


@pytest.mark.parametrize("kind", ["duckdb", "postgresql"])
def test_types_that_both_have(kind: str, request: pytest.FixtureRequest) -> None:
    store: Store = request.getfixturevalue(kind)
    store.run("SELECT 1")
    query = (
        "SELECT CAST(1.50 AS NUMERIC(10, 2)) AS d, DATE '2024-02-29' AS day, "
        "TIMESTAMP '2024-01-02 03:04:05.000006' AS t, TIMESTAMPTZ '2024-01-02 03:04:05+02' AS z, "
        "CAST('NaN' AS DOUBLE PRECISION) AS x, true AS b, CAST(NULL AS INT) AS i"
    )
    (row,) = hr.read_sql(query, store.uri).with_options(engine="inline").take_all()
    assert math.isnan(row.pop("x"))
    assert row == {
        "d": Decimal("1.50"),
        "day": date(2024, 2, 29),
        "t": datetime(2024, 1, 2, 3, 4, 5, 6),
        "z": datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC),
        "b": True,
        "i": None,
    }


@pytest.mark.parametrize(
    ("kind", "column", "said"),
    [
        ("duckdb", "'infinity'::DATE", "infinity"),
        ("duckdb", "170141183460469231731687303715884105727::HUGEINT", "out of its range"),
        ("duckdb", "TIMETZ '01:02:03+02'", "Cast it"),
        ("duckdb", "'101'::BIT", "Cast it"),
        ("postgresql", "'infinity'::timestamp", "infinity"),
        ("postgresql", "'294270-01-01'::timestamp", "out of its range"),
        ("postgresql", "'-infinity'::date", "infinity"),
        ("postgresql", "'NaN'::numeric", "cannot hold"),
        ("postgresql", "1e90::numeric", "76"),
        ("postgresql", "'12.50'::money", "money"),
        ("postgresql", "'10.0.0.1'::inet", "inet"),
        ("postgresql", "4294967295::oid", "oid"),
        ("postgresql", "'{{1,2},{3,4}}'::int[]", "array of arrays"),
        ("postgresql", "1 AS c, 2", "another column has that name"),
        ("duckdb", "1 AS c, 2", "another column has that name"),
        ("sqlite", "1 AS c, 2", "another column has that name"),
        ("sqlite", "9007199254740993 AS c UNION ALL SELECT 0.5", "integer and 1 of type real"),
        ("sqlite", "1 AS c UNION ALL SELECT 'one'", "CAST\\(c AS TEXT\\)"),
    ],
)
def test_what_has_no_exact_equal_is_refused_by_its_name(
    kind: str, column: str, said: str, request: pytest.FixtureRequest
) -> None:
    store: Store = request.getfixturevalue(kind)
    store.run("SELECT 1")
    query = f"SELECT {column}" if column.count(" AS c UNION") else f"SELECT {column} AS c"
    with pytest.raises(SourceError, match=said) as raised:
        hr.read_sql(query, store.uri).schema()
    assert "'c'" in str(raised.value)


def test_postgresql_numbers_without_a_scale_keep_all_digits(postgresql: Store) -> None:
    query = (
        "SELECT * FROM (VALUES (1, 12345678901234567890.123456789::numeric), (2, 5), (3, NULL)) AS v(i, n)"
    )
    table = read_all(source(postgresql, query))
    assert table.schema.field("n").type == pa.decimal128(38, 9)
    assert table.column("n").to_pylist() == [Decimal("12345678901234567890.123456789"), Decimal(5), None]


def test_sqlite_types_are_those_of_all_values(sqlite: Store) -> None:
    values = ", ".join(["(NULL, 1, NULL, x'00ff')"] * 3000 + ["('late', 2.5, NULL, NULL)"])
    sqlite.run("CREATE TABLE t (a, b NUMERIC, c INTEGER, d)", f"INSERT INTO t VALUES {values}")
    table = read_all(source(sqlite))
    assert table.schema.types == [pa.string(), pa.float64(), pa.int64(), pa.binary()]
    assert sorted(filter(None, table.column("a").to_pylist())) == ["late"]
    assert sum(table.column("b").to_pylist()) == 3002.5


def test_changes_are_noticed(store: Store) -> None:
    store.run(MAKE, ROWS)
    planned = source(store, partition_column="a", partitions=3)
    splits = planned.splits()
    worker = pickle.loads(pickle.dumps(planned))
    before = read_all(worker, splits)
    store.run("CREATE TABLE other (x INTEGER)", "INSERT INTO other VALUES (1)")
    assert read_all(worker, splits).equals(before)  # what the query reads is the same
    store.run("UPDATE t SET b = 'changed' WHERE a = 0")
    described = source(store, partition_column="a", partitions=3).describe()
    assert described != planned.describe()
    if store.kind == "postgresql":  # the snapshot is still held
        assert read_all(worker, splits).equals(before)
    else:
        with pytest.raises(InputChanged, match="checksum"):
            read_all(worker, splits)
        store.run("DELETE FROM t WHERE a = 0")
        with pytest.raises(InputChanged, match="rows, and has"):
            read_all(worker, splits)


def test_a_run_goes_on_only_with_the_same_rows(sqlite: Store, tmp_path: Path) -> None:
    sqlite.run(MAKE, ROWS)
    broken = tmp_path / "broken"
    broken.touch()

    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        if broken.exists() and 16 in batch["a"]:
            raise ValueError("broken")
        return batch

    def run() -> Any:
        data = hr.read_sql("SELECT * FROM t", sqlite.uri, partition_column="a", partitions=4)
        data = data.map_batches(fails).with_options(engine="inline", shard_rows=1)
        return data.write_parquet(tmp_path / "out")

    with pytest.raises(hr.errors.StepError):
        run()
    broken.unlink()
    sqlite.run("UPDATE t SET c = -1 WHERE a = 3")
    with pytest.raises(PlanChanged, match="checksum of the rows"):
        run()
    sqlite.run("DELETE FROM t", ROWS)
    result = run()
    assert result.rows == 60
    assert hr.read_parquet(tmp_path / "out").count() == 60


def test_workers_read_ranges_and_no_file_has_the_password(
    postgresql: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    postgresql.run(MAKE, ROWS)
    data = hr.read_sql("SELECT * FROM t;", postgresql.uri, partition_column="a", partitions=3)
    told = data.explain() + repr(data)
    result = data.with_options(shard_rows=10, on_error="reject").write_parquet(tmp_path / "out")
    assert result.rows == 60
    rows = hr.read_parquet(tmp_path / "out").to_arrow().sort_by("c").column("c").to_pylist()
    assert rows == [i / 4 for i in range(60)]
    with pytest.raises(SourceError) as raised:
        hr.read_sql("SELECT 'canary-4711'::int", postgresql.uri).schema()
    told += f"{raised.value!r} {raised.value.__cause__} {result}"
    refused = postgresql.uri.rpartition("host=")[0] + "host=/nowhere&password=canary-4711"
    with pytest.raises(SourceError, match="Cannot connect to postgresql://") as raised:
        hr.read_sql("SELECT 1", refused).schema()
    told += str(raised.value)
    out, err = capfd.readouterr()
    assert "canary-4711" not in told + out + err
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or b"canary-4711" not in path.read_bytes(), path


def test_the_address_may_stand_in_the_environment(sqlite: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite.run(MAKE, ROWS)
    monkeypatch.setenv("DATABASE_URL", sqlite.uri)
    assert hr.read_sql("SELECT * FROM t", "env:DATABASE_URL").count() == 60
    held = pickle.dumps(source(Store("sqlite", "env:DATABASE_URL")))
    monkeypatch.delenv("DATABASE_URL")
    with pytest.raises(ArgumentError, match="'DATABASE_URL' is not set"):
        pickle.loads(held).schema()


def test_arguments_that_make_no_sense(sqlite: Store, tmp_path: Path) -> None:
    sqlite.run(MAKE, ROWS)
    for given, said in (
        ({"query": " ; "}, "one SELECT"),
        ({"partitions": 4}, "needs partition_column"),
        ({"partitions": 0, "partition_column": "a"}, "from 1 to 1,000"),
        ({"uri": "mysql://ada:pw@host/db"}, "no database is known for mysql"),
        ({"uri": "snowflake://ada:pw@host/db"}, "have it export a query as Parquet"),
        ({"uri": "ada:pw@host/db"}, "not the address of a database"),
        ({"uri": "sqlite://"}, "relative/path"),
        ({"uri": "sqlite:///:memory:"}, "in memory cannot"),
    ):
        with pytest.raises(ArgumentError, match=said) as raised:
            hr.read_sql(**{"query": "SELECT 1", "uri": sqlite.uri, **given})  # type: ignore[arg-type]
        assert "pw" not in str(raised.value)
    with pytest.raises(UnknownArgument, match="partition_column"):
        hr.read_sql("SELECT 1", sqlite.uri, partition_colum="a")  # type: ignore[call-arg]
    with pytest.raises(UnknownColumn, match="Did you mean 'a'"):
        hr.read_sql("SELECT a FROM t", sqlite.uri, partition_column="aa").schema()
    with pytest.raises(ArgumentError, match="ranges are made of"):
        hr.read_sql("SELECT * FROM t", sqlite.uri, partition_column="b").schema()
    with pytest.raises(SourceError, match="no such table: nope"):
        hr.read_sql("SELECT * FROM nope", sqlite.uri).schema()
    with pytest.raises(SourceError, match="no such file"):
        hr.read_sql("SELECT 1", f"sqlite:///{tmp_path}/none.db").schema()
    with pytest.raises(SourceError, match="Cannot run the query"):
        hr.read_sql("DELETE FROM t", sqlite.uri).schema()
    (tmp_path / "no.db").write_bytes(b"no database at all" * 100)
    for kind in ("sqlite", "duckdb"):
        with pytest.raises(SourceError, match=f"Cannot read {kind}:///"):
            hr.read_sql("SELECT 1", f"{kind}:///{tmp_path}/no.db").schema()
    assert sqlite3.connect(sqlite.uri[10:]).execute("SELECT count(*) FROM t").fetchone() == (60,)


def test_an_empty_answer_has_its_columns(store: Store) -> None:
    store.run(MAKE)
    data = hr.read_sql("SELECT * FROM t", store.uri, partition_column="a").with_options(engine="inline")
    assert data.take_all() == []
    assert [str(kind) for kind in data.schema().types] == [
        "int64" if store.kind == "sqlite" else "int32",
        "string",
        "double",
    ]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_names_that_differ_in_case_only_are_refused(kind: str, request: pytest.FixtureRequest) -> None:
    store: Store = request.getfixturevalue(kind)
    store.run("CREATE TABLE t (n INTEGER)")
    with pytest.raises(SourceError, match="another column has that name"):
        hr.read_sql('SELECT 1 AS "A", 2 AS "a"', store.uri).take_all()


def test_a_null_does_not_move_the_bounds_of_dates(duckdb: Store) -> None:
    duckdb.run(
        "CREATE TABLE d AS SELECT * FROM (VALUES (DATE '2020-01-01'), (NULL), (DATE '2020-03-01')) v(day)"
    )
    data = hr.read_sql("SELECT day FROM d", duckdb.uri, partition_column="day", partitions=2)
    assert [len(batch["day"]) for batch in data.iter_batches(batch_size=None)] == [2, 1]
    duckdb.run(
        "CREATE TABLE h AS SELECT 12345678901234567890123456789012::HUGEINT + i AS x FROM range(10) r(i)"
    )
    assert hr.read_sql("SELECT x FROM h", duckdb.uri, partition_column="x", partitions=3).count() == 10


@pytest.mark.parametrize("secret", [":/s3cret", ":12/s3cret", ":p@s3cret", ":p#s3cret", ":p?s3cret"])
def test_a_password_that_is_not_escaped_is_not_taken_for_a_path(secret: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(f"postgresql://ada{secret}@host/db", "read_sql")
    assert "s3cret" not in str(caught.value)


def test_only_new_keys(store: Store, tmp_path: Path) -> None:
    """Each run into an output processes the rows whose keys no run has read, whichever came and whatever changed."""

    def run(**options: Any) -> list[tuple[int, str]]:
        data = hr.read_sql("SELECT a, b FROM t", store.uri, partition_column="a", partitions=3)
        data = data.with_options(progress=False, **{"engine": "inline", **options})
        data.write_parquet(tmp_path / "out", incremental=True, key="a")
        assert b"canary" not in b"".join(p.read_bytes() for p in tmp_path.glob("out/_*/**/*") if p.is_file())
        return sorted((row["a"], row["b"]) for row in hr.read_parquet(tmp_path / "out").take_all())

    store.run(MAKE, "INSERT INTO t VALUES (5, 'x', 1), (9, 'y', 2)")
    assert run() == run() == [(5, "x"), (9, "y")]
    late = "INSERT INTO t VALUES (7, 'late', 3), (1, 'late', 3)"
    store.run(late, "UPDATE t SET b = 'z' WHERE a = 5", "DELETE FROM t WHERE a = 9")
    assert run(engine="local", workers=2) == [(1, "late"), (5, "x"), (7, "late"), (9, "y")]
    store.run("INSERT INTO t VALUES (NULL, 'no key', 3)")
    with pytest.raises(HeadraceError, match=r"'a'.*the query in .*each row has to have a key"):
        run()


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT * FROM v", 9),
        ("SELECT a + (4 IN (SELECT a FROM v))::INT AS a FROM t", 9),
        ("SELECT count(*) AS a FROM v", 12),
        ("SELECT (SELECT max(a) FROM v) AS a FROM t", 9),
        ("SELECT * FROM macro_of_files()", 9),
    ],
)
def test_files_that_a_duckdb_view_reads_may_change(
    duckdb: Store, tmp_path: Path, query: str, rows: int
) -> None:
    duckdb.run("CREATE TABLE t AS SELECT range AS a FROM range(9)")
    duckdb.run(f"COPY (SELECT range AS a FROM range(9)) TO '{tmp_path}/x.parquet' (FORMAT parquet)")
    duckdb.run(f"CREATE VIEW v AS SELECT * FROM '{tmp_path}/x.parquet'")
    duckdb.run("CREATE MACRO macro_of_files() AS TABLE SELECT * FROM v")
    data = source(duckdb, query, partition_column="a", partitions=1)
    expected = read_all(data).num_rows
    assert read_all(data).num_rows == expected
    duckdb.run(f"COPY (SELECT range + 5 AS a FROM range({rows})) TO '{tmp_path}/x.parquet' (FORMAT parquet)")
    with pytest.raises(InputChanged, match="changed since the run was planned"):
        read_all(data)


def test_files_that_change_while_they_are_read(duckdb: Store, tmp_path: Path) -> None:
    """The range was compared before its first row: what comes after that is compared, too."""
    duckdb.run(f"COPY (SELECT range AS a FROM range(9)) TO '{tmp_path}/x.csv' (FORMAT csv)")
    duckdb.run(f"CREATE VIEW v AS SELECT * FROM '{tmp_path}/x.csv'")
    data = source(duckdb, "SELECT * FROM v")
    (split,) = data.splits()
    rows = data.read(split, None, 3)
    assert next(rows).num_rows == 3
    (tmp_path / "x.csv").write_text("a\n" + "\n".join(map(str, range(1, 10))))
    with pytest.raises(InputChanged, match="another checksum"):
        list(rows)


def test_a_duckdb_query_of_its_own_tables_is_not_compared_again(
    duckdb: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb.run(
        "CREATE TABLE t AS SELECT range AS a FROM range(9)", "CREATE VIEW v AS SELECT * FROM t WHERE a > 1"
    )
    query = (
        "WITH w AS (SELECT a, count(*) AS n FROM v GROUP BY a) SELECT *, (SELECT max(a) FROM t) AS m FROM w"
    )
    data = source(duckdb, query, partition_column="a", partitions=2)
    data.splits()
    monkeypatch.setattr(data, "_totals", None)
    assert read_all(data).num_rows == 7
