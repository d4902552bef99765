from __future__ import annotations

import itertools
import sqlite3
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from servers import server as server


class Store:
    """A database of a test: its address, and ``run`` for what the test itself does there."""

    def __init__(self, kind: str, uri: str) -> None:
        self.kind = kind
        self.uri = uri

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        if self.kind == "postgresql":
            from adbc_driver_postgresql import dbapi

            with dbapi.connect(self.uri) as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
                connection.commit()
            return rows
        path = self.uri.split("://", 1)[1][1:]
        if self.kind == "duckdb":
            import duckdb

            with duckdb.connect(path) as open_:
                for statement in statements:
                    open_.execute(statement)
                return open_.fetchall()
        lite = sqlite3.connect(path)
        try:
            for statement in statements:
                found = lite.execute(statement).fetchall()
            lite.commit()
            return found
        finally:
            lite.close()


@pytest.fixture
def postgresql(server: str) -> Store:
    name = f"t{uuid.uuid4().hex[:12]}"
    host = server.rpartition("host=")[2]
    uri = f"postgresql://postgres:canary-4711@/postgres?host={host}&options=-csearch_path%3D{name}"
    store = Store("postgresql", uri)
    store.run(f"CREATE SCHEMA {name}")
    return store


@pytest.fixture
def sqlite(tmp_path: Path) -> Store:
    return Store("sqlite", f"sqlite:///{tmp_path}/a.db")


@pytest.fixture
def duckdb(tmp_path: Path) -> Store:
    return Store("duckdb", f"duckdb:///{tmp_path}/a.duckdb")


STORES = ["sqlite", "duckdb", "postgresql"]


def of_stores(*parameters: Iterable[Any]) -> list[Any]:
    """Return all combinations for SQLite, and a third of them for each other store; the soak has the rest."""
    found = []
    for number, values in enumerate(itertools.product(*parameters)):
        for place, kind in enumerate(STORES):
            always = kind == "sqlite" or number % 3 == place - 1
            found.append(pytest.param(kind, *values, marks=() if always else pytest.mark.soak))
    return found


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(request.param)
    return found
