"""The form in which code sees a column, where its Arrow type does not say it; and a type for ragged arrays.

numpy and pandas have no null for integers and booleans, so a column with nulls needs another dtype than one without.
Which columns may hold nulls, a source says for its whole input (``forms``). And a list column may have been made of
arrays of different lengths, which rows show as arrays, or be a list column of a file, which rows show as lists.
Batches carry the form as a mark on the column's field; Arrow types stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.core.arrow.buffers import bitmap, mask_of, offsets_of, present, raw
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
    type_ = values_type(type_)
    if pa.types.is_boolean(type_) or isinstance(type_, pa.Bool8Type):
        return OBJECT
    if pa.types.is_integer(type_):
        return OBJECT if wide and is_wide(type_) else FLOAT
    return None


def values_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary; any other type is that of its values."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def is_wide(type_: pa.DataType) -> bool:
    """Say whether float64 does not hold every value of this type."""
    return type_ in _WIDE


def forms_in(data: pa.Table | pa.RecordBatch) -> dict[str, str]:
    """Return the forms of the columns that hold nulls here."""
    found = {}
    for field, column in zip(data.schema, data.columns, strict=True):
        form = form_of(field.type) if column.null_count else None
        if form is not None:
            found[field.name] = OBJECT if is_wide(values_type(field.type)) and beyond(column) else form
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


def beyond(column: pa.Array | pa.ChunkedArray) -> bool:
    """Say whether a column of 64-bit integers has one that float64 may not hold."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    values = [chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk for chunk in chunks]
    return any(_may_round(raw(each)[present(each)]) for each in values)


def _may_round(values: np.ndarray[Any, Any]) -> bool:
    return bool(len(values)) and bool(
        values.max() > EXACT or (values.dtype.kind == "i" and values.min() < -EXACT)
    )


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
    return _without(schema, schema.names)


def without_marks(batch: Columns) -> Columns:
    """Return the batch or table without marks; nothing is copied."""
    return _with_schema(batch, unmarked(batch.schema))


def without_null_marks(batch: pa.RecordBatch, names: Collection[str] | None = None) -> pa.RecordBatch:
    """Return the batch in which these columns (None: all) are not marked as columns that may hold nulls."""
    nulls = {field.name for field in batch.schema if mark_of(field) in _NULL_FORMS}
    return _with_schema(batch, _without(batch.schema, nulls if names is None else nulls & set(names)))


def _without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the schema without the marks of these columns; the very schema if they have none."""
    if not any(mark_of(field) is not None and field.name in names for field in schema):
        return schema
    fields = []
    for field in schema:
        if mark_of(field) is not None and field.name in names:
            rest = {key: value for key, value in field.metadata.items() if key != _MARK}
            field = field.with_metadata(rest) if rest else field.remove_metadata()
        fields.append(field)
    return pa.schema(fields, schema.metadata)


def _with_schema(batch: Columns, schema: pa.Schema) -> Columns:
    return batch if schema is batch.schema else type(batch).from_arrays(batch.columns, schema=schema)


def is_list(type_: pa.DataType) -> bool:
    """Say whether a column of this type has a list of any length per row."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def is_list_like(type_: pa.DataType) -> bool:
    """Say whether a column of this type has lists, of any length or all of one."""
    return is_list(type_) or bool(pa.types.is_fixed_size_list(type_))


def fields_within(type_: pa.DataType) -> list[pa.Field]:
    """Return the fields of a type of dicts, maps or lists; of any other type none."""
    if is_list_like(type_):
        return [type_.value_field]
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return list(type_) if pa.types.is_struct(type_) else []


