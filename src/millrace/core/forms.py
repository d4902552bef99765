"""The form in which code sees a column that may hold nulls: the same in every batch, whether that one has any or not.

numpy and pandas have no null for integers and booleans, so a column with nulls needs another dtype than one without.
Which columns may hold nulls, a source says for its whole input (``forms``). Its batches carry that as a mark on
the column's field, as long as the column stays what it is; Arrow types stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.errors import BadInput

FLOAT = "float"  # integers as float64, NaN where null
OBJECT = "object"  # integers that float64 would round, and booleans: objects, None where null
EXACT = 2**53  # beyond it, float64 does not have every integer
_MARK = b"millrace.form"
_WIDE = (pa.int64(), pa.uint64())


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


def forms_of(source: Any) -> Mapping[str, str]:
    """Return the forms of a source's columns, by name; a source that says nothing has none."""
    forms = getattr(source, "forms", None)
    return forms() if forms is not None else {}


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
    if t.is_map(type_):
        return rounds(column.keys) or rounds(column.items)
    return t.is_struct(type_) and any(map(rounds, column.flatten()))


def _may_round(values: np.ndarray[Any, Any]) -> bool:
    beyond = values.max() > EXACT or (values.dtype.kind == "i" and values.min() < -EXACT)
    return bool(beyond)


def marked(batch: pa.RecordBatch, forms: Mapping[str, str]) -> pa.RecordBatch:
    """Mark the columns that have a form."""
    if not forms or not any(name in forms for name in batch.schema.names):
        return batch
    fields = [
        field.with_metadata({_MARK: forms[field.name].encode()}) if field.name in forms else field
        for field in batch.schema
    ]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


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


def without_marks(batch: pa.RecordBatch, names: frozenset[str] | None = None) -> pa.RecordBatch:
    """Return the batch with the marks of these columns (None: all) gone; nothing is copied."""
    old = batch.schema
    if not any(field.metadata and (names is None or field.name in names) for field in old):
        return batch
    fields = [_unmarked(field) if names is None or field.name in names else field for field in old]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields, old.metadata))


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
