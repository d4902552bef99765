"""The output schema: settled once by the first rows in shard order, and kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import schema_bytes, schema_from
from headrace.core.arrow.batch_formats import is_tensor, to_numpy
from headrace.core.arrow.buffers import NUMPY_OF, with_holes
from headrace.core.arrow.columns import column_from, why_objects
from headrace.core.arrow.forms import (
    ARRAYS,
    RaggedTensorType,
    is_list,
    mark_of,
    marked,
    without_marks,
)
from headrace.core.arrow.lossless import cast, common, filled, is_open
from headrace.core.arrow.objects import is_objects, kinds_of, object_indices, objects_of
from headrace.errors import BadReturn, OutputSchemaChanged, nearest

_MADE_BY = {"float": "float32", "double": "float64", "halffloat": "float16", "bool": "bool_"}


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


def describe_difference(was: pa.Schema, asked: pa.Schema) -> str:
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
    batch: pa.RecordBatch,
    schema: pa.Schema,
    made_by: str,
    *,
    writes: bool = False,
    where: Callable[[int], str] | None = None,
    show_data: bool = True,
) -> pa.RecordBatch:
    """Cast a batch to the settled schema where nothing is lost, else fail and name who made it.

    ``writes``: the verb takes a ``schema=``, so the message may speak of it. ``where`` says of a row which it is,
    and what is there; it may be slow. Without ``show_data`` no value is in the message.
    """
    if batch.schema.equals(schema):
        return without_marks(batch) if writes else batch
    names = batch.schema.names
    if set(names) != set(schema.names) or len(names) != len(schema.names):
        raise OutputSchemaChanged(_other_columns(names, schema.names, made_by, writes))
    columns, forms = [], {}
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        try:
            columns.append(_cast(column, field))
            form = _form_after_cast(batch.schema.field(field.name), field.type)
            if form is not None and not writes:
                forms[field.name] = form
        except pa.ArrowException as error:
            place = f" It was working on {where(_first_bad(column, field))}." if where is not None else ""
            if column.null_count and not field.nullable:
                raise OutputSchemaChanged(f"{made_by} {_null_told(field, place, writes)}") from None
            why = f" ({str(error).rstrip('.')})" if show_data else ""
            raise OutputSchemaChanged(
                f"{made_by} changed the type of column {field.name!r} midway: the output was settled as "
                f"{_words(field.type)}, and a later batch has {_words(column.type)} that does not fit{why}.{place} "
                f"{_remedy(schema, field, column.type, writes)}"
            ) from (error if show_data else None)
    return marked(pa.RecordBatch.from_arrays(columns, schema=schema), forms)


def conform_to_read(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast a batch to the settled schema where nothing is lost; what does not fit comes as it is.

    Columns that it lacks are null; its further columns come last.
    """
    if batch.schema.equals(schema):
        return batch
    columns: dict[str, tuple[pa.Field, pa.Array]] = {}
    forms: dict[str, str] = {}
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            columns[field.name] = field.with_nullable(True), pa.nulls(batch.num_rows, field.type)
            continue
        with contextlib.suppress(pa.ArrowException):  # else its values do not fit
            columns[field.name] = field, _cast(batch.column(at), field)
            form = _form_after_cast(batch.schema.field(at), field.type)
            forms.update({field.name: form} if form is not None else {})
        columns.setdefault(field.name, (batch.schema.field(at), batch.column(at)))
    for field, column in zip(batch.schema, batch.columns, strict=True):
        columns.setdefault(field.name, (field, column))
    if not columns:
        return batch
    fields, arrays = zip(*columns.values(), strict=True)
    return marked(pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(list(fields))), forms)


def as_files_hold(
    batch: pa.RecordBatch, made_by: str, where: Callable[[int], str] | None = None
) -> pa.RecordBatch:
    """Return the batch with Arrow columns for Python objects, or refuse what no Arrow type holds: files cannot."""
    for i in object_indices(batch.schema):
        name, column = batch.schema.names[i], batch.column(i)
        values = objects_of(column).tolist()
        made = column_from(values)
        if is_objects(made.type):
            kinds = kinds_of(column)
            at = next(at for at, value in enumerate(values) if value is not None)
            place = f" It was working on {where(at)}." if where is not None else ""
            raise BadReturn(
                f"{made_by} gave column {name!r} of Python objects ({kinds}), which files cannot hold: "
                f"{why_objects(values)}.{place} Make plain values or arrays of one kind of them in a step before the "
                f"write{_example(kinds, name)}, or leave the column out: .drop_columns([{name!r}])."
            )
        batch = batch.set_column(i, name, made)
    return batch


def _example(kinds: str, name: str) -> str:
    """Show how, where it is plain."""
    if kinds.startswith("PIL."):
        return f" (`numpy.asarray(row[{name!r}])`)"
    return f" (`str(row[{name!r}])`)" if " and " in kinds else ""


def _form_after_cast(before: pa.Field, type_: pa.DataType) -> str | None:
    """Return the form of a column after a cast: vectors that became lists were made of arrays."""
    if before.type.equals(type_) or not is_list(type_):
        return mark_of(before) if before.type.equals(type_) else None
    return ARRAYS if is_tensor(before.type) else mark_of(before)


def _null_told(field: pa.Field, place: str, writes: bool) -> str:
    allow = " in the `schema=` of the write verb" if writes else ""
    return (
        f"gave a null in column {field.name!r}, which allows none.{place} Give a value for every row, or allow "
        f"nulls{allow}."
    )


