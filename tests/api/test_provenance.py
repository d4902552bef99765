"""A column with what made each row: the version of a model, or a digest of the code."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import ArgumentError, ColumnExists, HeadraceError, PlanError

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}


def double(batch: dict[str, Any]) -> Any:
    return batch["id"] * 2


def triple(batch: dict[str, Any]) -> Any:
    return batch["id"] * 3


def unknown() -> Callable[[dict[str, Any]], Any]:
    left = (i for i in range(3))
    return lambda batch: batch["id"] + next(left)


def job(function: Any = double, version: str | None = "1", source: Any = None) -> hr.Dataset:
    data = (source or hr.range(4)).with_options(**QUIET)
    found: hr.Dataset = data.predict(function, inputs=["id"], output="made", version=version)
    return found


def versions(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {row["id"]: row["by"] for row in rows}


@pytest.mark.parametrize("name", ["parquet", "csv", "json"])
def test_each_row_has_its_version(tmp_path: Path, name: str) -> None:
    getattr(job(version="v-7"), f"write_{name}")(tmp_path / "out", provenance="by")
    assert set(versions(getattr(hr, f"read_{name}")(tmp_path / "out").take_all()).values()) == {"v-7"}


def test_a_table_of_a_database(tmp_path: Path) -> None:
    job().write_sql("scores", f"sqlite:///{tmp_path}/db", output=tmp_path / "run", provenance="by")
    with sqlite3.connect(tmp_path / "db") as database:
        assert database.execute("SELECT DISTINCT by FROM scores").fetchall() == [("1",)]


def test_code_without_a_version_is_told_by_its_digest(tmp_path: Path) -> None:
    found = []
    for function in (double, triple):
        job(function, None).write_parquet(tmp_path / function.__name__, provenance="by")
        found += set(versions(hr.read_parquet(tmp_path / function.__name__).take_all()).values())
    (first, second) = found
    assert first != second and len(first) == len(second) == 12
    both = job().map_batches(lambda batch: batch).predict(double, inputs=["id"], output="again", version="9")
    both.write_parquet(tmp_path / "both", provenance="by")
    (text,) = set(versions(hr.read_parquet(tmp_path / "both").take_all()).values())
    assert re.fullmatch(r"double: 1, test_\w+\.<lambda>: \w{12}, double 3: 9", text)


def test_rows_of_further_runs_have_their_own(tmp_path: Path) -> None:
    def add(first: int) -> None:
        pq.write_table(pa.table({"id": [first, first + 1]}), tmp_path / f"{first}.parquet")

    def run(function: Any, version: str, **how: Any) -> dict[int, str]:
        source = hr.read_parquet(f"{tmp_path}/*.parquet")
        job(function, version, source).write_parquet(
            tmp_path / "out", provenance="by", incremental=True, **how
        )
        return versions(hr.read_parquet(tmp_path / "out").take_all())

    add(0)
    assert run(double, "1") == {0: "1", 1: "1"}
    add(2)
    assert run(triple, "2") == {0: "1", 1: "1", 2: "2", 3: "2"}
    assert run(triple, "2", refresh="changed") == dict.fromkeys(range(4), "2")
    assert hr.verify(tmp_path / "out").good


WRONG: dict[str, tuple[Callable[[], hr.Dataset], dict[str, Any], type[HeadraceError], str]] = {
    "a name that is taken": (job, {"provenance": "made"}, ColumnExists, "one of that name already"),
    "a name known by the rows alone": (
        lambda: job().map_batches(lambda batch: {**batch, "by": batch["id"]}),
        {"provenance": "by"},
        ColumnExists,
        "one of that name already",
    ),
    "no name": (job, {"provenance": "a b"}, ArgumentError, "the name of a new column"),
    "no model": (
        lambda: hr.range(3).with_options(**QUIET),
        {"provenance": "by"},
        PlanError,
        "the plan has none",
    ),
    "unknown code": (
        lambda: job(unknown(), None),
        {"provenance": "by"},
        PlanError,
        "Give the step version=",
    ),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.filterwarnings("ignore")
def test_refused(tmp_path: Path, what: str) -> None:
    data, how, error, words = WRONG[what]
    with pytest.raises(error, match=words):
        data().write_parquet(tmp_path / "out", **how)
    assert not list(tmp_path.glob("out/part*"))
