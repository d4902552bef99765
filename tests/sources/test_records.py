"""Cutting text between records: against a walk byte by byte, and against a one-shot read."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossed import few
from headrace.errors import UnreadableFile
from headrace.sources.csv.scanner import RecordScanner, quoted_cuts
from headrace.sources.csv.source import CsvSource
from headrace.sources.json.source import JsonSource
from headrace.sources.records import NeverClosed
from headrace.sources.text import newline_cuts
from headrace.testing.sources import read_all, read_sound

QUICK = settings(max_examples=few(20), deadline=None, suppress_health_check=list(HealthCheck))


def record_ends(data: bytes) -> tuple[list[int], bool]:
    """Walk Arrow's rules byte by byte: offsets behind newlines outside quotes, and whether a quote is open."""
    ends, state, i = [], "start", 0
    while i < len(data):
        byte = data[i : i + 1]
        if state == "quoted":
            if byte == b'"':
                if data[i + 1 : i + 2] == b'"':
                    i += 1
                else:
                    state = "field"
        elif state == "start" and byte == b'"':
            state = "quoted"
        else:
            state = "start" if byte in (b",", b"\n", b"\r") else "field"
            if byte == b"\n":
                ends.append(i + 1)
        i += 1
    return ends, state == "quoted"


def expected_cuts(data: bytes, step: int) -> list[int]:
    cuts: list[int] = []
    for end in record_ends(data)[0]:
        if end >= (cuts[-1] if cuts else 0) + step and end < len(data):
            cuts.append(end)
    return cuts


@contextlib.contextmanager
def on_disk(data: bytes) -> Iterator[BinaryIO]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with open(file.name, "rb") as opened:
            yield opened


@given(
    st.lists(st.sampled_from([b'"', b'""', b",", b"\n", b"\r\n", b"a", b'5" ', b'"q,\n"']), max_size=40),
    st.integers(1, 12),
    st.integers(1, 9),
)
@QUICK
def test_cuts_stand_where_a_walk_byte_by_byte_puts_them(pieces: list[bytes], step: int, chunk: int) -> None:
    data = b"".join(pieces)
    with on_disk(data) as file:
        if record_ends(data)[1]:
            with pytest.raises(NeverClosed) as caught:
                quoted_cuts(file, 0, step, RecordScanner(b",", b'"'), chunk)
            assert data[caught.value.args[0]] == ord('"')
        else:
            assert quoted_cuts(file, 0, step, RecordScanner(b",", b'"'), chunk) == expected_cuts(data, step)


@given(st.lists(st.sampled_from([b"\n", b"\r\n", b"ab", b'"']), max_size=30), st.integers(1, 9))
@QUICK
def test_without_quotes_every_newline_may_be_cut_at(pieces: list[bytes], step: int) -> None:
    data = b"".join(pieces)
    with on_disk(data) as file:
        cuts = newline_cuts(file, 0, step)
        assert cuts == quoted_cuts(file, 0, step, RecordScanner(b",", None), 4)
        assert all(data[cut - 1 : cut] == b"\n" for cut in cuts)


plain = st.text(alphabet="ab 5é'", max_size=5)
stray = st.builds(lambda text: f'x{text}"', st.text(alphabet='a" ', max_size=3))
quoted = st.text(alphabet='ab",\n\r;é', max_size=6).map(lambda text: '"' + text.replace('"', '""') + '"')
fields = st.one_of(plain, quoted, stray)


@given(
    rows=st.lists(st.tuples(fields, fields, fields), max_size=25),
    newline=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    mark=st.booleans(),
    blank=st.booleans(),
    block=st.integers(1, 60),
    delimiter=st.sampled_from([",", ";", "\t"]),
)
@QUICK
def test_csv_splits_together_are_the_file(
    rows: list[tuple[str, str, str]],
    newline: str,
    last: bool,
    mark: bool,
    blank: bool,
    block: int,
    delimiter: str,
) -> None:
    body = [delimiter.join(row) for row in [("a", "b", '"c\nd"'), *rows]]
    content = (newline * (2 if blank else 1)).join(body) + (newline if last else "")
    data = (b"\xef\xbb\xbf" if mark else b"") + content.encode()
    types = {"a": pa.string(), "b": pa.string(), "c\nd": pa.string()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_bytes(data)
        source = CsvSource(path, column_types=types, delimiter=delimiter, block_bytes=block)
        once = (
            pacsv.read_csv(
                path,
                read_options=pacsv.ReadOptions(use_threads=False),
                parse_options=pacsv.ParseOptions(newlines_in_values=True, delimiter=delimiter),
                convert_options=pacsv.ConvertOptions(column_types=types),
            )
            if last or rows
            else pa.table({name: pa.array([], type_) for name, type_ in types.items()})
        )
        splits = source.splits()
        assert read_all(source, splits).to_pydict() == once.to_pydict()
        assert sum(split.bytes for split in splits) <= len(data)
        if splits:  # row numbers in messages count from the file's start
            given_rows = read_all(source, splits[:-1]).num_rows
            assert source.locate(splits[-1], 2).number == given_rows + 2


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"i": st.integers(-(2**40), 2**40)},
            optional={
                "s": st.text(max_size=8) | st.none(),
                "o": st.fixed_dictionaries({"x": st.lists(st.integers(0, 9), max_size=3)}),
            },
        ),
        min_size=1,
        max_size=25,
    ),
    newline=st.sampled_from(["\n", "\r\n", "\n\n", " \n"]),
    last=st.booleans(),
    block=st.integers(1, 80),
)
@QUICK
def test_json_splits_together_are_the_file(
    rows: list[dict[str, object]], newline: str, last: bool, block: int
) -> None:
    schema = pa.schema(
        [("i", pa.int64()), ("s", pa.string()), ("o", pa.struct([("x", pa.list_(pa.int64()))]))]
    )
    lines = newline.join(json.dumps(row, ensure_ascii=bool(len(rows) % 2)) for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes((lines + (newline if last else "")).encode())
        source = JsonSource(path, schema=schema, block_bytes=block)
        splits = source.splits()
        expected = [{name: row.get(name) for name in schema.names} for row in rows]
        assert read_all(source, splits).to_pylist() == expected
        given_rows = read_all(source, splits[:-1]).num_rows
        assert source.locate(splits[-1], 0).number == given_rows


def test_a_record_longer_than_a_block_is_read_whole(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    path = tmp_path / "a.csv"
    path.write_text("n,text\n" + "".join(f"{n},short\n" for n in range(200_000)) + f"7,{long}\n8,end\n")
    table = read_all(CsvSource(path, block_bytes=1 << 30))
    assert table.num_rows == 200_002
    assert table["n"].to_pylist() == [*range(200_000), 7, 8]
    assert table["text"][-2].as_py() == long


def test_an_open_quote_is_an_error_however_far_on_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,2\n" * 400_000 + '3,"4\n5,6\n')
    with pytest.raises(UnreadableFile, match="quote at byte 1,600,006 is never closed"):
        read_all(CsvSource(path, block_bytes=1000))
    sound = [read_sound(source, split) for source in [CsvSource(path)] for split in source.splits()]
    assert sum(part.table.num_rows for part in sound) == 400_000
    (error,) = (error for part in sound for error in part.bad.values())
    assert "the part that begins at byte 1,572,868: a quote in it is never closed" in str(error)
