"""Avro files: types, codecs, and what becomes of damaged ones."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.annex.formats.avro import AvroSource
from headrace.core.source_ports import Source
from headrace.errors import UnreadableFile
from headrace.testing.sources import SourceContract

fastavro = pytest.importorskip("fastavro")

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
TRIP = [{"name": "id", "type": "long"}, {"name": "t", "type": ["null", "string"]}]


def record(fields: Any, name: str = "trip") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


def write(path: Path, rows: Any, fields: Any = TRIP, **options: Any) -> Path:
    with path.open("wb") as file:
        fastavro.writer(file, record(fields), rows, **options)
    return path


def trips(first: int, stop: int) -> list[dict[str, Any]]:
    return [{"id": i, "t": None if i % 3 == 0 else f"text {i}"} for i in range(first, stop)]


class TestAvro(SourceContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def small_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.annex.formats.avro._SPLIT_BYTES", 200)

    def make(self) -> Source:
        if not (self.folder / "a.avro").exists():
            write(self.folder / "a.avro", trips(0, 60), sync_interval=100)
            write(
                self.folder / "b.avro", [{"x": 1.5}, {"x": None}], [{"name": "x", "type": ["double", "null"]}]
            )
        return AvroSource(self.folder, include_paths=True)

    def make_bad(self) -> tuple[Source, list[int]]:
        for name in "ab":
            write(self.folder / f"{name}.avro", trips(0, 60), sync_interval=100, codec="deflate")
        source = AvroSource(self.folder)
        source.splits()
        blocks = source.inspected().files[0].blocks
        data = bytearray((self.folder / "a.avro").read_bytes())
        third = blocks[3]
        data[third.at : third.at + third.size] = b"\xff" * third.size
        (self.folder / "a.avro").write_bytes(data)
        begin = sum(block.rows for block in blocks[:3])
        return AvroSource(self.folder), list(range(begin, begin + third.rows))


def long(value: int) -> bytes:
    """Encode a number of variable length."""
    value, made = value << 1, bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def recoded(path: Path, codec: str, pack: Callable[[bytes], bytes]) -> None:
    """Compress the blocks of a file anew, by the words of the format's specification."""
    source = AvroSource(path)
    source.splits()
    data, sync = path.read_bytes(), path.read_bytes()[-16:]
    schema = json.dumps(record(TRIP)).encode()
    made = b"Obj\x01" + long(2)
    for name, value in ((b"avro.codec", codec.encode()), (b"avro.schema", schema)):
        made += long(len(name)) + name + long(len(value)) + value
    made += long(0) + sync
    for block in source.inspected().files[0].blocks:
        body = pack(data[block.at : block.at + block.size])
        made += long(block.rows) + long(len(body)) + body + sync
    path.write_bytes(made)


def snappy(data: bytes) -> bytes:
    body: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return body + zlib.crc32(data).to_bytes(4, "big")


