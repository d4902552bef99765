"""TFRecord files: what TensorFlow writes is read, what is written TensorFlow reads, and damage is found."""

from __future__ import annotations

import gzip
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.annex.formats.tfrecords import framing
from headrace.annex.formats.tfrecords.sink import TFRecords
from headrace.annex.formats.tfrecords.source import TFRecordSource
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, MissingLibrary, SchemaMismatch, SinkError, UnreadableFile
from headrace.testing.sinks import FormatContract
from headrace.testing.sources import SourceContract

pytest.importorskip("google_crc32c")

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
KINDS = {bytes: "bytes_list", float: "float_list", int: "int64_list"}


def example(**columns: Any) -> bytes:
    """Return a record; a list of values is a feature, None one of no kind."""
    made = framing.example_class()()
    for name, values in columns.items():
        feature = made.features.feature[name]
        for value in () if values is None else values:
            getattr(feature, KINDS[type(value)]).value.append(value)
    return bytes(made.SerializeToString(deterministic=True))


def write(path: Path, *records: bytes) -> Path:
    path.write_bytes(b"".join(map(framing.framed, records)))
    return path


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    return hr.read_tfrecords(path, **options).with_options(**QUIET).take_all()


class TestSource(SourceContract):
    folder: Path

    def make(self) -> Source:
        for name in "ab":
            if not (self.folder / f"{name}.tfrecord").exists():
                rows = [example(i=[i], t=[b"x" * i], v=[0.5] * i, o=[i] if i % 2 else None) for i in range(5)]
                write(self.folder / f"{name}.tfrecord", *rows)
        return TFRecordSource(self.folder, include_paths=True)

    def make_bad(self) -> tuple[Source, list[int]]:
        good = [example(i=[i]) for i in range(6)]
        path = write(self.folder / "a.tfrecord", *good[:2], b"\xff no example", example(i=[1.5]), *good[2:])
        data = bytearray(path.read_bytes())
        at = data.index(framing.framed(good[3]))
        data[at + 14] ^= 1  # of the fourth good record, which is the sixth
        path.write_bytes(data)
        write(self.folder / "b.tfrecord", *good)
        with (self.folder / "b.tfrecord").open("ab") as file:
            file.write(framing.framed(good[0])[:-1])
        return TFRecordSource(self.folder, schema=pa.schema({"i": pa.int64()})), [2, 3, 5, 14]


class TestSink(FormatContract):
    many = 3_000

    def make(self) -> TFRecords:
        return TFRecords()

    def read(self, path: Path) -> pa.Table:
        schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("score", pa.float64())])
        return hr.read_tfrecords(path, schema=schema).with_options(**QUIET).to_arrow()


ROWS = pa.table(
    {
        "i": pa.array([1, -(2**63), None], pa.int64()),
        "u": pa.array([1, 2, 2**63 - 1], pa.uint64()),
        "b": [True, False, None],
        "f": pa.array([1.5, float("nan"), None], pa.float32()),
        "d": pa.array([0.25, None, float("-inf")], pa.float64()),
        "t": ["one ü", None, ""],
        "raw": [b"\0\xff", b"", None],
        "v": pa.array([[1.5, 2], [], None], pa.list_(pa.float32())),
        "many": [[1, 2, 3], None, [4]],
        "words": [["a", "b"], [], None],
        "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "none": pa.nulls(3),
    }
)
NAN = "nan"


def plain(values: Any) -> Any:
    """Return values in which NaN equals itself."""
    if isinstance(values, dict):
        return {name: plain(value) for name, value in values.items()}
    if isinstance(values, (list, tuple, np.ndarray)):
        return [plain(value) for value in values]
    return NAN if isinstance(values, float) and values != values else values


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_there_and_back(tmp_path: Path, compression: Any) -> None:
    data = hr.from_arrow(ROWS).with_options(**QUIET)
    result = data.write_tfrecords(tmp_path / "out", compression=compression)
    assert result.rows == 3
    (part,) = (tmp_path / "out").glob("*.tfrecords*")
    assert part.name.endswith(".tfrecords.gz" if compression else ".tfrecords")
    schema = pa.schema(
        [
            ("kind", pa.string()) if name == "kind" else ROWS.schema.field(name)
            for name in ROWS.column_names[:-1]
        ]
    )
    back = hr.read_tfrecords(tmp_path / "out", schema=schema).with_options(**QUIET).to_arrow()
    assert plain(back.to_pylist()) == plain(ROWS.drop_columns(["none"]).to_pylist())
    found = hr.read_tfrecords(tmp_path / "out").schema()
    assert {name: str(found.field(name).type) for name in found.names} == {
        "b": "int64", "d": "float", "f": "float", "i": "int64", "kind": "binary", "many": "list<item: int64>",
        "none": "null", "pair": "list<item: int64>", "raw": "binary", "t": "binary", "u": "int64",
        "v": "list<item: float>", "words": "list<item: binary>",
    }  # fmt: skip
    assert hr.verify(tmp_path / "out").good
    first = part.read_bytes()
    data.write_tfrecords(tmp_path / "again", compression=compression)
    assert next((tmp_path / "again").glob("*.tfrecords*")).read_bytes() == first