def with_fields(type_: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    """Return the type with other fields in the place of ``fields_within``."""
    if pa.types.is_struct(type_):
        return pa.struct(fields)
    if pa.types.is_map(type_):
        return pa.map_(*fields, keys_sorted=type_.keys_sorted)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(*fields, type_.list_size)
    return pa.large_list(*fields) if pa.types.is_large_list(type_) else pa.list_(*fields)


def changed_within(type_: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the type with other types for its fields; a type that has none as it is."""
    fields = fields_within(type_)
    return with_fields(type_, [f.with_type(change(f.type)) for f in fields]) if fields else type_


def are_lists(field: pa.Field) -> bool:
    """Say whether rows show this column as lists: it is a list column that was not made of arrays."""
    return is_list(field.type) and mark_of(field) != ARRAYS


def array_forms(schema: pa.Schema) -> dict[str, str]:
    """Return the forms of the list columns that were made of arrays."""
    return {field.name: ARRAYS for field in schema if mark_of(field) == ARRAYS}


def checked(name: str, column: pa.Array) -> None:
    """Refuse integers that their form, float64, would round."""
    if not beyond(column):
        return
    for row, value in enumerate(column.to_pylist()):
        if value is not None and int(float(value)) != value:
            raise BadInput(
                f"column {name!r} holds nulls and the integer {value} (row {row} of the batch), which float64, the "
                "form of integers with nulls, would round. Take it as it is with batch_format='pyarrow', or drop "
                f'the nulls before: .filter(expr="{name} is not None")'
            )


# ---------------------------------------------------------------- arrays that differ in shape, such as images

# Arrow's own ``arrow.variable_shape_tensor`` has no Python class yet. This type is laid out as that is specified:
# what does not know it sees a struct of the values and the shape.


class RaggedTensorType(pa.ExtensionType):  # type: ignore[misc]
    """The type of a column of arrays (h, w, …) that differ in shape; stored as ``{data: list, shape: list[ndim]}``.

    ``value_type`` is the Arrow type of their numbers, the same for all, and ``ndim`` the axes that each has.
    Functions get n objects, each of them an array or None. Raises nothing.

    >>> import pyarrow as pa, headrace as hr
    >>> hr.RaggedTensorType(pa.float32(), 2).ndim
    2
    """

    def __init__(self, value_type: pa.DataType, ndim: int) -> None:
        shape = pa.list_(pa.int32(), ndim)
        super().__init__(
            pa.struct([("data", pa.list_(value_type)), ("shape", shape)]), "headrace.ragged_tensor"
        )

    @property
    def value_type(self) -> pa.DataType:
        """The type of the numbers."""
        return self.storage_type.field(0).type.value_type

    @property
    def ndim(self) -> int:
        """How many axes each array has."""
        return int(self.storage_type.field(1).type.list_size)

    def __hash__(self) -> int:
        return hash((self.extension_name, self.storage_type))

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> RaggedTensorType:
        return cls(storage_type.field(0).type.value_type, storage_type.field(1).type.list_size)


pa.register_extension_type(RaggedTensorType(pa.uint8(), 3))


def ragged_column(
    values: np.ndarray[Any, Any] | pa.Array,
    shapes: np.ndarray[Any, Any],
    type_: RaggedTensorType,
    holes: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
) -> pa.Array:
    """Make a column of arrays that lie end to end in ``values``, of ``shapes`` (n, ndim); ``holes`` are null."""
    ends = offsets_of(shapes.prod(axis=1, dtype=np.int64)).astype(np.int32)
    axes = np.ascontiguousarray(shapes, np.int32)
    data_type, shape_type = (field.type for field in type_.storage_type)
    if isinstance(values, np.ndarray):
        values = pa.Array.from_buffers(type_.value_type, len(values), [None, pa.py_buffer(values)])
    data = pa.Array.from_buffers(data_type, len(shapes), [None, pa.py_buffer(ends)], children=[values])
    flat = pa.Array.from_buffers(pa.int32(), axes.size, [None, pa.py_buffer(axes)])
    shape = pa.Array.from_buffers(shape_type, len(shapes), [None], children=[flat])
    there = bitmap(~holes) if holes is not None and holes.any() else None
    storage = pa.StructArray.from_buffers(type_.storage_type, len(shapes), [there], children=[data, shape])
    return pa.ExtensionArray.from_storage(type_, storage)


# ---------------------------------------------------------------- tensors of one shape among them


def axes(type_: pa.DataType) -> int | None:
    """Return how many axes the arrays of a column of tensors have; None for any other type."""
    if isinstance(type_, RaggedTensorType):
        return type_.ndim
    return len(type_.shape) if isinstance(type_, pa.FixedShapeTensorType) else None


def ragged_type(type_: pa.DataType) -> pa.DataType:
    """Return the type for tensors, or vectors, like these whose shapes may differ; any other type as it is."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return RaggedTensorType(type_.value_type, len(type_.shape))
    return pa.list_(type_.value_type) if pa.types.is_fixed_size_list(type_) else type_


def in_order(column: pa.Array) -> pa.Array:
    """Lay out anew tensors whose type swaps their axes, as Arrow makes them of transposed arrays.

    If three change places, pyarrow writes and reads other arrays than those that it was given.
    """
    type_ = column.type
    order = getattr(type_, "permutation", None) or []
    if order == sorted(order):
        return column
    if any(order[order[i]] != i for i in order):
        raise BadInput(
            f"the axes of a column of type {type_} are permuted in a circle, and libraries do not agree on what that "
            "means. Make the column of contiguous arrays: from_numpy_ndarray(np.ascontiguousarray(arrays))"
        )
    storage, size = column.storage, column.storage.type.list_size
    values = storage.values.slice(storage.offset * size, len(storage) * size)
    places = np.arange(len(values)).reshape(len(storage), *type_.shape).transpose(0, *(i + 1 for i in order))
    taken = values.take(
        pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(places.copy("C"))])
    )
    mask = mask_of(~present(storage)) if storage.null_count else None
    return pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(type_.value_type, places.shape[1:]),
        pa.FixedSizeListArray.from_arrays(taken, size, mask=mask),
    )


