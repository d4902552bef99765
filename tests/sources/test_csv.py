"""CSV: headers, types settled once, compression, encodings, and rows that cannot be read."""

from __future__ import annotations

import bz2
import datetime
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import (
    ArgumentError,
    SchemaMismatch,
    UnknownColumn,
    UnreadableFile,
)
from headrace.sources.csv.source import CsvSource
from headrace.testing.sources import read_all


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., pa.Table]:
    def read(content: str | bytes, **options: Any) -> pa.Table:
        path = tmp_path / "a.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_all(CsvSource(path, **options))

    return read


Read = Callable[..., pa.Table]

# ---------------------------------------------------------------- what a file may look like


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b\n1,x\n2,y\n", {"a": [1, 2], "b": ["x", "y"]}),
        ("a,b\r\n1,x\r\n2,y", {"a": [1, 2], "b": ["x", "y"]}),
        ("a,b\r1,x\r2,y\r", {"a": [1, 2], "b": ["x", "y"]}),
        ('"a,\r",b\r1,x\r', {"a,\r": [1], "b": ["x"]}),
        ("\ufeffa,b\n1,x\n", {"a": [1], "b": ["x"]}),
        ("\n\n\na,b\n\n1,x\n\n\n2,y\n\n", {"a": [1, 2], "b": ["x", "y"]}),
        ('a,b\n1,"x\n""y"""\n', {"a": [1], "b": ['x\n"y"']}),
        ('a,b\n1,5" pipe\n2,"x"y"z\n', {"a": [1, 2], "b": ['5" pipe', 'xy"z']}),
        ('a,b\n1,\n,""\nNA,NA\n2,x\n', {"a": [1, None, None, 2], "b": ["", "", "NA", "x"]}),
        ("a,b\n", {"a": [], "b": []}),
        ("a,b", {"a": [], "b": []}),
        ("", {}),
        ("\n\n", {}),
        ("a\n1\n\n2\n", {"a": [1, 2]}),
    ],
)
def test_files_of_every_shape(read: Read, content: str, expected: dict[str, list[object]]) -> None:
    for block in (1, 3, 1 << 20):
        assert read(content, block_bytes=block).to_pydict() == expected


@pytest.mark.parametrize(
    ("options", "content", "expected"),
    [
        ({"has_header": False}, "1,x\n2,y\n", {"f0": [1, 2], "f1": ["x", "y"]}),
        ({"has_header": False, "column_names": ["n", "s"]}, "1,x\n", {"n": [1], "s": ["x"]}),
        ({"column_names": ["n", "s"]}, "1,x\n2,y\n", {"n": [1, 2], "s": ["x", "y"]}),
        ({"column_names": ["n", "s"], "has_header": True}, "\na,a\n1,x\n", {"n": [1], "s": ["x"]}),
        ({"delimiter": ";", "decimal_point": ","}, "a;b\n1,5;x\n", {"a": [1.5], "b": ["x"]}),
        ({"quote_char": "'"}, "a,b\n'1\n','\"'\n", {"a": ["1\n"], "b": ['"']}),
        ({"quote_char": None}, 'a,b\n"1,"2\n', {"a": ['"1'], "b": ['"2']}),
        ({"escape_char": "\\"}, 'a,b\n"x\\"\n,",2\ny\\,\\\n,3\n', {"a": ['x"\n,', "y,\n"], "b": [2, 3]}),
        ({"skip_rows": 2}, '# one\n# "two\na,b\n1,x\n', {"a": [1], "b": ["x"]}),
        (
            {"null_values": ["-"], "strings_can_be_null": True},
            "a,b\n-,-\n1,x\n",
            {"a": [None, 1], "b": [None, "x"]},
        ),
        ({"timestamp_parsers": ["%d.%m.%Y"]}, "a\n24.12.2024\n", {"a": [datetime.datetime(2024, 12, 24)]}),
        ({"newlines_in_values": False}, 'a,b\n1,"x"\n2,"y"\n', {"a": [1, 2], "b": ["x", "y"]}),
        ({"column_types": {"a": "string", "b": float}}, "a,b\n01,2\n", {"a": ["01"], "b": [2.0]}),
        (
            {"column_types": {"a": pa.decimal128(5, 2)}},
            "a\n1.5\n",
            {"a": [__import__("decimal").Decimal("1.50")]},
        ),
    ],
)
def test_options(
    read: Read, options: dict[str, Any], content: str, expected: dict[str, list[object]]
) -> None:
    for block in (1, 1 << 20):
        assert read(content, block_bytes=block, **options).to_pydict() == expected


@pytest.mark.parametrize("encoding", ["latin1", "cp1252", "utf-16", "utf-8-sig", "shift_jis"])
def test_encodings(read: Read, encoding: str) -> None:
    word = "日本" if encoding == "shift_jis" else "é"
    table = read(f"a,{word}\n1,{word}\n2,x\n".encode(encoding), encoding=encoding, block_bytes=1)
    assert table.to_pydict() == {"a": [1, 2], word: [word, "x"]}