def test_bytes_are_those_that_tensorflow_writes(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(
        bytes.fromhex(
            "40000000000000002817f4950a3e0a0d0a016212080a060a0200ff0a000a110a0166120c120a0a080000c03f000000c0"
            "0a130a0169120e1a0c0a0affffffffffffffffff010a050a016e1200813a5c5f"
        )
    )
    schema = {"b": pa.list_(pa.binary()), "f": pa.list_(pa.float32()), "i": pa.int64(), "n": pa.int64()}
    row = {"b": [b"\0\xff", b""], "f": [1.5, -2.0], "i": -1, "n": None}
    table = hr.read_tfrecords(tmp_path, schema=pa.schema(schema)).with_options(**QUIET).to_arrow()
    assert table.to_pylist() == [row]
    hr.from_arrow(table).with_options(**QUIET).write_tfrecords(tmp_path / "out")
    (part,) = (tmp_path / "out").glob("*.tfrecords")
    assert part.read_bytes() == (tmp_path / "a.tfrecord").read_bytes()


@pytest.mark.soak
def test_tensorflow_reads_what_is_written_and_the_other_way(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    hr.from_arrow(ROWS.drop_columns(["none"])).with_options(**QUIET).write_tfrecords(tmp_path / "out")
    (part,) = (tmp_path / "out").glob("*.tfrecords")
    found = []
    for record in tf.data.TFRecordDataset(str(part)).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        kinds = {name: features[name].WhichOneof("kind") for name in features}
        found.append(
            {name: kind and list(getattr(features[name], kind).value) for name, kind in kinds.items()}
        )
    wanted = ROWS.drop_columns(["none"]).to_pylist()
    for row, features in zip(wanted, found, strict=True):
        for name, value in row.items():
            values = value if isinstance(value, list) or value is None else [value]
            encoded = values and [each.encode() if isinstance(each, str) else each for each in values]
            assert plain(features[name]) == plain(encoded), name
    for options, name in ((None, "t.tfrecord"), ("GZIP", "g.tfrecord.gz")):
        with tf.io.TFRecordWriter(str(tmp_path / name), options) as writer:
            for record in tf.data.TFRecordDataset(str(part)).as_numpy_iterator():
                writer.write(record)
        assert plain(read(tmp_path / name)) == plain(read(part))
    assert (tmp_path / "t.tfrecord").read_bytes() == part.read_bytes()


def test_types_are_settled_by_the_first_records(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.tfrecord",
        example(x=[1], y=[1, 2], e=None),
        example(x=[2], y=[3]),
        example(y=None, x=None),
    )
    assert read(path) == [
        {"e": None, "x": 1, "y": [1, 2]},
        {"e": None, "x": 2, "y": [3]},
        {"e": None, "x": None, "y": None},
    ]
    data = hr.read_tfrecords(path).map_batches(lambda batch: {"t": [str(batch["x"].dtype)]}, batch_size=1)
    assert {row["t"] for row in data.with_options(**QUIET).take_all()} == {"float64"}, (
        "one dtype in every batch"
    )
    write(path, *[example(x=[1])] * 300, example(x=[1, 2]), example(x=[1], z=[1]), example(x=[b"one"]))
    data = hr.read_tfrecords(path).with_options(on_error="reject", **QUIET)
    assert data.write_parquet(tmp_path / "out").rows == 300
    errors = [row["_error"] for row in hr.read_rejected(tmp_path / "out").with_options(**QUIET).take_all()]
    assert (
        "record 300 of" in errors[0]
        and "'x' has 2 values, and the first records have one at most" in errors[0]
    )
    assert "none of the first records has a feature 'z'" in errors[1]
    assert "'x' is of bytes, and the column int64" in errors[2]
    schema = pa.schema({"x": pa.list_(pa.int16())})
    write(path, example(x=[1, 2]), example(x=[2**20]))
    with pytest.raises(UnreadableFile, match=r"record 1 of .*'x' does not fit int16"):
        read(path, schema=schema)
    write(path, example(x=[1]), example(x=[0.5]))
    with pytest.raises(
        SchemaMismatch, match=r"'x' is of integers in record 0 of .* and of floats in record 1 of"
    ):
        hr.read_tfrecords(path).schema()


def test_a_schema_is_kept(tmp_path: Path) -> None:
    """Numbers that a type cannot hold, and nulls where there may be none, are bad rows."""
    path = write(tmp_path / "a.tfrecord", example(x=[0.5]), example(x=[70_000.0]), example(x=[]), example())
    half = pa.field("x", pa.float16())
    with pytest.raises(
        UnreadableFile, match=r"record 1 of .*'x' does not fit halffloat: a number is too large"
    ):
        read(path, schema=pa.schema([half]))
    data = hr.read_tfrecords(path, schema=pa.schema([half.with_nullable(False)]))
    data.with_options(on_error="reject", **QUIET).write_parquet(tmp_path / "out")
    assert hr.read_parquet(tmp_path / "out").with_options(**QUIET).take_all() == [{"x": 0.5}]
    errors = [row["_error"] for row in hr.read_rejected(tmp_path / "out").with_options(**QUIET).take_all()]
    assert ["has no value for the feature 'x'" in error for error in errors] == [False, True, True]


def test_what_looks_like_an_example_is_not_read_in_part(tmp_path: Path) -> None:
    """TensorFlow's SequenceExample has its context where an Example has its features, and more behind it."""
    lists = b"\x12\x00"  # its field 2: feature_lists
    path = write(tmp_path / "a.tfrecord", example(x=[1]) + lists)
    with pytest.raises(UnreadableFile, match="SequenceExample, whose lists of features cannot be read"):
        read(path)
    assert read(path, schema=pa.schema({"x": pa.int64()})) == [{"x": 1}]
    path.write_bytes(zlib.compress(write(path, example(x=[1])).read_bytes()))
    with pytest.raises(UnreadableFile, match="it is compressed by ZLIB"):
        read(path)


def test_damage_is_found_by_the_checksums(tmp_path: Path) -> None:
    records = [example(i=[i]) for i in range(4)]
    whole = write(tmp_path / "a.tfrecord", *records).read_bytes()
    size = len(whole) // 4
    wrong = {
        size + 2: "record 1 of .*its length is damaged, by its checksum",
        size + 14: "record 1 of .*it is damaged, by its checksum",
        2 * size - 1: "record 1 of .*it is damaged, by its checksum",
    }
    for at, message in wrong.items():
        data = bytearray(whole)
        data[at] ^= 0x10
        (tmp_path / "a.tfrecord").write_bytes(data)
        with pytest.raises(UnreadableFile, match=message):
            read(tmp_path)
    for stop in (1, 11, 12, 13, size - 1, 2 * size - 5, len(whole) - 1):
        (tmp_path / "a.tfrecord").write_bytes(whole[:stop])
        with pytest.raises(UnreadableFile, match=rf"record {stop // size} of .*the file was cut short"):
            read(tmp_path)
    huge = struct.pack("<Q", 1 << 40)
    (tmp_path / "a.tfrecord").write_bytes(whole + huge + framing.checksum(huge))
    with pytest.raises(UnreadableFile, match=r"record 4 of .*more than a message may"):
        read(tmp_path)
    (tmp_path / "a.tfrecord").write_bytes(gzip.compress(whole * 500)[:-9])
    with pytest.raises(UnreadableFile, match=r"a\.tfrecord"):
        read(tmp_path)
    (tmp_path / "a.tfrecord").write_bytes(b"")
    assert read(tmp_path, schema=pa.schema({"i": pa.int64()})) == []
    (tmp_path / "a.tfrecord").write_text("no records at all, but text")
    with pytest.raises(UnreadableFile, match="its length is damaged"):
        hr.read_tfrecords(tmp_path).schema()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1, None]], "one of its lists has a null in it"),
        (pa.array([0.1]), r"float32, which would round 0\.1\. If they may be rounded"),
        (pa.array([1e300]), r"would round 1e\+300"),
        (pa.array([2**63], pa.uint64()), "its integers are int64"),
        ([{"a": 1}], "a feature is bytes, text, numbers, or a list of these"),
        (pa.array([0], pa.timestamp("s")), "a feature is bytes"),
        (pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((1, 2, 2))), "a feature has one axis: flatten"),
    ],
)
def test_what_no_feature_can_hold_is_refused(tmp_path: Path, column: Any, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        hr.from_arrow(pa.table({"x": column})).with_options(**QUIET).write_tfrecords(tmp_path / "out")


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="schema= has the column 'x' of type timestamp"):
        hr.read_tfrecords(tmp_path, schema=pa.schema({"x": pa.timestamp("s")}))
    with pytest.raises(ArgumentError, match="compression"):
        hr.range(1).write_tfrecords(tmp_path / "out", compression="zstd")
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    for call in (lambda: hr.read_tfrecords(tmp_path), lambda: hr.range(1).write_tfrecords(tmp_path / "out")):
        with pytest.raises(MissingLibrary, match=r'pip install "\.\[tfrecords\]"'):
            call()
