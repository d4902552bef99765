"""`headrace sql`: a query over files, shown or written."""

from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr

from .conftest import Said

Headrace = Callable[..., Said]

pytest.importorskip("duckdb")
JOIN = "SELECT id, name FROM rides JOIN zones USING (zone) ORDER BY id"


@pytest.fixture
def tables(place: Path) -> list[str]:
    Path("zones.csv").write_text("zone,name\n0,Harbour\n1,Hill\n")
    for i in range(2):
        Path(f"rides-{i}.csv").write_text(f"id,zone\n{2 * i},0\n{2 * i + 1},1\n")
    return ["--rides", "rides-0.csv", "--rides=rides-1.csv", "--zones", "zones.csv"]


def test_rows_are_written_and_resumed(tables: list[str], headrace: Headrace) -> None:
    said = headrace("sql", JOIN, *tables, "-o", "out", "--engine", "inline")
    assert said.code == 0
    expected = [{"id": i, "name": ["Harbour", "Hill"][i % 2]} for i in range(4)]
    assert hr.read_parquet("out").take_all() == expected
    assert "nothing left to do" in headrace("resume", "out").out
    next(Path("out").glob("part-*")).unlink()
    assert headrace("resume", "out").code == 0
    assert hr.read_parquet("out").take_all() == expected


def test_rows_are_shown(tables: list[str], headrace: Headrace) -> None:
    said = headrace("sql", JOIN, *tables, "--rows", "1")
    assert said.code == 0 and "Harbour" in said.out and "Hill" not in said.out
    assert headrace("sql", JOIN, *tables, "--rows", "1", "--json").json["sample"] == [
        {"id": 0, "name": "Harbour"}
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["SELECT * FROM zone", "--zones", "zones.csv"], "Did you mean 'zones'"),
        (["SELECT 1 AS x", "--worker", "zones.csv"], "worker= is given, and the query does not name it"),
        (["SELECT 1 AS x", "--zones"], "it takes a path"),
        (["SELECT 1 AS x", "zones.csv"], "such as --rides PATH"),
        (["SELECT * FROM zones", "--zones", "nope.csv"], "Did you mean 'zones.csv'"),
    ],
)
def test_what_is_refused(tables: list[str], headrace: Headrace, words: list[str], told: str) -> None:
    said = headrace("sql", *words)
    assert said.code == 2 and told in said.err