def test_compression_is_told_by_content(tmp_path: Path) -> None:
    text = b"a,b\n1,x\n"
    packed = {
        "a.csv.gz": gzip.compress(text[:5]) + gzip.compress(text[5:]),
        "b.csv.zst": pa.compress(text, codec="zstd", asbytes=True),
        "c.csv.bz2": bz2.compress(text),
        "d.csv.gz": text,
        "e.csv": gzip.compress(text),
        "f.csv.gz": gzip.compress(b""),
    }
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
    source = CsvSource(tmp_path)
    assert len(source.splits()) == 5
    assert read_all(source).to_pydict() == {"a": [1] * 5, "b": ["x"] * 5}


def test_a_promise_of_no_newlines_spares_the_scan(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + '"1","2"\n' * 100)
    source = CsvSource(path, block_bytes=50, newlines_in_values=False)
    assert len(source.splits()) == 15
    assert read_all(source).num_rows == 100


def test_files_are_about_64_splits_of_128_kib_or_more(tmp_path: Path) -> None:
    line = "123456789,abcdefghijklmnop\n"
    for name, size in (("a", 300_000), ("b", 1_800_000), ("c", 30 << 20)):
        (tmp_path / f"{name}.csv").write_text("n,s\n" + line * (size // len(line)))
    for files, least in ((["a"], 128 << 10), (["a", "b"], 128 << 10), (["a", "b", "c"], (30 << 20) // 64)):
        source = CsvSource([tmp_path / f"{name}.csv" for name in files])
        splits = source.splits()
        *most, _ = [s for s in splits if s.file == len(files) - 1]
        assert all(least <= s.bytes < 1.1 * least + len(line) for s in most)
        assert {s.file for s in splits} == set(range(len(files)))
    assert len(CsvSource(tmp_path / "b.csv", block_bytes=8 << 20).splits()) == 1
    assert len(CsvSource(tmp_path / "b.csv").splits()) == 14
    assert read_all(CsvSource(tmp_path / "b.csv")).num_rows == 1_800_000 // len(line)


# ---------------------------------------------------------------- names and types over many files


def write_all(folder: Path, *contents: str) -> Path:
    for number, content in enumerate(contents):
        (folder / f"{number}.csv").write_text(content)
    return folder


def test_files_unify_by_name(tmp_path: Path) -> None:
    source = CsvSource(write_all(tmp_path, "", "a,b\n1,\n", "b,c,a\nx,2024-01-01,2.5\n", "a\n\n"))
    assert source.schema() == pa.schema([("a", pa.float64()), ("b", pa.string()), ("c", pa.date32())])
    assert read_all(source).to_pylist() == [
        {"a": 1.0, "b": "", "c": None},
        {"a": 2.5, "b": "x", "c": datetime.date(2024, 1, 1)},
    ]


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        SchemaMismatch, match=r"'a' is int64 in .*0\.csv' but string in .*1\.csv'.*column_types="
    ):
        CsvSource(write_all(tmp_path, "a\n1\n", "a\nx\n")).schema()
    table = read_all(CsvSource(tmp_path, column_types={"a": str}))
    assert table.to_pydict() == {"a": ["1", "x"]}


def test_files_without_a_common_column_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SchemaMismatch, match=r"0\.csv' and .*1\.csv' have no column in common.*has_header=False"
    ):
        CsvSource(write_all(tmp_path, "a,b\n1,2\n", "3,4\n5,6\n")).schema()
    with pytest.raises(SchemaMismatch, match="have 2 and 3 columns"):
        CsvSource(write_all(tmp_path, "1,2\n", "3,4,5\n"), has_header=False).schema()


def test_types_are_those_of_the_start_in_every_split(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,s\n" + "1,\n" * 400_000 + "2,late\n")
    source = CsvSource(path, block_bytes=1 << 18)
    assert source.schema() == pa.schema([("n", pa.int64()), ("s", pa.string())])
    table = read_all(source)
    assert table["s"][-1].as_py() == "late"
    assert table.num_rows == 400_001


def test_a_column_without_values_is_null_only_if_all_was_seen(tmp_path: Path) -> None:
    assert CsvSource(write_all(tmp_path, "a,b\n1,\n")).schema().field("b").type == pa.null()
    (tmp_path / "1.csv").write_text("a,b\n" + "1,\n" * 50_000)
    assert CsvSource(tmp_path).schema().field("b").type == pa.string()


def test_all_files_empty(tmp_path: Path) -> None:
    assert CsvSource(write_all(tmp_path, "", "\n")).schema() == pa.schema([])
    source = CsvSource(tmp_path, column_names=["a"], column_types={"a": int})
    assert source.schema() == pa.schema([("a", pa.int64())])
    assert source.splits() == []


# ---------------------------------------------------------------- bad input

ROWS = "".join(f"{n},x\n" for n in range(300_000))  # more than the first megabyte


def test_a_late_value_names_file_row_and_column(read: Read) -> None:
    with pytest.raises(UnreadableFile) as caught:
        read(f"n,s\n{ROWS}\n\noops,y\n", block_bytes=1 << 16)
    for part in ("a.csv', row 300000 (", "column 'n'", "'oops'", "not int64", "column_types={'n': 'string'}"):
        assert part in str(caught.value)


def test_a_row_of_another_width_names_file_and_row(read: Read) -> None:
    for text, row in ((f"n,s\n{ROWS}1,2,3\n", 300_000), ("n,s\n1,x\n2\n", 1)):
        with pytest.raises(
            UnreadableFile, match=rf"a\.csv', row {row} \(.*: it has \d fields where 2 are expected"
        ):
            read(text, block_bytes=1 << 16)


@pytest.mark.parametrize("start", ["", ROWS])
def test_text_of_another_encoding(read: Read, start: str) -> None:
    with pytest.raises(UnreadableFile, match=r"row \d+ .*: column 's' is not valid UTF-8.*encoding='latin1'"):
        read(f"n,s\n{start}".encode() + b"1,\xe9\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "PAR1\x15\0",
            r"begins with PAR1(?: .once decompressed; gzip.)?, so it is a Parquet file; read_parquet reads it",
        ),
        ("PK\x03\x04\x14\0", r"begins with PK.*, so it is a zip archive or an Excel workbook"),
        ("\x89HDF\r\n\x1a\n\0", "an HDF5 file"),
        ("name" + "\0" * 253 + "ustar", "a tar archive"),
        ("\xff\xfea\0,\0b\0\n\0", "begins with the mark of UTF-16 text; set encoding='utf-16'"),
        ("n,caf\xe9\n1,2\n", r"the header line is not valid UTF-8 \(byte 0xe9\).*encoding='latin1'"),
        ("\xe9,\xe9\xe8\n", "the header line is not valid UTF-8"),
        ('{"a": 1, "b": 2}\n{"a": 2, "b": 3}\n', 'begins with {", as JSON.*Use read_json'),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_what_is_no_csv(read: Read, pack: Callable[[bytes], bytes], content: str, message: str) -> None:
    with pytest.raises(UnreadableFile, match=message) as caught:
        read(pack(content.encode("latin1")))
    assert "a.csv" in str(caught.value)
    if pack is gzip.compress and "begins with P" in message:
        assert "(once decompressed; gzip)" in str(caught.value)


@pytest.mark.parametrize("wide", [True, False])
def test_a_real_parquet_file_is_no_csv(tmp_path: Path, wide: bool) -> None:
    columns = {f"c{n}": range(5000) for n in range(9 if wide else 1)}
    pq.write_table(pa.table(columns), tmp_path / "a.csv")
    for options in ({}, {"quote_char": None}, {"has_header": False}, {"column_names": ["x"]}):
        with pytest.raises(UnreadableFile, match="read_parquet reads it"):
            CsvSource(tmp_path / "a.csv", **options).schema()


def test_text_that_begins_like_a_binary_file_is_read(read: Read) -> None:
    assert read("PAR1,PK\n1,2\n").to_pydict() == {"PAR1": [1], "PK": [2]}
    assert read("ÿþ\n1\n".encode("latin1"), encoding="latin1").to_pydict() == {"ÿþ": [1]}


def test_a_text_that_the_encoding_does_not_fit(read: Read) -> None:
    with pytest.raises(UnreadableFile, match=r"a\.csv': its text is not shift_jis \(.*encoding="):
        read(b"a\n\xff\xff\n", encoding="shift_jis")


def test_a_long_value_is_shortened(read: Read) -> None:
    with pytest.raises(UnreadableFile) as caught:
        read("n\n1\n" + "z" * 5000 + "\n", column_types={"n": int})
    assert len(str(caught.value)) < 500


def test_a_quote_that_is_never_closed(read: Read) -> None:
    with pytest.raises(UnreadableFile, match="quote at byte 6 is never closed"):
        read('a,b\n1,"2\n3,4\n')


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"delimiter": ",,"}, ArgumentError, "delimiter is a single ASCII character"),
        ({"quote_char": ""}, ArgumentError, "quote_char is a single"),
        ({"column_names": "a"}, ArgumentError, r"column_names=\['a'\]"),
        (
            {"column_names": ["x"]},
            ArgumentError,
            "column_names has 1 names, but .* has 2 fields in its first row",
        ),
        (
            {"column_names": ["x"], "has_header": True},
            ArgumentError,
            "column_names has 1 names, but .* has 2 columns: .'a', 'b'.",
        ),
        ({"column_types": {"aa": int}}, UnknownColumn, "'aa'.*Did you mean 'a'"),
        ({"column_types": {"a": "integer"}}, ArgumentError, r"column_types\['a'\] is 'integer'"),
        (
            {"column_types": {"a": pa.list_(pa.int8())}},
            ArgumentError,
            "list.* 'a', which cannot be read from CSV",
        ),
        ({"column_types": {"a": pa.decimal32(5, 2)}}, ArgumentError, "decimal32.* cannot be read from CSV"),
        ({"encoding": "klingon"}, ArgumentError, "no text encoding 'klingon'"),
    ],
)
def test_wrong_options(read: Read, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read("a,b\n1,2\n", **options)


def test_two_columns_of_one_name(read: Read) -> None:
    with pytest.raises(SchemaMismatch, match="two columns named 'a'"):
        read("a,a\n1,2\n")
