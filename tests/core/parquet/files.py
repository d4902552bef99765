"""Parquet files of every kind that pyarrow writes, and files that are joined from their chunks."""

from __future__ import annotations

import datetime
import decimal
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.files.input_files import InputFile
from headrace.core.parquet.chunks import ChunkFile
from headrace.core.parquet.footer import Footer, FooterJoiner, Placed, parse, read_tail


def footer_of(data: bytes) -> bytes:
    return data[len(data) - 8 - read_tail(data[-8:], len(data)) : -8]


def parsed(data: bytes) -> Footer:
    footer = footer_of(data)
    return parse(footer, len(data) - 8 - len(footer))


def opened(path: Path) -> ChunkFile:
    status = os.stat(path)
    return ChunkFile(InputFile(str(path), status.st_size, status.st_mtime_ns))


def written(table: pa.Table, **options: object) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


def joined(paths: Sequence[Path], names: Sequence[str], like: bytes) -> bytes:
    """Return a file with all row groups of some files: the columns ``names``, by the schema of ``like``."""
    made = bytearray(b"PAR1")
    joiner = FooterJoiner(parsed(like))
    for path in paths:
        file = opened(path)
        for group in filter(lambda group: group.rows, file.footer.groups):
            placed = []
            for name in names:
                column = file.footer.column(name)
                assert column is not None
                for leaf in column.leaves:
                    chunk = group.chunks[leaf]
                    file.check(chunk, group.rows)
                    placed.append(Placed(chunk, len(made), file.footer.ordered[leaf]))
                    file.hand_on(chunk.start, chunk.stop, made.extend)
            joiner.add(group.rows, placed)
        file.check_unchanged()
        file.close()
    return bytes(made) + joiner.footer()


def every_type(rows: int = 300, *, nulls: bool = True) -> pa.Table:
    """A column of each type, most of them with nulls, unless there shall be none."""
    numbers = range(rows)

    def column(make: object, type_: pa.DataType) -> pa.Array:
        return pa.array([None if nulls and i % 7 == 3 else make(i) for i in numbers], type_)  # type: ignore[operator]

    day = datetime.date(1970, 1, 1)
    columns: dict[str, pa.Array] = {"none": pa.nulls(rows), "flag": column(lambda i: i % 3 == 0, pa.bool_())}
    for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        columns[str(type_)] = column(lambda i: i % 127 - 60, type_)
    for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        columns[str(type_)] = column(lambda i: i % 200, type_)
    for type_ in (pa.float16(), pa.float32(), pa.float64()):
        columns[str(type_)] = column(lambda i: float(i % 50) / 4, type_)
    for unit in ("ms", "us", "ns"):
        columns[f"at_{unit}"] = column(lambda i: i * 10**9, pa.timestamp(unit))
        columns[f"utc_{unit}"] = column(lambda i: i * 10**9, pa.timestamp(unit, "UTC"))
        columns[f"long_{unit}"] = column(lambda i: i, pa.duration(unit))
    columns["zone"] = column(lambda i: i * 10**9, pa.timestamp("us", "Europe/Berlin"))
    columns["day"] = column(lambda i: day + datetime.timedelta(i), pa.date32())
    columns["hour"] = column(lambda i: datetime.time(i % 24), pa.time32("ms"))
    columns["hour_us"] = column(lambda i: datetime.time(i % 24), pa.time64("us"))
    for digits in (5, 15, 30):
        columns[f"decimal_{digits}"] = column(lambda i: decimal.Decimal(i) / 4, pa.decimal128(digits, 2))
    columns["decimal_50"] = column(lambda i: decimal.Decimal(i) / 4, pa.decimal256(50, 2))
    texts = [pa.string(), pa.large_string(), pa.string_view()]
    for type_ in texts:
        columns[str(type_)] = column(lambda i: f"word {i % 40}", type_)
    for type_ in (pa.binary(), pa.large_binary(), pa.binary(4), pa.binary_view()):
        columns[str(type_)] = column(lambda i: b"%04d" % i, type_)
    columns["coded"] = column(lambda i: f"kind {i % 5}", pa.string()).dictionary_encode()
    columns["lists"] = column(lambda i: [None, *range(i % 4)], pa.list_(pa.int32()))
    columns["large"] = column(lambda i: ["a"] * (i % 3), pa.large_list(pa.string()))
    columns["deep"] = column(lambda i: [[i], [], None], pa.list_(pa.list_(pa.int64())))
    columns["pairs"] = column(lambda i: [("k", i)] * (i % 3), pa.map_(pa.string(), pa.int64()))
    inner = pa.struct([("x", pa.int8()), ("y", pa.list_(pa.struct([("z", pa.string())])))])
    columns["struct"] = column(lambda i: {"x": i % 9, "y": [{"z": str(i)}] * (i % 3)}, inner)
    columns["vector"] = pa.array([[float(i), 1.0] for i in numbers], pa.list_(pa.float32(), 2))
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 2))
    storage = pa.array([[float(i)] * 4 for i in numbers], pa.list_(pa.float32(), 4))
    columns["tensor"] = pa.ExtensionArray.from_storage(tensor, storage)
    columns["uuid"] = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([i.to_bytes(16, "big") for i in numbers], pa.binary(16))
    )
    schema = pa.schema([pa.field(name, values.type) for name, values in columns.items()])
    required = pa.array(np.arange(rows), pa.int64())
    schema = schema.append(pa.field("required", pa.int64(), nullable=False))
    return pa.Table.from_arrays([*columns.values(), required], schema=schema)


WAYS: dict[str, dict[str, object]] = {
    "plain": {"use_dictionary": False, "compression": "none"},
    "dictionaries": {"compression": "snappy"},
    "v2": {"data_page_version": "2.0", "compression": "zstd"},
    "small pages": {"data_page_size": 64, "write_batch_size": 16, "compression": "gzip"},
    "lz4": {"compression": "lz4", "dictionary_pagesize_limit": 32},
    "indexed": {"write_page_index": True, "compression": "brotli", "store_decimal_as_integer": True},
    "checked": {"write_page_checksum": True, "sorting_columns": [pq.SortingColumn(0)]},
    "old": {"version": "1.0", "use_compliant_nested_type": False},
    "unstored": {"store_schema": False, "write_statistics": False},
    "delta": {
        "use_dictionary": False,
        "column_encoding": {
            "int32": "DELTA_BINARY_PACKED",
            "string": "DELTA_BYTE_ARRAY",
            "double": "BYTE_STREAM_SPLIT",
        },
    },
}