def as_ragged(column: pa.Array) -> pa.Array:
    """Turn tensors of one shape into a column whose shapes may differ, and vectors into lists."""
    column = in_order(column)
    type_ = column.type
    if pa.types.is_fixed_size_list(type_):
        return column.cast(ragged_type(type_))
    if not isinstance(type_, pa.FixedShapeTensorType):
        return column
    holes = ~present(column.storage)
    shapes = np.broadcast_to(np.array(type_.shape, np.int64), (len(column), len(type_.shape))).copy()
    shapes[holes] = 0
    return ragged_column(column.storage.flatten(), shapes, ragged_type(type_), holes)


def as_fixed(column: pa.Array, shape: Sequence[int]) -> pa.Array:
    """Turn a ragged column into tensors of one shape; raises ``ArrowInvalid`` if an array has another."""
    type_ = column.type
    if not isinstance(type_, RaggedTensorType):
        return column
    if column.null_count:
        raise pa.ArrowInvalid("an array is null")
    data, shapes = (column.storage.field(i) for i in range(2))
    for each in shapes.to_pylist():
        if each != list(shape):
            raise pa.ArrowInvalid(f"an array has the shape {tuple(each)}")
    values = data.flatten()
    size = int(np.prod(shape))
    storage = pa.Array.from_buffers(pa.list_(values.type, size), len(column), [None], children=[values])
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(values.type, shape), storage)


def as_lists(column: pa.Array) -> pa.Array:
    """Turn tensors of one shape into lists of lists of that shape; any other column stays as it is."""
    if not isinstance(column.type, pa.FixedShapeTensorType):
        return column
    column = in_order(column)
    first, *inner = column.type.shape
    storage, size = column.storage, column.storage.type.list_size
    items = storage.values.slice(storage.offset * size, len(storage) * size)
    for size in reversed(inner):
        items = pa.FixedSizeListArray.from_arrays(items, size)
    mask = mask_of(~present(storage)) if storage.null_count else None
    return pa.FixedSizeListArray.from_arrays(items, first, mask=mask)


def joinable(left: pa.Schema, right: pa.Schema) -> bool:
    """Say whether rows of both can be put end to end, as they differ at most in the shapes of tensors."""
    if left.equals(right):
        return True
    return bool(left.names == right.names) and all(
        a.equals(b) or ragged_type(a).equals(ragged_type(b))
        for a, b in zip(left.types, right.types, strict=True)
    )
