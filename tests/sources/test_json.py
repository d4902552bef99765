"""JSON lines: the schema settled once, nested values, compression, and lines that cannot be read."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import ArgumentError, SchemaMismatch, UnreadableFile
from headrace.sources.json.source import JsonSource
from headrace.testing.sources import read_all


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., pa.Table]:
    def read(content: str | bytes, columns: list[str] | None = None, **options: Any) -> pa.Table:
        path = tmp_path / "a.jsonl"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_all(JsonSource(path, **options), columns=columns)

    return read


Read = Callable[..., pa.Table]
LINE = '{"a": 1, "s": {"x": [1, 2]}}\n'
MANY = LINE * 60_000  # more than the first megabyte
NEW_YEAR, TEN = dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 10)

# ---------------------------------------------------------------- what a file may look like


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ('\ufeff{"a": 1}\r\n\r\n  \n{"a": 2}', [{"a": 1}, {"a": 2}]),
        ('{"a": 1}\n{"b": "x"}\n', [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ('{"a": null}\n{"a": 1.5}\n', [{"a": None}, {"a": 1.5}]),
        ('{"a": [{"b": "é\\n"}]}\n', [{"a": [{"b": "é\n"}]}]),
        ("", []),
        ("\n \n", []),
        ('{"t": "2020-01-01"}\n{"t": "2020-01-01 10:00:00"}\n', [{"t": NEW_YEAR}, {"t": TEN}]),
        (
            '{"t": "2020-01-01T10:00:00Z"}\n{"t": null}\n{"t": "2020-01-01T11:00:00+01:00"}\n',
            [{"t": TEN.replace(tzinfo=dt.UTC)}, {"t": None}, {"t": TEN.replace(tzinfo=dt.UTC)}],
        ),
        (
            '{"s": {"t": ["2020-01-01T10:00:00Z"]}}\n{"s": {"t": ["2020-01-01T10:00:00"]}}\n',
            [{"s": {"t": ["2020-01-01T10:00:00Z"]}}, {"s": {"t": ["2020-01-01T10:00:00"]}}],
        ),
    ],
)
def test_files_of_every_shape(read: Read, content: str, expected: list[dict[str, object]]) -> None:
    for block in (1, 1 << 20):
        assert read(content, block_bytes=block).to_pylist() == expected


def test_a_schema_settles_types_and_passes_over_other_fields(read: Read) -> None:
    schema = pa.schema([("b", pa.float32()), ("t", pa.timestamp("ms"))])
    table = read('{"a": [], "b": 1}\n{"c": 1, "t": "2024-01-01 00:00:00"}\n', schema=schema)
    assert table.schema == schema
    assert table["b"].to_pylist() == [1.0, None]


def test_files_unify_and_compression_is_told_by_content(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'{"n": 2.5, "o": {"x": 1}}\n'))
    (tmp_path / "c.ndjson.zst").write_bytes(pa.compress(b'{"o": {"y": "z"}}\n', codec="zstd", asbytes=True))
    (tmp_path / "d.json").write_text("")
    source = JsonSource(tmp_path)
    assert read_all(source).to_pylist() == [
        {"n": 1.0, "o": None},
        {"n": 2.5, "o": {"x": 1, "y": None}},
        {"n": None, "o": {"x": None, "y": "z"}},
    ]


def test_a_line_longer_than_a_block(read: Read) -> None:
    long = json.dumps({"a": "x" * 3_000_000})
    assert read(f'{{"a": "y"}}\n{long}\n{{"a": "z"}}\n')["a"].to_pylist() == ["y", "x" * 3_000_000, "z"]


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("block", [1 << 17, 1 << 30])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 1, "new": 2}', "the field 'new' was not there"),
        ('{"s": {"x": [1], "deep": 2}}', "the field 's.deep' was not there"),
        ('{"a": "text"}', r"changed from number to string.*read_text\("),
        ('{"a": 1.5}', r"couldn't parse:1\.5"),
        ('{"a": 1', r"is not JSON \(Expecting ',' delimiter"),
        ("[1]", "from object to array"),
    ],
)
def test_a_late_line_names_file_and_row(read: Read, block: int, line: str, message: str) -> None:
    with pytest.raises(UnreadableFile, match=rf"(?s)a\.jsonl', row 60000 .*{message}"):
        read(f"{MANY}\n\n{line}\n{LINE}", block_bytes=block)


@pytest.mark.parametrize(("zone", "other"), [("", "Z"), ("+01:00", ""), ("Z", "x")])
def test_a_late_time_whose_zone_is_another_is_refused(read: Read, zone: str, other: str) -> None:
    line = '{"t": "2020-01-01T10:00:00%s"}\n'
    with pytest.raises(UnreadableFile, match=r"row 60000 .*2020-01-01T10:00:00") as raised:
        read(line % zone * 60_000 + line % other)
    assert "10:00:00" not in str(raised.value.without_data())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f'{LINE}{{"a": 2\n{LINE}', "row 1 .*is not JSON"),
        (f'{LINE}{LINE}{{"a": "x"}}\n', "row 2 .*changed from number to string"),
        ('[{"a": 1}, {"a": 2}', r"begins with '\[', so all of it should be one JSON array, and .*truncated"),
        ("[1]\n[2\n", "one JSON array, and .*trailing"),
        ('[{"a": 1}, 2, {"a": 3}]', "row 1 .*object"),
        ('{\n  "a": 1\n}\n{\n  "a": 2\n}\n', "row 0 .*is not JSON .*One whole object per line"),
        ('{"a": 1,\n{"a": 2}\n', "row 0 .*is not JSON .*One whole object per line"),
    ],
)
def test_an_early_line_names_file_and_row(read: Read, content: str, message: str) -> None:
    with pytest.raises(UnreadableFile, match=f"(?s){message}"):
        read(content)


def test_bytes_that_are_no_text(read: Read) -> None:
    with pytest.raises(UnreadableFile, match=r"row 1 .*not valid UTF-8"):
        read(b'{"a": "x"}\n{"a": "\xe9"}\n')


def test_fields_that_nobody_asked_for_may_be_new(read: Read) -> None:
    assert read(f'{MANY}{{"a": 2, "new": 2}}\n', ["a"])["a"][-1].as_py() == 2
    with pytest.raises(UnreadableFile, match=r"'s\.y'"):
        read(f'{MANY}{{"s": {{"y": 2}}}}\n', ["s"])


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n')
    (tmp_path / "b.json").write_text('{"a": {"b": 1}}\n')
    with pytest.raises(SchemaMismatch, match=r"'a' is int64 in .*a\.json' but struct.*b\.json'.*schema="):
        JsonSource(tmp_path).schema()


def test_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"schema is a pyarrow\.Schema, not dict"):
        JsonSource(tmp_path, schema={"a": int})  # type: ignore[arg-type]
    (tmp_path / "a.json").write_text('{"a": "2020-01-01"}\n')
    for type_ in (pa.float16(), pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.int8(), 2)):
        with pytest.raises(
            ArgumentError, match=r"schema= has .* for column 'a', which cannot be read from JSON"
        ):
            JsonSource(tmp_path, schema=pa.schema({"a": type_})).schema()
    with pytest.raises(UnreadableFile, match="Dates and times of day are read of numbers only"):
        read_all(JsonSource(tmp_path, schema=pa.schema({"a": pa.date32()})))


def test_what_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    pq.write_table(pa.table({"x": range(9)}), path)
    with pytest.raises(UnreadableFile, match=r"a\.json' as JSON lines: it begins with PAR1.*read_parquet"):
        JsonSource(path).schema()
    path.write_bytes(b"\xff\xfe{\0")
    with pytest.raises(UnreadableFile, match="mark of UTF-16 text; convert it to UTF-8"):
        JsonSource(path).schema()
