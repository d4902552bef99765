"""The form in which code sees a column, where its Arrow type does not say it: the same form in every batch.

numpy and pandas have no null for integers and booleans, so a column with nulls needs another dtype than one without.
Which columns may hold nulls, a source says for its whole input (``forms``). And a list column may have been made of
arrays of different lengths, which rows show as arrays, or be a list column of a file, which rows show as lists.
Batches carry the form as a mark on the column's field; Arrow types stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.errors import BadInput

Columns = TypeVar("Columns", pa.RecordBatch, pa.Table)

FLOAT = "float"  # integers as float64, NaN where null
OBJECT = "object"  # integers that float64 would round, and booleans: objects, None where null
ARRAYS = "arrays"  # a list column that was made of one-dimensional arrays: rows show arrays, not lists
EXACT = 2**53  # beyond it, float64 does not have every integer
_MARK = b"headrace.form"
_WIDE = (pa.int64(), pa.uint64())
_NULL_FORMS = frozenset({FLOAT, OBJECT})


def form_of(type_: pa.DataType, *, wide: bool = False) -> str | None:
    """Return the form of a column of this type that may hold nulls; None if its dtype is the same with and without.

    ``wide``: it is known to hold integers beyond 2**53.
    """
    if pa.types.is_boolean(type_):
        return OBJECT
    if pa.types.is_integer(type_):
        return OBJECT if wide and is_wide(type_) else FLOAT
    return None


def is_wide(type_: pa.DataType) -> bool:
    """Say whether float64 does not hold every value of this type."""
    return type_ in _WIDE


def forms_in(data: pa.Table | pa.RecordBatch) -> dict[str, str]:
    """Return the forms of the columns that hold nulls here."""
    found = {}
    for field, column in zip(data.schema, data.columns, strict=True):
        form = form_of(field.type) if column.null_count else None
        if form is not None:
            found[field.name] = OBJECT if is_wide(field.type) and _beyond(column) else form
    return found


def first_marked(reader: Any) -> pa.Schema:
    """Return the schema of what a reader reads, marked where its first batch has nulls."""
    try:
        batch = reader.read_next_batch()
    except StopIteration:
        return reader.schema
    return marked(batch, forms_in(batch)).schema


def forms_over(schemas: Sequence[pa.Schema], together: pa.Schema) -> dict[str, str]:
    """Return the forms of columns, of which some files lack some; ``together``: the schema of all files."""
    found: dict[str, str] = {}
    for schema in schemas:
        for name in together.names:
            at = schema.get_field_index(name)
            form = (
                mark_of(schema.field(at))
                if at >= 0 and not pa.types.is_null(schema.field(at).type)
                else FLOAT
            )
            if form is not None and found.get(name) != OBJECT:
                found[name] = form
    made = {name: form_of(together.field(name).type, wide=form == OBJECT) for name, form in found.items()}
    return {name: form for name, form in made.items() if form is not None}


def _beyond(column: pa.Array | pa.ChunkedArray) -> bool:
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if not len(chunk):
            continue
        dtype = np.dtype(np.int64 if chunk.type == pa.int64() else np.uint64)
        values: np.ndarray[Any, Any] = np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * 8)
        if _may_round(values) and any(abs(value) > EXACT for value in chunk.to_pylist() if value is not None):
            return True
    return False


def rounds(column: pa.Array | pa.ChunkedArray) -> bool:
    """Say whether the column has, at any depth, integers beside nulls that float64 would round."""
    if isinstance(column, pa.ChunkedArray):
        return any(map(rounds, column.chunks))
    type_, t = column.type, pa.types
    if is_wide(type_):
        return bool(column.null_count) and _beyond(column)
    if t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_):
        return rounds(column.flatten())
    if t.is_list_view(type_) or t.is_large_list_view(type_):
        return rounds(column.flatten())
    if t.is_run_end_encoded(type_):
        return rounds(column.values)
    if t.is_dictionary(type_):
        holes = column.null_count or column.dictionary.null_count
        return bool(holes) and is_wide(type_.value_type) and _beyond(column.dictionary)
    if t.is_map(type_):
        return rounds(column.keys) or rounds(column.items)
    return t.is_struct(type_) and any(map(rounds, column.flatten()))


def _may_round(values: np.ndarray[Any, Any]) -> bool:
    beyond = values.max() > EXACT or (values.dtype.kind == "i" and values.min() < -EXACT)
    return bool(beyond)


def marked(batch: Columns, forms: Mapping[str, str]) -> Columns:
    """Mark the columns of a batch or table that have a form."""
    if not forms or not any(name in forms for name in batch.schema.names):
        return batch
    fields = [
        field.with_metadata({_MARK: forms[field.name].encode()}) if field.name in forms else field
        for field in batch.schema
    ]
    return type(batch).from_arrays(batch.columns, schema=pa.schema(fields))


def mark_of(field: pa.Field) -> str | None:
    """Return the form that a field is marked with."""
    metadata = field.metadata
    form = metadata.get(_MARK) if metadata else None
    return form.decode() if form is not None else None


def unmarked(schema: pa.Schema) -> pa.Schema:
    """Return the schema without marks."""
    if not any(field.metadata and _MARK in field.metadata for field in schema):
        return schema
    return pa.schema(map(_unmarked, schema), schema.metadata)


def _unmarked(field: pa.Field) -> pa.Field:
    rest = {key: value for key, value in (field.metadata or {}).items() if key != _MARK}
    return field.with_metadata(rest) if rest else field.remove_metadata()


def without_marks(batch: Columns) -> Columns:
    """Return the batch or table without marks; nothing is copied."""
    return _without(batch, [field.name for field in batch.schema if mark_of(field) is not None])


def without_null_marks(batch: pa.RecordBatch, names: Collection[str] | None = None) -> pa.RecordBatch:
    """Return the batch in which these columns (None: all) are not marked as columns that may hold nulls."""
    return _without(
        batch,
        [
            field.name
            for field in batch.schema
            if (names is None or field.name in names) and mark_of(field) in _NULL_FORMS
        ],
    )


def _without(batch: Columns, names: Collection[str]) -> Columns:
    if not names:
        return batch
    fields = [_unmarked(field) if field.name in names else field for field in batch.schema]
    return type(batch).from_arrays(batch.columns, schema=pa.schema(fields, batch.schema.metadata))


def is_list(type_: pa.DataType) -> bool:
    """Say whether a column of this type has a list of any length per row."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def are_lists(field: pa.Field) -> bool:
    """Say whether rows show this column as lists: it is a list column that was not made of arrays."""
    return is_list(field.type) and mark_of(field) != ARRAYS


def array_forms(schema: pa.Schema) -> dict[str, str]:
    """Return the forms of the list columns that were made of arrays."""
    return {field.name: ARRAYS for field in schema if mark_of(field) == ARRAYS}


def checked(name: str, column: pa.Array, values: np.ndarray[Any, Any]) -> None:
    """Refuse integers that their form, float64, would round; ``values`` are those under the nulls, too."""
    if not len(values) or not _may_round(values):
        return
    for row, value in enumerate(column.to_pylist()):
        if value is not None and int(float(value)) != value:
            raise BadInput(
                f"column {name!r} holds nulls and the integer {value} (row {row} of the batch), which float64, the "
                "form of integers with nulls, would round. Take it as it is with batch_format='pyarrow', or drop "
                f'the nulls before: .filter(expr="{name} is not None")'
            )
