"""One schema over many files: which differences unify, and how batches are brought to the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from headrace.core.arrow.batch import empty_columns
from headrace.errors import SchemaMismatch, unknown_column

Constants = Callable[[str, int], "pa.Array | None"]


def unify(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Unify the schemas of ``(file, schema)`` pairs: columns in order of first appearance.

    A column that some file lacks is null there. Types widen where no value can be lost unnoticed (int32 and
    int64, int and float, string and large_string, dictionary and its values, null and anything); where they
    cannot, ``SchemaMismatch`` names both files.
    """
    distinct: dict[pa.Schema, str] = {}
    previous: pa.Schema | None = None
    for file, schema in schemas:
        if previous is None or not schema.equals(previous):  # hashing a wide schema is slow
            previous = schema.remove_metadata()
            distinct.setdefault(previous, file)
    first, *others = distinct
    _refuse_duplicates(distinct[first], first)
    if not others:
        return first
    fields = {field.name: (field, distinct[first]) for field in first}
    for schema in others:
        file = distinct[schema]
        _refuse_duplicates(file, schema)
        for field in schema:
            known, origin = fields.setdefault(field.name, (field, file))
            if known.type != field.type:
                type_ = _unify_types(field.name, known.type, origin, field.type, file)
                # The file named in a later complaint is the one that last changed the type.
                fields[field.name] = (known.with_type(type_), origin if type_ == known.type else file)
    return pa.schema([field.with_nullable(True) for field, _ in fields.values()])


def _unify_types(
    column: str, known: pa.DataType, known_in: str, found: pa.DataType, found_in: str
) -> pa.DataType:
    left, right = known, found
    if pa.types.is_dictionary(left) != pa.types.is_dictionary(right):
        left, right = _values(left), _values(right)
    try:
        pair = [pa.schema([("", left)]), pa.schema([("", right)])]
        type_ = pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise _mismatch(column, known, known_in, found, found_in) from error
    if pa.types.is_floating(type_) and (pa.types.is_decimal(left) or pa.types.is_decimal(right)):
        raise _mismatch(column, known, known_in, found, found_in)  # a cast would round silently
    return type_


def _values(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _mismatch(
    column: str, known: pa.DataType, known_in: str, found: pa.DataType, found_in: str
) -> SchemaMismatch:
    return SchemaMismatch(
        f"The input files do not fit together: column {column!r} is {known} in {known_in!r} but {found} in "
        f"{found_in!r}, and neither type holds the other's values. Rewrite one of the files, read them separately, "
        "or leave the column out with `columns=`."
    )


def _refuse_duplicates(file: str, schema: pa.Schema) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise SchemaMismatch(
                f"Input file {file!r} has two columns named {name!r}, so it is not clear which is meant. Rewrite the "
                "file with different column names."
            )
        seen.add(name)


def read_guarded(
    batches: Iterator[pa.RecordBatch], explain: Callable[[Exception], Exception]
) -> Iterator[pa.RecordBatch]:
    """Hand on ``batches``; what Arrow or the system raises while they are read becomes ``explain(error)``."""
    while True:
        try:
            batch = next(batches, None)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise explain(error) from error
        if batch is None:
            return
        yield batch


def select(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return ``schema`` cut to ``columns``, in their order."""
    for name in columns:
        if schema.get_field_index(name) < 0:
            raise unknown_column("columns=", name, schema.names)
    return pa.schema([schema.field(name) for name in columns])


def conform(batch: pa.RecordBatch, target: pa.Schema, file: str, constants: Constants) -> pa.RecordBatch:
    """Bring a file's batch to ``target``: order, types, and columns that the file does not have.

    ``constants(name, rows)`` gives the values of a column that comes from the file's folder; None: null.
    """
    if not len(target):
        return empty_columns(batch.num_rows)
    columns = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            column = constants(field.name, batch.num_rows)
            columns.append(pa.nulls(batch.num_rows, field.type) if column is None else column)
            continue
        column = batch.column(index)
        if column.type != field.type:
            column = _cast(column, field, file)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(column: pa.Array, field: pa.Field, file: str) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"Column {field.name!r} of {file!r} is {column.type}, while all input files together make it "
            f"{field.type}, and a value does not fit: {error}. Rewrite the file with that type, read it on "
            "its own, or leave the column out with `columns=`."
        ) from error
