"""Columns from folders, for the formats whose files are read as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import ArgumentError
from headrace.sources.csv.source import CsvSource

READERS = {"csv": hr.read_csv, "json": hr.read_json}
LINES = {"csv": "id\n{}\n", "json": '{{"id": {}}}\n'}


def made(root: Path, kind: str, folders: list[str]) -> Path:
    for number, folder in enumerate(folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{number}.{kind}").write_text(LINES[kind].format(number))
    return root


@pytest.mark.parametrize("kind", READERS)
def test_folders_become_columns(tmp_path: Path, kind: str) -> None:
    null = "__HIVE_DEFAULT_PARTITION__"
    names = ["n=1/k=a", "n=1/k=S%C3%A3o", f"n={null}/k=a%2Fb", f"n=-3/k={null}"]
    data = READERS[kind](made(tmp_path, kind, names)).with_options(engine="inline", progress=False)
    assert dict(zip(data.schema().names, data.schema().types, strict=True)) == {
        "id": pa.int64(), "n": pa.int64(), "k": pa.string(),
    }  # fmt: skip
    rows = sorted(data.take_all(), key=lambda row: row["id"])
    assert [(row["n"], row["k"]) for row in rows] == [(1, "a"), (1, "São"), (None, "a/b"), (-3, None)]
    assert list(rows[0]) == ["id", "n", "k"]
    assert {row["k"] for row in data.select_columns(["k"]).take_all()} == {"a", "São", "a/b", None}
    assert data.filter(expr=pc.field("n") == 1).count() == 2
    seen: list[Any] = []
    data.map_batches(lambda batch: seen.append(batch["n"].dtype.kind) or batch).take_all()
    assert set(seen) == {"f"}  # one form, whether or not a batch holds the null
    plain = READERS[kind](tmp_path, partitioning=None)
    assert plain.schema().names == ["id"]
    assert READERS[kind](tmp_path, include_paths=True).schema().names == ["id", "n", "k", "path"]
    with pytest.raises(ArgumentError, match="partitioning is 'hive' or None"):
        READERS[kind](tmp_path, partitioning="directory")


@pytest.mark.parametrize("kind", READERS)
def test_the_columns_of_files_win(tmp_path: Path, kind: str) -> None:
    data = READERS[kind](made(tmp_path, kind, ["id=7/k=1", "id=8/k=x"]))
    assert data.take_all() == [{"id": 0, "k": "1"}, {"id": 1, "k": "x"}]


def test_a_file_without_the_folder_has_null(tmp_path: Path) -> None:
    data = hr.read_csv(made(tmp_path, "csv", ["k=1", "other"]))
    assert data.schema().types == [pa.int64(), pa.int64()]
    assert data.take_all() == [{"id": 0, "k": 1}, {"id": 1, "k": None}]


@pytest.mark.parametrize(("folders", "values"), [(["k=7", "k=08"], [7, 8]), (["k=7", "k=07"], ["07", "7"])])
def test_texts_that_are_one_number_stay_apart(
    tmp_path: Path, folders: list[str], values: list[object]
) -> None:
    rows = hr.read_csv(made(tmp_path, "csv", folders)).take_all()
    assert sorted(row["k"] for row in rows) == values


def test_json_with_a_schema_gets_them_behind(tmp_path: Path) -> None:
    root = made(tmp_path, "json", ["k=1"])
    data = hr.read_json(root, schema=pa.schema({"id": pa.int32(), "z": pa.string()}))
    assert data.take_all() == [{"id": 0, "z": None, "k": 1}]


@pytest.mark.parametrize("kind", READERS)
def test_what_was_written_comes_back(tmp_path: Path, kind: str) -> None:
    rows = [{"id": i, "k": ["x y", "a/b", None][i % 3], "n": i % 2} for i in range(12)]
    data = hr.from_items(rows).with_options(engine="inline", progress=False)
    getattr(data, f"write_{kind}")(tmp_path / "out", partition_by=["k", "n"])
    assert sorted(READERS[kind](tmp_path / "out").take_all(), key=lambda row: row["id"]) == rows


def test_older_outputs_are_recognised(tmp_path: Path) -> None:
    root = made(tmp_path, "csv", ["k=1"])
    assert "partitioning" not in CsvSource(str(root)).describe()
    assert CsvSource(str(root), partitioning=None).describe()["partitioning"] is None
