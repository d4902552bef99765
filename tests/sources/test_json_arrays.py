"""JSON files that are one array: its elements are rows, as lines are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.source_ports import Source
from headrace.errors import UnreadableFile
from headrace.sources.json.source import JsonSource
from headrace.testing.sources import SourceContract, read_told

ROWS: list[dict[str, Any]] = [
    {"id": i, "text": f'a "quoted, [text]\\n\u2028 ü{i}', "tags": [{"k": i}, None] if i % 2 else []}
    for i in range(50)
]


class TestArrays(SourceContract):
    folder: Path

    def make(self) -> Source:
        for name, indent in (("a", None), ("b", 2)):
            if not (self.folder / f"{name}.json").exists():
                (self.folder / f"{name}.json").write_text(json.dumps(ROWS, indent=indent))
        return JsonSource(self.folder)

    def make_bad(self) -> tuple[Source, list[int]]:
        rows: list[Any] = [{"a": i} for i in range(20)]
        rows[3], rows[11], rows[19] = 7, {"a": "text"}, None
        (self.folder / "bad.json").write_text(json.dumps(rows, indent=1))
        return JsonSource(self.folder / "bad.json"), [3, 11, 19]


@pytest.mark.parametrize("indent", [None, 0, 4])
def test_elements_are_rows(tmp_path: Path, indent: int | None) -> None:
    text = json.dumps(ROWS, indent=indent, ensure_ascii=False)
    (tmp_path / "a.json").write_text("\ufeff \r\n" + text.replace("\n", "\r\n"))
    with gzip.open(tmp_path / "b.json.gz", "wt") as file:
        file.write(text)
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    data = hr.read_json(tmp_path)
    assert data.take_all() == ROWS * 3
    assert data.schema().field("id").type == pa.int64()
    source = JsonSource(tmp_path / "a.json")
    assert source.locate(source.splits()[0], 7).number == 7


def test_odd_arrays(tmp_path: Path) -> None:
    def read(text: str) -> Any:
        (tmp_path / "a.json").write_text(text)
        return hr.read_json(tmp_path / "a.json").take_all()

    assert read("[]") == [] and read(" [ \n ] ") == []
    assert read('[{"a": null}]') == [{"a": None}]
    assert read('[{"a": 9007199254740993}]') == [{"a": 9007199254740993}]
    assert read('[{"a": 1}, {"b": 2}]') == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    for text, words in (
        ('[{"a": 1},]', "malformed"),
        ('[{"a": NaN}]', "malformed"),
        ('[{"a": 1}] x', "trailing"),
        ("[" * 100_000, "nested too deeply|truncated"),
        ("[1, 2]", "row 0"),
    ):
        with pytest.raises(UnreadableFile, match=words) as caught:
            read(text)
        assert "a.json" in str(caught.value) and "\n" not in str(caught.value)


def test_one_object_over_several_lines_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for text in (
        json.dumps(ROWS[3], indent=2),
        "\ufeff\n " + json.dumps(ROWS[3], indent=1).replace("\n", "\r\n"),
        json.dumps(ROWS[3], separators=(",\n", ": ")),
    ):
        file.write_text(text)
        assert hr.read_json(file).take_all() == [ROWS[3]]
    (tmp_path / "b.jsonl").write_text('{"id": 7,\n{"id": 8}\n')
    found, bad = read_told(JsonSource(tmp_path / "b.jsonl"))
    assert list(bad) == [0] and [row["id"] for row in found] == [8]


def test_late_fields_and_bad_elements_are_told(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a": i, "pad": "x" * 1000} for i in range(2000)]
    rows[1500]["late"] = 1
    (tmp_path / "a.json").write_text(json.dumps(rows))
    with pytest.raises(UnreadableFile, match=r"row 1500.*late"):
        hr.read_json(tmp_path).count()
        hr.read_json(tmp_path).take_all()
    found, bad = read_told(JsonSource(tmp_path))
    assert list(bad) == [1500] and len(found) == 1999