def _first_bad(column: pa.Array, field: pa.Field) -> int:
    """Return the first row whose value does not fit: that of a column some value of which does not."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(column.slice(low, middle - low), field)
            low = middle
        except pa.ArrowException:
            high = middle
    return low


def _remedy(schema: pa.Schema, field: pa.Field, found: pa.DataType, writes: bool) -> str:
    """Say what helps. Parts that are written have the settled type, so that nothing keeps them."""
    wider = common(field.type, found)
    alike = _alike(field, found, wider)
    if not writes:
        return f"{alike}."
    alike = f"{alike} and run again with on_change='restart'."
    if wider is None or wider.equals(field.type):
        return alike
    return f"{_named(schema, field, wider)}; or {alike[0].lower()}{alike[1:]}"


def _alike(field: pa.Field, found: pa.DataType, wider: pa.DataType | None) -> str:
    """Say what to return instead: values of one type, or arrays whose shapes may differ from the first rows on."""
    if not is_tensor(field.type) or wider is None:
        return f"Return one type of {field.name!r} for every batch"
    if is_tensor(wider) and not isinstance(wider, RaggedTensorType):
        dtype = np.dtype(NUMPY_OF.get(wider.value_type, np.bool_))
        return f"Give arrays of one dtype in every batch (`array.astype({str(dtype)!r})`)"
    return (
        "Where the shapes of arrays may differ, return an array of objects from map_batches (`column = "
        "numpy.empty(n, object)`, with one array in each place)"
    )


def _named(schema: pa.Schema, field: pa.Field, wider: pa.DataType) -> str:
    """Say how to write the column with another type: as Python that runs, unless it is long."""
    if len(schema) > 8:
        return f"Name a type that holds all values, {_call(wider)}, with `schema=` of the write verb"
    listed = ", ".join(
        f"{each.name!r}: {_in_schema(wider if each.name == field.name else each.type)}" for each in schema
    )
    return f"Name a type that holds all values with schema=pyarrow.schema({{{listed}}}) of the write verb"


def _other_columns(names: list[str], settled: list[str], made_by: str, writes: bool) -> str:
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
        + f".{hint} Return the same columns for every batch"
        + (", and run again with on_change='restart'." if writes else ".")
    )


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """Cast, or raise ``ArrowInvalid``. NaN is a null among integers, which have no other word for it."""
    if column.null_count and not field.nullable:
        raise pa.ArrowInvalid("a null")
    if column.type.equals(field.type):
        return column
    if pa.types.is_floating(column.type) and pa.types.is_integer(field.type) and field.nullable:
        values = to_numpy(column)
        missing = np.isnan(values)
        if missing.any():
            column = with_holes(column.type, np.where(missing, values.dtype.type(0), values), missing)
    return cast(column, field.type)


def _words(type_: pa.DataType) -> str:
    """Name a type; a tensor by its shape, which is what matters about it."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return f"arrays of shape {tuple(type_.shape)} of {type_.value_type}"
    if isinstance(type_, RaggedTensorType):
        return f"arrays of {type_.ndim} axes of {type_.value_type} whose shapes differ"
    return str(type_)


def _in_schema(type_: pa.DataType) -> str:
    """Write a type as ``pyarrow.schema`` takes it: by its name, if Arrow knows it by one."""
    try:
        return repr(str(type_)) if pa.type_for_alias(str(type_)).equals(type_) else _call(type_)
    except ValueError:
        return _call(type_)


def _call(type_: pa.DataType) -> str:
    """Write the call that makes a type.

    >>> _call(pa.struct([("x", pa.list_(pa.timestamp("us", "UTC")))]))
    "pyarrow.struct([('x', pyarrow.list_(pyarrow.timestamp('us', 'UTC')))])"
    """
    t = pa.types
    if t.is_struct(type_):
        fields = ", ".join(f"({field.name!r}, {_call(field.type)})" for field in type_)
        return f"pyarrow.struct([{fields}])"
    if isinstance(type_, pa.FixedShapeTensorType):
        return f"pyarrow.fixed_shape_tensor({_call(type_.value_type)}, {tuple(type_.shape)})"
    if isinstance(type_, RaggedTensorType):
        return f"headrace.RaggedTensorType({_call(type_.value_type)}, {type_.ndim})"
    if t.is_fixed_size_list(type_):
        return f"pyarrow.list_({_call(type_.value_type)}, {type_.list_size})"
    if is_list(type_):
        return f"pyarrow.{'large_list' if t.is_large_list(type_) else 'list_'}({_call(type_.value_type)})"
    if t.is_dictionary(type_):
        return f"pyarrow.dictionary({_call(type_.index_type)}, {_call(type_.value_type)})"
    if t.is_fixed_size_binary(type_):
        return f"pyarrow.binary({type_.byte_width})"
    name = str(type_).partition("[")[0]
    if t.is_timestamp(type_) and type_.tz is not None:
        return f"pyarrow.timestamp({type_.unit!r}, {type_.tz!r})"
    if t.is_timestamp(type_) or t.is_duration(type_) or t.is_time(type_):
        return f"pyarrow.{name}({type_.unit!r})"
    return f"pyarrow.{name}" if name.endswith(")") else f"pyarrow.{_MADE_BY.get(name, name)}()"
