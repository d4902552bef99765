"""Batches of several schemas as rows of one: columns are widened, or filled with nulls, and no value changes.

Between steps and for a reader only. The type of a column in files is settled by the first rows, see
``core.output_schema``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.core.arrow.batch import empty_columns
from headrace.core.arrow.batch_formats import python_columns
from headrace.core.arrow.forms import ARRAYS, are_lists, is_list, marked, ragged_type
from headrace.core.arrow.lossless import cast, common
from headrace.core.arrow.objects import OBJECTS, is_objects, object_column

Batches = Sequence[pa.RecordBatch]


def widened(batches: Batches) -> Batches:
    """Give batches one schema that holds all of their values.

    A column that a batch lacks is null there. Numbers of several types become the widest, where that holds each of
    them exactly; arrays of several shapes, arrays whose shapes differ. Any other values of several types are Python
    objects from then on.

    >>> a, b = pa.record_batch({"x": [1]}), pa.record_batch({"x": [0.5], "y": ["b"]})
    >>> [batch.to_pylist() for batch in widened([a, b])]
    [[{'x': 1.0, 'y': None}], [{'x': 0.5, 'y': 'b'}]]
    """
    first = batches[0].schema
    if all(batch.schema.equals(first) for batch in batches):
        return batches
    names = list(dict.fromkeys(name for batch in batches for name in batch.schema.names))
    columns = [_widened([_field(batch, name) for batch in batches]) for name in names]
    arrays = {name: ARRAYS for name in names if _made_of_arrays(name, batches)}
    made = []
    for at, batch in enumerate(batches):
        if not names:
            made.append(empty_columns(batch.num_rows))
            continue
        joined = pa.RecordBatch.from_arrays([each[at] for each in columns], names=names)
        made.append(marked(joined, arrays))
    return made


def _field(batch: pa.RecordBatch, name: str) -> pa.Array:
    at = batch.schema.get_field_index(name)
    return batch.column(at) if at >= 0 else pa.nulls(batch.num_rows)


def _made_of_arrays(name: str, batches: Batches) -> bool:
    fields = [batch.schema.field(name) for batch in batches if name in batch.schema.names]
    return all(
        is_list(ragged_type(field.type)) and not are_lists(field)
        for field in fields
        if not pa.types.is_null(field.type)
    )


def _widened(columns: list[pa.Array]) -> list[pa.Array]:
    """Give pieces of one column one type."""
    types = list(dict.fromkeys(column.type for column in columns))
    if len(types) == 1:
        return columns
    target: pa.DataType | None = types[0]
    for type_ in types[1:]:
        target = None if target is None else common(target, type_)
    made = None if target is None or any(map(is_objects, types)) else _cast(columns, target)
    return [as_objects(column) for column in columns] if made is None else made


def _cast(columns: list[pa.Array], target: pa.DataType) -> list[pa.Array] | None:
    for type_ in (target, pa.float64()) if pa.types.is_floating(target) else (target,):
        try:
            return [
                column if column.type.equals(type_) else cast(_spread(column, type_), type_)
                for column in columns
            ]
        except pa.ArrowException:
            continue
    return None


def _spread(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Give structs the fields that those of other pieces have, in their order; null there."""
    if not (pa.types.is_struct(column.type) and pa.types.is_struct(target)):
        return column
    fields, children = [], []
    for field in target:
        at = column.type.get_field_index(field.name)
        missing = pa.nulls(len(column), field.type)
        child = _spread(column.field(at), field.type) if at >= 0 else missing
        fields.append(pa.field(field.name, child.type))
        children.append(child)
    nulls = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)


def with_equal_dicts(batches: Batches) -> Batches:
    """Give dicts the same keys in all batches, None where one lacks a key, if nothing is lost; all else as it is.

    >>> a, b = pa.record_batch({"x": [{"k": 1}]}), pa.record_batch({"x": [{"l": "b"}]})
    >>> [batch.to_pylist() for batch in with_equal_dicts([a, b])]
    [[{'x': {'k': 1, 'l': None}}], [{'x': {'k': None, 'l': 'b'}}]]
    """
    made = list(batches)
    for name in dict.fromkeys(name for batch in made for name in batch.schema.names):
        having = [i for i, batch in enumerate(made) if name in batch.schema.names]
        columns = [made[i].column(name) for i in having]
        types = {column.type for column in columns}
        if len(types) > 1 and all(map(pa.types.is_struct, types)):
            for i, column in zip(having, _widened(columns), strict=True):
                if pa.types.is_struct(column.type):
                    made[i] = made[i].set_column(made[i].schema.get_field_index(name), name, column)
    return made


def as_objects(column: pa.Array) -> pa.Array:
    """Return a column as Python objects: the values that rows show."""
    if is_objects(column.type):
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), OBJECTS)
    return object_column(python_columns(pa.record_batch([column], names=["x"]))["x"])


def with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add columns of nulls where the batch lacks some of the schema."""
    for field in schema:
        if batch.schema.get_field_index(field.name) < 0:
            batch = batch.append_column(field.with_nullable(True), pa.nulls(batch.num_rows, field.type))
    return batch


def filled_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give every row the keys of all, in the order in which they first come; those that it lacked are None.

    >>> filled_rows([{"x": 1}, {"x": 2, "y": 3}])
    [{'x': 1, 'y': None}, {'x': 2, 'y': 3}]
    """
    if not rows or all(row.keys() == rows[0].keys() for row in rows):
        return rows
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]