def zstandard(data: bytes) -> bytes:
    made: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return made


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_each_codec_gives_the_same_rows(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "a.avro"
    if codec in ("snappy", "zstandard"):  # fastavro needs further libraries for them
        write(path, trips(0, 500), sync_interval=1000)
        recoded(path, codec, snappy if codec == "snappy" else zstandard)
    else:
        write(path, trips(0, 500), codec=codec, sync_interval=1000)
    assert hr.read_avro(path).with_options(**QUIET).take_all() == trips(0, 500)
    data = bytearray(path.read_bytes())
    if codec == "snappy":
        data[-17] ^= 1  # of the checksum
        path.write_bytes(data)
        with pytest.raises(UnreadableFile, match="its checksum is wrong"):
            hr.read_avro(path).with_options(**QUIET).take_all()


def test_types_are_arrows(tmp_path: Path) -> None:
    point = {"type": "record", "name": "point", "fields": [{"name": "x", "type": "float"}]}
    day = dt.datetime(2024, 2, 29, 12, 0, 0, 1, dt.UTC)
    columns: dict[str, tuple[Any, Any, Any, Any]] = {
        "i": ("int", 3, pa.int32(), 3),
        "u": (["int", "null", "long"], 2**40, pa.int64(), 2**40),
        "n": (["double", "int"], 0.5, pa.float64(), 0.5),
        "e": ({"type": "enum", "name": "color", "symbols": ["red", "blue"]}, "blue", pa.string(), "blue"),
        "f": ({"type": "fixed", "name": "four", "size": 4}, b"abcd", pa.binary(4), b"abcd"),
        "l": ({"type": "array", "items": ["null", "long"]}, [1, None], pa.list_(pa.int64()), [1, None]),
        "m": ({"type": "map", "values": "int"}, {"k": 1}, pa.map_(pa.string(), pa.int32()), [("k", 1)]),
        "p": (point, {"x": 0.25}, pa.struct([("x", pa.float32())]), {"x": 0.25}),
        "again": (["null", "point"], None, pa.struct([("x", pa.float32())]), None),
        "lm": (
            {"type": "array", "items": {"type": "map", "values": "point"}},
            [{"a": {"x": 1.0}}],
            pa.list_(pa.map_(pa.string(), pa.struct([("x", pa.float32())]))),
            [[("a", {"x": 1.0})]],
        ),
        "day": ({"type": "int", "logicalType": "date"}, day.date(), pa.date32(), day.date()),
        "ts": ({"type": "long", "logicalType": "timestamp-micros"}, day, pa.timestamp("us", "UTC"), day),
        "local": (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            dt.datetime(2024, 1, 1),
            pa.timestamp("ms"),
            dt.datetime(2024, 1, 1),
        ),
        "time": (
            {"type": "long", "logicalType": "time-micros"},
            dt.time(1, 2, 3),
            pa.time64("us"),
            dt.time(1, 2, 3),
        ),
        "ms": (
            {"type": "int", "logicalType": "time-millis"},
            dt.time(1, 2, 3),
            pa.time32("ms"),
            dt.time(1, 2, 3),
        ),
        "money": (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            decimal.Decimal("-12.34"),
            pa.decimal128(9, 2),
            decimal.Decimal("-12.34"),
        ),
        "id": (
            {"type": "string", "logicalType": "uuid"},
            uuid.UUID(int=7),
            pa.string(),
            str(uuid.UUID(int=7)),
        ),
        "none": ("null", None, pa.null(), None),
    }
    fields = [{"name": name, "type": each[0]} for name, each in columns.items()]
    path = write(tmp_path / "a.avro", [{name: each[1] for name, each in columns.items()}], fields)
    table = hr.read_avro(path).with_options(**QUIET).to_arrow()
    for name, (_, _, type_, value) in columns.items():
        assert (table.schema.field(name).type, table[name][0].as_py()) == (type_, value), name


def test_what_no_column_is_is_refused(tmp_path: Path) -> None:
    tree = record([{"name": "next", "type": ["null", "node"]}], "node")
    for type_, reason in (
        (["string", "int"], "'x' is one of string, int, and a column has only one type"),
        (tree, "'node'.*contains itself"),
    ):
        path = write(tmp_path / "a.avro", [], [{"name": "x", "type": type_}])
        with pytest.raises(UnreadableFile, match=reason):
            hr.read_avro(path).schema()
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, "long", [1])
    with pytest.raises(UnreadableFile, match="not a record"):
        hr.read_avro(tmp_path).schema()
    path = write(tmp_path / "a.avro", [{"x": 2**53 + 1}], [{"name": "x", "type": ["long", "double"]}])
    with pytest.raises(UnreadableFile, match=r"block 0 .* exactly representable"):
        hr.read_avro(path).with_options(**QUIET).take_all()


@pytest.mark.parametrize("at", [2, 20, 150, -1, -10, -17])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, at: int) -> None:
    path = write(tmp_path / "a.avro", trips(0, 60), sync_interval=100)
    path.write_bytes(path.read_bytes()[:at])
    with pytest.raises(UnreadableFile, match=r"Cannot read '.*/a\.avro' as Avro: .*cut short|does not begin"):
        hr.read_avro(path).count()


def test_a_byte_anywhere_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Of a file whose blocks have checksums, no damage gives other rows than those that were written."""
    good = write(tmp_path / "a.avro", trips(0, 60), sync_interval=150, codec="xz").read_bytes()
    wanted = trips(0, 60)
    header = good.index(b"avro.schema") + 200
    for at in range(header, len(good), 37):
        data = bytearray(good)
        data[at] ^= 0x55
        (tmp_path / "a.avro").write_bytes(data)
        run = hr.read_avro(tmp_path).with_options(on_error="reject", **QUIET)
        try:
            table = run.to_arrow().to_pylist()
        except UnreadableFile:
            continue
        except UserWarning as warning:  # some rows failed: it says how many
            assert "rows failed" in str(warning)
            continue
        assert table == wanted, at


def test_rows_of_a_damaged_block_are_set_aside(tmp_path: Path) -> None:
    source, lost = TestAvro.make_bad(_at(tmp_path))
    del source
    run = hr.read_avro(tmp_path).with_options(on_error="reject", **QUIET)
    result = run.write_parquet(tmp_path.parent / f"{tmp_path.name}-out")
    assert (result.rows, result.rejected, result.ledger.read) == (120 - len(lost), len(lost), 120)
    ids = pq.read_table(tmp_path.parent / f"{tmp_path.name}-out")["id"].to_pylist()
    assert ids == [*(i for i in range(60) if i not in lost), *range(60)]
    rejected = hr.read_rejected(tmp_path.parent / f"{tmp_path.name}-out").take_all()
    assert [row["_row"] for row in rejected] == lost and "block 3 (byte" in rejected[0]["_error"]
    with pytest.raises(UnreadableFile, match=r"block 3 \(byte [\d,]+\) of '.*a\.avro'"):
        run.with_options(on_error="raise").take_all()


def _at(folder: Path) -> TestAvro:
    made = TestAvro()
    made.folder = folder
    return made
