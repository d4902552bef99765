"""Tables to and from libraries that hold Arrow data: Polars, Daft, Spark, Hugging Face Datasets.

Buffers are passed without a copy wherever both sides lay a column out alike; ``docs/coming-from-ray.md`` has
where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.core.arrow.batch import one_array
from headrace.core.arrow.forms import RaggedTensorType
from headrace.core.arrow.objects import refuse_objects
from headrace.core.arrow.values import ConversionError, column_from
from headrace.core.door import library
from headrace.errors import ArgumentError, MissingLibrary

# ---------------------------------------------------------------- to others


def to_polars(table: pa.Table) -> Any:
    """Make a Polars DataFrame."""
    polars = library("to_polars", "polars")
    return polars.from_arrow(_plain(table), rechunk=False)


def to_daft(table: pa.Table) -> Any:
    """Make a Daft DataFrame."""
    return library("to_daft", "daft").from_arrow(_plain(table))


def _plain(table: pa.Table) -> pa.Table:
    """Lay tensors out as others know them: fixed-size lists of lists, and lists of values where shapes differ."""
    refuse_objects(table, ArgumentError)
    for i, field in enumerate(table.schema):
        if isinstance(field.type, (pa.FixedShapeTensorType, RaggedTensorType)):
            column = table.column(i)
            storage = pa.chunked_array([chunk.storage for chunk in column.chunks], field.type.storage_type)
            if isinstance(field.type, pa.FixedShapeTensorType):
                storage = _nested(storage, field.type.shape)
            table = table.set_column(i, field.name, storage)
    return table


def _nested(column: pa.ChunkedArray, shape: list[int]) -> pa.ChunkedArray:
    """Cut the flat values of tensors of one shape into lists of lists."""
    chunks = []
    for chunk in column.chunks:
        inner = chunk.flatten() if not chunk.null_count else chunk.values
        if chunk.null_count:
            inner = inner.slice(chunk.offset * chunk.type.list_size, len(chunk) * chunk.type.list_size)
        for size in reversed(shape[1:]):
            inner = pa.FixedSizeListArray.from_arrays(inner, size)
        mask = chunk.is_null() if chunk.null_count else None
        chunks.append(pa.FixedSizeListArray.from_arrays(inner, shape[0], mask=mask))
    if chunks:
        return pa.chunked_array(chunks)
    type_ = column.type.value_type
    for size in reversed(shape):
        type_ = pa.list_(type_, size)
    return pa.chunked_array([], type_)


# ---------------------------------------------------------------- from others


def from_polars(frames: Any) -> list[pa.Table]:
    """Take the columns of Polars DataFrames; LazyFrames are collected first."""
    several = frames if isinstance(frames, (list, tuple)) else [frames]
    tables = []
    for frame in several:
        if type(frame).__module__.partition(".")[0] != "polars" or not hasattr(frame, "lazy"):
            raise ArgumentError(
                f"from_polars takes a Polars DataFrame or LazyFrame, or a list of them, not {type(frame).__name__}."
            )
        eager = frame.collect() if hasattr(frame, "collect") else frame
        tables.append(pa.table(eager))
    return tables


def from_daft(frame: Any) -> pa.Table:
    """Run a Daft DataFrame, and return its result."""
    if type(frame).__module__.partition(".")[0] != "daft" or not hasattr(frame, "to_arrow"):
        raise ArgumentError(f"from_daft takes a Daft DataFrame, not {type(frame).__name__}.")
    return _storage(frame.to_arrow())


def from_spark(frame: Any) -> pa.Table:
    """Run a Spark DataFrame, and bring its rows here."""
    if type(frame).__module__.partition(".")[0] != "pyspark" or not hasattr(frame, "toPandas"):
        raise ArgumentError(f"from_spark takes a Spark DataFrame, not {type(frame).__name__}.")
    if not hasattr(frame, "toArrow"):
        raise ArgumentError(
            "from_spark needs Spark 4, whose DataFrames have toArrow. With this version, let Spark write Parquet, "
            "df.write.parquet(path), and read that: read_parquet(path)."
        )
    return _storage(frame.toArrow())


def from_huggingface(dataset: Any) -> pa.Table:
    """Take the table of a Hugging Face dataset; one whose rows are chosen or shuffled is copied row by row."""
    if type(dataset).__module__.partition(".")[0] != "datasets":
        raise ArgumentError(f"from_huggingface takes a datasets.Dataset, not {type(dataset).__name__}.")
    if isinstance(dataset, dict):
        splits = ", ".join(map(repr, dataset))
        raise ArgumentError(
            f"from_huggingface takes one dataset, but this has the splits {splits}: give one of them."
        )
    if not hasattr(dataset, "data"):  # an IterableDataset, which has no table
        return _storage(pa.concat_tables(list(_pieces(dataset))))
    if getattr(dataset, "_indices", None) is not None:
        return _storage(dataset.with_format("arrow")[:])
    return _storage(dataset.data.table)


def _pieces(dataset: Any) -> Iterator[pa.Table]:
    try:
        yield from dataset.with_format("arrow").iter(batch_size=1_000)
    except ImportError as error:
        raise MissingLibrary(f"from_huggingface could not read this dataset: {error}") from error


def _storage(table: pa.Table) -> pa.Table:
    """Turn other libraries' tensor types into ours, and other extension types into what they are stored as."""
    return with_tensors(table.replace_schema_metadata(None), others=True)


def with_tensors(table: pa.Table, *, others: bool = False) -> pa.Table:
    """Turn other libraries' tensor types into ours; ``others``: and extension types into what they are stored as."""
    for i, field in enumerate(table.schema):
        type_ = field.type
        if not isinstance(type_, pa.BaseExtensionType) or isinstance(
            type_, (pa.FixedShapeTensorType, RaggedTensorType)
        ):
            continue
        if others or hasattr(type_, "shape"):
            column = one_array(table.column(i))
            result = _tensors(column) if hasattr(type_, "shape") else column.storage
            table = table.set_column(i, field.name, result)
    return table


def _tensors(column: pa.Array) -> pa.Array:
    """Make a column of tensors of one shape, whose values lie in one buffer."""
    shape = [size for size in column.type.shape if size is not None]
    values = column.storage
    if len(shape) == len(column.type.shape) and not column.null_count:
        while (
            pa.types.is_list(values.type)
            or pa.types.is_large_list(values.type)
            or (pa.types.is_fixed_size_list(values.type))
        ):
            values = values.flatten()
        for size in reversed(shape):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        return values
    try:
        return column_from(column.to_pylist())
    except ConversionError as error:
        raise ArgumentError(f"Tensors of type {column.type} cannot become a column: {error}.") from error
