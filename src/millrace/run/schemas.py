"""The output schema: settled once by the first rows in shard order, and kept."""

from __future__ import annotations

import pyarrow as pa

from millrace.core.batch import schema_bytes, schema_from
from millrace.errors import OutputSchemaChanged, nearest


def merge(known: bytes | None, proposed: bytes) -> tuple[bytes, bool]:
    """Fill what ``known`` leaves open (columns of nulls) from ``proposed``; say if it is complete now."""
    schema = schema_from(proposed)
    if known is not None:
        before = schema_from(known)
        fields = []
        for field in before:
            at = schema.get_field_index(field.name)
            fields.append(schema.field(at) if pa.types.is_null(field.type) and at >= 0 else field)
        schema = pa.schema(fields)
    return schema_bytes(schema), is_complete(schema)


def is_complete(schema: pa.Schema) -> bool:
    """Say whether every column has a type: none of them held nothing but nulls so far."""
    return not any(pa.types.is_null(field.type) for field in schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema, made_by: str) -> pa.RecordBatch:
    """Cast a batch to the settled schema where nothing is lost, else fail and name who made it."""
    if batch.schema.equals(schema):
        return batch
    names = batch.schema.names
    if set(names) != set(schema.names) or len(names) != len(schema.names):
        raise OutputSchemaChanged(_other_columns(names, schema.names, made_by))
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        columns.append(_cast(column, field, made_by))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _other_columns(names: list[str], settled: list[str], made_by: str) -> str:
    missing = [name for name in settled if name not in names]
    extra = [name for name in names if name not in settled]
    hint = nearest(missing[0], extra) if missing and extra else ""
    return (
        f"{made_by} changed its columns midway: the output was settled with {', '.join(settled)}; now "
        + " and ".join(
            part
            for part in (
                f"{', '.join(missing)} is missing" if missing else "",
                f"{', '.join(extra)} is new" if extra else "",
                "a column is there twice" if not missing and not extra else "",
            )
            if part
        )
        + f".{hint} Return the same columns for every batch."
    )


def _cast(column: pa.Array, field: pa.Field, made_by: str) -> pa.Array:
    if column.null_count and not field.nullable:
        raise OutputSchemaChanged(f"{made_by} gave nulls in column {field.name!r}, which allows none.")
    if column.type.equals(field.type):
        return column
    try:
        if not lossless(column.type, field.type):
            raise pa.ArrowInvalid("values of the one type are not values of the other")
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise OutputSchemaChanged(
            f"{made_by} changed the type of column {field.name!r} midway: the output was settled as {field.type}, "
            f"and a later batch has {column.type} that does not fit ({error}). Return one type for every batch, "
            "or name the wider one with `schema=` of the write verb."
        ) from error


def lossless(source: pa.DataType, target: pa.DataType) -> bool:
    """Say whether a checked cast between these types keeps the meaning of every value that it lets pass."""
    t = pa.types
    if t.is_null(source):
        return True
    if t.is_dictionary(source):
        return bool(source.value_type.equals(target)) or lossless(source.value_type, target)
    if t.is_dictionary(target):
        return lossless(source, target.value_type)
    groups = (
        lambda x: t.is_integer(x) or t.is_floating(x) or t.is_decimal(x),
        lambda x: t.is_string(x) or t.is_large_string(x) or t.is_string_view(x),
        lambda x: t.is_binary(x) or t.is_large_binary(x) or t.is_fixed_size_binary(x) or t.is_binary_view(x),
        lambda x: t.is_timestamp(x) or t.is_date(x),
        t.is_duration,
        t.is_time,
    )
    if any(group(source) and group(target) for group in groups):
        return True
    if _is_list(source) and _is_list(target):
        return lossless(source.value_type, target.value_type)
    if t.is_struct(source) and t.is_struct(target):
        return bool([f.name for f in source] == [f.name for f in target]) and all(
            lossless(a.type, b.type) for a, b in zip(source, target, strict=True)
        )
    return False


def _is_list(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
    )
