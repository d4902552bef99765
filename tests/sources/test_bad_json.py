"""Lines of JSON that make no sense: told with their numbers, and left out."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import crossed, few
from headrace.errors import UnreadableFile
from headrace.sources.json.layout import DEEPEST, TooDeep, refuse_deep
from headrace.sources.json.source import JsonSource
from headrace.testing.sources import read_all, read_sound, read_told

from .test_bad_csv import check_told

QUICK = settings(max_examples=few(20), deadline=None, suppress_health_check=list(HealthCheck))
SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("block", [1, 20, 1 << 20])
@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        (b'{"a": 0}\n{"a": \n{"a": 2}\n', [0, 2], {1: r"'\{\"a\":' is not JSON"}),
        (b'{"a":\n\n{"a": 1}\n{"a": 2}', [1, 2], {0: "is not JSON"}),
        (
            b'{"a": 0}\n[1]\n5\n"x"\n{"a": 4}\n',
            [0, 4],
            {1: "array", 2: "from object to number", 3: "to string"},
        ),
        (b'{"a": 0}\n{"a": "x"}\n{"a": 2}\n', [0, 2], {1: "changed from number to string"}),
        (b'{"a": 0}\n{"a": 1, "s": "\xe9"}\n{"a": 2, "s": "y"}\n', [0, 2], {1: "not valid UTF-8"}),
        (b'{"a": 0}\nnull\n{"a":\n{"a": 3}\n', [0, 3], {1: "it is null", 2: "is not JSON"}),
        (b'{"a": 0}\n{"\xe9": 1}\n{"a": 2}\n', [0, 2], {1: "not valid UTF-8"}),
        (b'null\n{"a": 1}\n', [1], {0: "it is null"}),
        (b'{\n"a": 0}\n{"a": 2}\n', [2], {0: "is not JSON", 1: "is not JSON"}),
    ],
)
def test_bad_lines(
    tmp_path: Path,
    pack: Callable[[bytes], bytes],
    block: int,
    content: bytes,
    good: list[int],
    bad: dict[int, str],
) -> None:
    (path := tmp_path / "a.jsonl").write_bytes(pack(content))
    rows = check_told(JsonSource(path, block_bytes=block), len(good), bad)
    assert [row["a"] for row in rows] == good


BAD = [
    b"{\n",
    b"[]\n",
    b'{"a": "x"}\n',
    b'{"a": 1.5}\n',
    b'{"s": "\xff"}\n',
    b'{"a": 1} {"a": 1}\n',
    b"\n]\n",
]


@given(
    st.lists(st.one_of(st.none(), st.sampled_from(BAD)), min_size=1, max_size=30),
    st.integers(1, 60),
    st.booleans(),
)
@QUICK
def test_the_bad_ones_and_no_others_wherever_files_are_cut(
    lines: list[bytes | None], block: int, packed: bool
) -> None:
    data = b'{"a": -1}\n' + b"".join(line or b'{"a": %d}\n' % n for n, line in enumerate(lines))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        # What Arrow takes for two rows is only refused where something near it fails.
        data += b"{\n" if packed else b""
        path.write_bytes(gzip.compress(data) if packed else data)
        source = JsonSource(path, schema=SCHEMA, block_bytes=1 << 20 if packed else block)
        if any(line and b"} {" in line for line in lines) and not packed:
            return
        rows, bad = read_told(source)
    assert [row["a"] for row in rows] == [-1, *(n for n, line in enumerate(lines) if line is None)]
    expected = [n + 1 for n, line in enumerate(lines) if line is not None]
    assert sorted(bad) == [*expected, *([len(lines) + 1] if packed else [])]


def test_two_objects_on_a_line_are_bad_where_lines_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 0}\n{"a": 1}{"a": 1}\n{"a":\n{"a": 3}\n')
    rows, bad = read_told(JsonSource(path))
    assert [row["a"] for row in rows] == [0, 3]
    assert "One whole object per line is wanted" in bad[1]
    assert sorted(bad) == [1, 2]


@pytest.mark.parametrize("block", [8, 11, 80])
def test_a_null_where_a_block_begins_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("headrace.sources.text._BLOCK", block)
    path = tmp_path / "a.jsonl"
    for before in range(30):
        for gap in ("", "\n", " \r\n" * block):
            path.write_text('{"a":1}\n' * before + gap + "null\n" + '{"a":1}\n' * 10)
            source = JsonSource(path, schema=SCHEMA)
            rows, bad = read_told(source)
            assert sorted(bad) == [before]
            assert len(rows) == before + 10
            with pytest.raises(UnreadableFile, match="null"):
                read_all(source)


def test_the_types_are_those_of_the_lines_that_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "t": "2024-01-01"}\noops\n{"a": 1.5, "t": "text"}\n{"a": "x"}\n')
    rows, bad = read_told(JsonSource(path))
    assert sorted(bad) == [1, 3]
    assert rows == [{"a": 1.0, "t": "2024-01-01"}, {"a": 1.5, "t": "text"}]


def test_fields_that_nobody_asked_for_are_not_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "s": "x"}\n{"a": 2, "s": 5}\n{"a": "y"}\n')
    source: Any = JsonSource(path, schema=SCHEMA)
    (split,) = source.splits()
    assert read_sound(source, split).numbers == [0]
    assert read_sound(source, split, ["a"]).numbers == [0, 1]


def lists(depth: int) -> str:
    return f'{{"a": {"[" * depth}1{"]" * depth}}}'


def objects(depth: int) -> str:
    return '{"a": ' * depth + "1" + "}" * depth


@pytest.mark.parametrize(
    ("deep", "depth", "at"), crossed([lists, objects], [61, 990, 5_000, 200_000], [0, 1, 3])
)
def test_a_line_that_is_nested_too_deeply_is_one_bad_row(
    deep: Callable[[int], str], depth: int, at: int, tmp_path: Path
) -> None:
    lines = ['{"a": 0}', '{"a": 1}', '{"a": 2}']
    lines.insert(at, deep(depth))
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    rows, errors = read_told(JsonSource(path))
    assert [row["a"] for row in rows] == [0, 1, 2]
    assert errors.keys() == {at}
    assert f"row {at} (counted from 0" in errors[at]
    with pytest.raises(UnreadableFile, match=f"row {at} .*{'nested' if depth < 10_000 else ''}"):
        read_all(JsonSource(path))


@pytest.mark.parametrize("deep", [lists, objects])
def test_one_behind_those_from_which_the_schema_is_inferred_is(
    deep: Callable[[int], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.text.HEAD_BYTES", 20)
    path = tmp_path / "a.jsonl"
    for start in ('{"a": 0}\n{"a": 1}\n{"a": 2}\n', '{"a": null}\n' * 3):
        path.write_text(f"{start}{deep(200_000)}\n")
        rows, errors = read_told(JsonSource(path))
        assert (len(rows), errors.keys()) == (3, {3})


@pytest.mark.parametrize("deep", [lists, objects])
def test_deep_fields_that_nobody_asked_for_are_passed_over(
    deep: Callable[[int], str], tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(deep(5_000).replace('"a"', '"b"', 1) + '\n{"s": "x"}\n')
    source = JsonSource(path, schema=pa.schema([("s", pa.string())]))
    assert read_all(source).to_pylist() == [{"s": None}, {"s": "x"}]


def test_a_number_is_not_rounded_beside_a_deep_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    big = '{"n": 1.5}\n{"n": 9007199254740993, "b": ' + "[" * 5_000 + "]" * 5_000 + "}\n"
    path.write_text(big)
    with pytest.raises(UnreadableFile, match="row 1 "):
        read_all(JsonSource(path))


def test_nesting_is_counted_outside_of_texts() -> None:
    refuse_deep(b'{"a": "' + rb"[\"{" * 500 + b'", "b": [' + b"[1], " * 100 + b"1]}")
    refuse_deep(lists(DEEPEST - 1).encode() * 3)
    for line in (lists(DEEPEST), objects(DEEPEST + 1), "[" * 100, '"' + "[" * 9 + '"' + "[" * 100):
        with pytest.raises(TooDeep):
            refuse_deep(line.encode())


def test_what_is_nested_as_deeply_as_allowed_travels(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for deep in (lists(DEEPEST - 1), objects(DEEPEST)):
        path.write_text(deep)
        table = read_all(JsonSource(path))
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        assert pa.ipc.open_stream(stream.getvalue()).read_all().equals(table)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=()), max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@QUICK
@given(value=JSON, ascii=st.booleans(), first=st.booleans())
def test_any_json_value_is_a_row_or_a_bad_one(value: Any, ascii: bool, first: bool) -> None:
    line = json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    sound = b'{"a": 0}\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes(line + b"\n" + sound if first else sound + line + b"\n")
        try:
            rows, errors = read_told(JsonSource(path))
        except UnreadableFile:
            assert first, "a file whose first line makes no sense may be refused"
            return
        assert len(rows) + len(errors) == 2
        assert len("".join(errors.values()).encode()) < 2_000


def test_a_field_of_several_types_is_read_as_the_message_says(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": "x"}\n')
    schema = pa.schema({"a": pa.string()})
    with pytest.raises(
        UnreadableFile, match=r"changed from string to number.*read_text.*json\.loads\(row"
    ) as told:
        hr.read_json(path, schema=schema).take_all()
    assert "schema=" not in str(told.value)
    lines = hr.read_text(path).map(lambda row: {"a": str(json.loads(row["text"])["a"])})
    assert lines.take_all() == [{"a": "1"}, {"a": "x"}]
