"""Vectors, from tensors into columns of pgvector and DuckDB, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from annex.databases.conftest import Store
from headrace.errors import SinkError

QUIET: Any = {"engine": "inline", "progress": False}
VALUES = np.array([[1, -2.5, 3e-8], [0.1, 1e30, 0], [4, 5, 6]], np.float32)


@pytest.fixture
def pgvector(postgresql: Store) -> Store:
    postgresql.run("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")  # not where tables are looked for
    return postgresql


def written(column: pa.Array, store: Store, output: Path, **more: Any) -> hr.Result:
    data = hr.from_arrow(pa.table({"id": pa.array(range(len(column)), pa.int64()), "e": column}))
    return data.with_options(**QUIET).write_sql("t", store.uri, output=output, **more)


def read(store: Store) -> pa.Table:
    return hr.read_sql("SELECT id, e FROM t", store.uri).with_options(**QUIET).to_arrow()


@pytest.mark.parametrize("kind", ["pgvector", "duckdb"])
def test_tensors_come_back_as_they_were(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store: Store = request.getfixturevalue(kind)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES)
    assert written(tensor, store, tmp_path / "a").rows == 3
    lists = pa.array([None, VALUES[1].tolist()], pa.list_(pa.float32(), 3))
    written(lists.slice(0, 2), store, tmp_path / "b", mode="append")
    found = read(store).sort_by([("id", "ascending")])
    assert found.schema.field("e").type == pa.list_(pa.float32(), 3)
    expected = [*VALUES.tolist(), None, VALUES[1].tolist()]
    key = lambda row: (row is not None, row or [])  # noqa: E731
    assert sorted(found["e"].to_pylist(), key=key) == sorted(expected, key=key)
    halves = np.array([[0.5, -1, 2]], np.float16)  # and matched by a key
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(halves)
    data = hr.from_arrow(pa.table({"k": [7], "e": column})).with_options(**QUIET)
    for output in ("c", "d"):
        data.write_sql("u", store.uri, mode="upsert", key="k", output=tmp_path / output)
    (row,) = hr.read_sql("SELECT k, e FROM u", store.uri).with_options(**QUIET).take_all()
    assert row["k"] == 7 and list(row["e"]) == [0.5, -1, 2]


def test_a_table_that_is_there_says_how_long_vectors_are(pgvector: Store, tmp_path: Path) -> None:
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES)

    def into(kind: str) -> None:
        pgvector.run("DROP TABLE IF EXISTS t", f"CREATE TABLE t (id BIGINT, e {kind})")
        written(tensor, pgvector, tmp_path / kind)

    with pytest.raises(SinkError, match=r"float.*\[3\].* has it as fixed_size_list.*\[4\]"):
        into("public.vector(4)")
    for kind in ("public.halfvec(3)", "REAL[]"):
        with pytest.raises(SinkError, match="a type that is not written"):
            into(kind)
    into("public.vector")  # of any length
    assert pgvector.run("SELECT e::text FROM t WHERE id = 2") == [("[4,5,6]",)]
    pgvector.run("INSERT INTO t VALUES (9, '[1,2]')")
    found = read(pgvector)
    assert found.schema.field("e").type == pa.list_(pa.float32())
    assert found.sort_by("id")["e"].to_pylist() == [*VALUES.tolist(), [1, 2]]
    halves = hr.read_sql("SELECT e::public.halfvec AS h FROM t WHERE id = 2", pgvector.uri)
    assert halves.with_options(**QUIET).to_arrow()["h"].to_pylist() == [[4, 5, 6]]


def test_what_no_vector_holds_is_refused(pgvector: Store, sqlite: Store, tmp_path: Path) -> None:
    for at, (column, said) in enumerate(
        (
            (
                pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES.astype(np.float64)),
                "which cannot be written",
            ),
            (pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES[:, :, None]), "which cannot be written"),
            (pa.array(VALUES.tolist(), pa.list_(pa.float32())), "float32 vectors of one length"),
            (
                pa.array([[1, None, 3]], pa.list_(pa.float32(), 3)),
                "'e' has vectors with NaN, infinity or nulls",
            ),
            (pa.array([[1, np.nan, 3]], pa.list_(pa.float32(), 3)), "'e' has vectors with NaN"),
        )
    ):
        with pytest.raises(SinkError, match=said):
            written(column, pgvector, tmp_path / str(at))
    with pytest.raises(SinkError, match="of SQLite, which has no such type"):
        written(pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES), sqlite, tmp_path / "lite")


def test_a_database_without_pgvector_says_so(server: str, tmp_path: Path) -> None:
    plain = Store("postgresql", server)
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(server, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE plain")
    plain = Store("postgresql", server.replace("/postgres?", "/plain?"))
    with pytest.raises(SinkError, match="Run CREATE EXTENSION vector"):
        written(pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES), plain, tmp_path / "a")
