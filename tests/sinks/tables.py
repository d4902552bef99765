"""Tables of many Arrow types, for property tests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from headrace.core.target_ports import Sink
from headrace.testing.sinks import published, task

Values = st.SearchStrategy[Any]
Column = tuple[pa.DataType, Values]

_text = st.text(st.characters(codec="utf-8"), max_size=12)
_moments = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
_nanoseconds = st.integers(-(2**60), 2**62)

INTEGERS: list[Column] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
]
PLAIN: list[Column] = [
    *INTEGERS,
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.string(), _text),
    (pa.date32(), st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))),
    (pa.timestamp("us"), _moments),
    (pa.timestamp("ns"), _nanoseconds),
    (pa.timestamp("ms", "UTC"), st.integers(-(2**40), 2**42)),
]
SCALARS: list[Column] = [
    *PLAIN,
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.large_string(), _text),
    (pa.binary(), st.binary(max_size=8)),
    (pa.time64("us"), st.times()),
    (pa.duration("ns"), _nanoseconds),
    (pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", ""])),
    (pa.null(), st.none()),
]
NESTED: list[Column] = [
    (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-5, 5), max_size=3)),
    (pa.list_(pa.float64(), 2), st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=2)),
    (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.lists(_text, max_size=2)}),
    ),
    (pa.list_(pa.list_(pa.string())), st.lists(st.lists(_text, max_size=2), max_size=2)),
]


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.array(values, kind)


def _or_null(kind: pa.DataType, values: Values) -> Values:
    return values if pa.types.is_fixed_size_list(kind) else st.none() | values


@st.composite
def tables(draw: Callable[[Values], Any], columns: list[Column], min_rows: int = 1) -> pa.Table:
    """Draw a table of one to four of ``columns``, nulls among the values."""
    picked = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=4))
    rows = draw(st.integers(min_rows, 12))
    arrays = [
        _array(kind, draw(st.lists(_or_null(kind, values), min_size=rows, max_size=rows)))
        for kind, values in picked
    ]
    return pa.Table.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))])


def batches_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Cut a table into slices of 5 rows: slices have offsets, which writers like to forget."""
    batch = table.combine_chunks().to_batches()[0]
    for start in range(0, batch.num_rows, 5):
        yield batch.slice(start, 5)


__all__ = ["INTEGERS", "NESTED", "PLAIN", "SCALARS", "Column", "batches_of", "tables"]


def written(sink: Sink, *batches: pa.RecordBatch) -> Path:
    """Write a part, and return where it is."""
    writer = sink.open(task(), batches[0].schema)
    for batch in batches:
        writer.write(batch)
    (file,) = writer.close()
    writer.sync()
    return published(sink, file)
