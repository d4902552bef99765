"""JSON files keep the contract, and JSON parsers read back what was written."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import given, settings

from crossed import few
from headrace.core.target_ports import Sink
from headrace.errors import ArgumentError, SinkError
from headrace.sinks.files import FileSink
from headrace.sinks.json import Json
from headrace.testing.sinks import SCHEMA, FormatContract, bound

from .tables import NESTED, SCALARS, batches_of, tables, written


def read(path: Path, schema: pa.Schema) -> pa.Table:
    if path.stat().st_size == 0:  # what pyarrow cannot read
        return schema.empty_table()
    with pa.input_stream(str(path), compression="detect") as stream:
        return pj.read_json(stream, parse_options=pj.ParseOptions(explicit_schema=schema))


class TestJson(FormatContract):
    """The contract, on JSON lines."""

    def make(self) -> Json:
        return Json()

    def read(self, path: Path) -> pa.Table:
        return read(path, SCHEMA)


class TestJsonGzip(TestJson):
    """The contract, with compression."""

    def make(self) -> Json:
        return Json(compression="gzip")

    def read(self, path: Path) -> pa.Table:
        with gzip.open(path) as stream:
            data = stream.read()
        plain = path.with_suffix(".plain")
        plain.write_bytes(data)
        return read(plain, SCHEMA)


def lines(sink: Sink, *batches: pa.RecordBatch) -> list[Any]:
    text = written(sink, *batches).read_text("utf-8")
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text[:-1].split("\n")]


def column(sink: Sink, array: pa.Array) -> list[Any]:
    return [row["x"] for row in lines(sink, pa.RecordBatch.from_arrays([array], ["x"]))]


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return bound(FileSink(str(tmp_path), Json()), tmp_path)


MOMENT = dt.datetime(2020, 1, 2, 3, 4, 5, 678)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.float64(), [1.0, math.nan, math.inf, 1e300, -0.5, None], [1.0, None, None, 1e300, -0.5, None]),
        (pa.float32(), [0.1], [0.1]),
        (pa.float16(), [0.5], [0.5]),
        (pa.bool_(), [True, False, None], [True, False, None]),
        (pa.bool8(), [1, 0, None], [True, False, None]),
        (pa.list_view(pa.int8()), [[1], None, [], [2]], [[1], None, [], [2]]),
        (pa.uint64(), [2**64 - 1], [2**64 - 1]),
        (pa.timestamp("s"), [MOMENT.replace(microsecond=0)], ["2020-01-02T03:04:05"]),
        (pa.timestamp("ns"), [1], ["1970-01-01T00:00:00.000000001"]),
        (pa.timestamp("us", "Europe/Berlin"), [MOMENT], ["2020-01-02T03:04:05.000678Z"]),
        (pa.date32(), [MOMENT.date(), None], ["2020-01-02", None]),
        (pa.time64("us"), [dt.time(1, 2, 3, 4)], ["01:02:03.000004"]),
        (pa.duration("ms"), [5], [5]),
        (pa.decimal128(10, 2), [Decimal("1.10"), None], ["1.10", None]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"], ["a", None, "a"]),
        (pa.map_(pa.string(), pa.int8()), [[("a\n", 1), ("b", None)], None], [{"a\n": 1, "b": None}, None]),
        (pa.struct([("p", pa.int8())]), [{"p": 1}, None, {"p": None}], [{"p": 1}, None, {"p": None}]),
        (pa.list_(pa.float32(), 2), [[1, 2], None], [[1.0, 2.0], None]),
        (
            pa.string(),
            ['\x00\x1f\x7f\u2028"\\/é😀\r\n\t', "", None],
            ['\x00\x1f\x7f\u2028"\\/é😀\r\n\t', "", None],
        ),
    ],
    ids=str,
)
def test_what_a_value_becomes(sink: Sink, kind: pa.DataType, values: Any, expected: Any) -> None:
    array = pa.array(values, kind)
    sink.check_schema(pa.schema([("x", kind)]))
    assert column(sink, array) == expected


def test_a_whole_float_stays_a_float(sink: Sink) -> None:
    lines(sink, pa.RecordBatch.from_arrays([pa.array([1.0, 2.0])], ["x"]))
    (path,) = Path(sink.root).glob("part-*")
    assert pj.read_json(path).schema.field("x").type == pa.float64()


def test_tensors_are_nested_lists_even_in_a_slice(sink: Sink) -> None:
    storage = pa.array([[0, 1, 2, 3, 4, 5], None, [6, 7, 8, 9, 10, 11], [12] * 6], pa.list_(pa.int8(), 6))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int8(), (3, 2)), storage)
    assert column(sink, tensors.slice(1, 2)) == [None, [[6, 7], [8, 9], [10, 11]]]


def test_names_are_escaped(sink: Sink) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ['a"\n', "ü"])
    assert lines(sink, batch) == [{'a"\n': 1, "ü": 2}]


def test_long_batches(sink: Sink) -> None:
    assert column(sink, pa.array(range(20_001)).slice(1)) == list(range(1, 20_001))


@settings(deadline=None, max_examples=few(24))
@given(tables([c for c in SCALARS + NESTED if not pa.types.is_binary(c[0])]))
def test_every_line_is_json_and_says_the_row(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as name:
        sink = bound(FileSink(name, Json()), Path(name), "process")
        sink.check_schema(table.schema)
        rows = lines(sink, *batches_of(table))  # type: ignore[arg-type]
    assert len(rows) == table.num_rows
    for i, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type):
            continue
        expected = [_as_json(value) for value in table.column(i).to_pylist()]
        got = [row[field.name] for row in rows]
        if field.type == pa.float32():
            got = [None if value is None else _single(value) for value in got]
        assert got == expected


def _as_json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _single(value: float) -> float:
    return float(pa.array([value]).cast(pa.float32())[0].as_py())


READABLE = [
    c for c in SCALARS + NESTED
    if c[0] not in (pa.binary(), pa.duration("ns"), pa.float32(), pa.time64("us"), pa.null(), pa.date32())
    and not pa.types.is_dictionary(c[0]) and not pa.types.is_fixed_size_list(c[0])
]  # fmt: skip


@settings(deadline=None, max_examples=few(24))
@given(tables(READABLE))
def test_pyarrow_reads_it_back(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as name:
        sink = bound(FileSink(name, Json()), Path(name), "process")
        lines(sink, *batches_of(table))  # type: ignore[arg-type]
        (path,) = Path(name).glob("part-*")
        assert read(path, table.schema).equals(table)


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.list_(pa.binary()), pa.map_(pa.int8(), pa.int8()), pa.uuid()], ids=str
)
def test_what_json_cannot_hold_is_refused_by_name(sink: Sink, kind: pa.DataType) -> None:
    with pytest.raises(SinkError, match="JSON cannot hold column 'odd'"):
        sink.check_schema(pa.schema([("fine", pa.int8()), ("odd", kind)]))


def test_options_and_empty_schemas_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'gzip'"):
        FileSink(str(tmp_path), Json(compression="gz"))
    with pytest.raises(SinkError, match="without columns"):
        FileSink(str(tmp_path), Json()).check_schema(pa.schema([]))
