"""The output schema: settled once by the first rows in shard order, and kept."""

from __future__ import annotations

import pyarrow as pa

from millrace.core.batch import schema_bytes, schema_from
from millrace.errors import OutputSchemaChanged, nearest
from millrace.run.lossless import cast, filled, is_open


def merge(known: bytes | None, proposed: bytes) -> tuple[bytes, bool]:
    """Fill what ``known`` leaves open (columns of nulls) from ``proposed``; say if it is complete now."""
    schema = schema_from(proposed)
    if known is not None:
        schema = fill(schema_from(known), schema)
    return schema_bytes(schema), is_complete(schema)


def fill(known: pa.Schema, later: pa.Schema) -> pa.Schema:
    """Fill what ``known`` leaves open, however deep, from the schema of a later batch."""
    fields = []
    for field in known:
        at = later.get_field_index(field.name)
        fields.append(field.with_type(filled(field.type, later.field(at).type)) if at >= 0 else field)
    return pa.schema(fields, known.metadata)


def told_difference(was: pa.Schema, asked: pa.Schema) -> str:
    """Say how two schemas differ: by the columns, or by the types of the first few."""
    if was.names != asked.names:
        return f"its columns are {', '.join(was.names)}, and {', '.join(asked.names)} are asked for"
    pairs = [(a, b) for a, b in zip(was, asked, strict=True) if not a.equals(b)]
    return ", ".join(f"{a.name!r} is {_kind(a)}, not {_kind(b)}" for a, b in pairs[:3]) + (
        f", and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    )


def _kind(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' without nulls'}"


def is_complete(schema: pa.Schema) -> bool:
    """Say whether every column has a type: nothing in it held only nulls, or only empty lists, so far."""
    return not any(is_open(field.type) for field in schema)


def conform(
    batch: pa.RecordBatch, schema: pa.Schema, made_by: str, *, writes: bool = False, where: str = ""
) -> pa.RecordBatch:
    """Cast a batch to the settled schema where nothing is lost, else fail and name who made it.

    ``writes``: the verb takes a ``schema=``, so the message may speak of it. ``where``: which rows these are.
    """
    if batch.schema.equals(schema):
        return batch
    names = batch.schema.names
    if set(names) != set(schema.names) or len(names) != len(schema.names):
        raise OutputSchemaChanged(_other_columns(names, schema.names, made_by))
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        columns.append(_cast(column, field, made_by, writes, f" It was working on {where}." if where else ""))
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


def _cast(column: pa.Array, field: pa.Field, made_by: str, writes: bool, place: str) -> pa.Array:
    if column.null_count and not field.nullable:
        raise OutputSchemaChanged(f"{made_by} gave nulls in column {field.name!r}, which allows none.{place}")
    if column.type.equals(field.type):
        return column
    try:
        return cast(column, field.type)
    except pa.ArrowException as error:
        wider = ", or name the wider one with `schema=` of the write verb" if writes else ""
        raise OutputSchemaChanged(
            f"{made_by} changed the type of column {field.name!r} midway: the output was settled as {field.type}, "
            f"and a later batch has {column.type} that does not fit ({error}). Return one type for every batch"
            f"{wider}.{place}"
        ) from error
