"""One schema over many files: which differences unify, how batches are brought to it, and columns from folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import empty_columns
from headrace.core.arrow.forms import EXACT, form_of, values_type
from headrace.core.arrow.values import column_from
from headrace.core.files.hive import hive_values
from headrace.core.files.input_files import InputFile
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
        left, right = values_type(left), values_type(right)
    try:
        pair = [pa.schema([("", left)]), pa.schema([("", right)])]
        type_ = pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise _mismatch(column, known, known_in, found, found_in) from error
    if pa.types.is_floating(type_) and (pa.types.is_decimal(left) or pa.types.is_decimal(right)):
        raise _mismatch(column, known, known_in, found, found_in)  # a cast would round silently
    return type_


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


def select(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return ``schema`` cut to ``columns``, in their order; None: all."""
    if columns is None:
        return schema
    for name in columns:
        if schema.get_field_index(name) < 0:
            raise unknown_column("columns=", name, schema.names)
    return pa.schema([schema.field(name) for name in columns])


def conform(
    batch: pa.RecordBatch, target: pa.Schema, file: str, constants: Constants = lambda name, rows: None
) -> pa.RecordBatch:
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


def conformed(
    batch: pa.RecordBatch, target: pa.Schema, file: str, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield a file's batch as ``target`` has it, in pieces of ``batch_rows`` rows at most."""
    whole = batch if batch.schema.equals(target) else conform(batch, target, file)
    for start in range(0, whole.num_rows, batch_rows):
        yield whole.slice(start, batch_rows)


def _cast(column: pa.Array, field: pa.Field, file: str) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"Column {field.name!r} of {file!r} is {column.type}, while all input files together make it "
            f"{field.type}, and a value does not fit: {error}. Rewrite the file with that type, read it on "
            "its own, or leave the column out with `columns=`."
        ) from error


# ------------------------------------------------------------ columns from folders: ``day=1/city=Rio/part.csv``


def folder_values(files: Sequence[InputFile]) -> dict[str, set[str | None]]:
    """Return the values of each key that a file's folders have."""
    values: dict[str, set[str | None]] = {}
    for folder in dict.fromkeys(file.path.rpartition(os.sep)[0] for file in files):
        for key, value in hive_values(os.path.join(folder, "")).items():
            values.setdefault(key, set()).add(value)
    return values


def folder_fields(values: Mapping[str, set[str | None]], partitioning: str) -> list[pa.Field]:
    """Return a column for each key: int64 where every value is an integer, unless all are ``"text"``; else string."""
    numbers = {key for key, found in values.items() if partitioning == "hive" and _integers(found)}
    return [pa.field(key, pa.int64() if key in numbers else pa.string()) for key in values]


def constant(value: str | None, type_: pa.DataType, rows: int) -> pa.Array:
    """Return a column that holds the value of a folder in each row."""
    if value is None:
        return pa.nulls(rows, type_)
    if pa.types.is_integer(type_):
        return column_from(np.full(rows, int(value), np.int64)).cast(type_)
    return repeated(value, rows).cast(type_)


def repeated(value: str, count: int) -> pa.Array:
    """Return a column of one text. ``pa.repeat`` would import pandas."""
    encoded = value.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(encoded)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(encoded * count))


def beside(
    batch: pa.RecordBatch, added: Sequence[tuple[pa.Field, pa.Array]], columns: Sequence[str] | None
) -> pa.RecordBatch:
    """Return a batch with further columns behind its own, or those of all that ``columns`` names."""
    for field, values in added:
        batch = batch.append_column(field, values)
    return batch if columns is None else batch.select(list(columns))


@dataclass(frozen=True)
class FolderColumns:
    """The columns that the folders of some files add behind their own."""

    fields: tuple[pa.Field, ...]
    forms: Mapping[str, str]

    @classmethod
    def of(cls, files: Sequence[InputFile], own: pa.Schema, partitioning: str) -> FolderColumns:
        """See which there are; a column of the files' own of such a name wins."""
        values = folder_values(files)
        every = folder_fields(values, partitioning)
        fields = tuple(field for field in every if own.get_field_index(field.name) < 0)
        forms = {}
        for field in fields:
            present = [value for value in values[field.name] if value is not None]
            lacking = any(hive_values(file.path).get(field.name) is None for file in files)
            wide = pa.types.is_integer(field.type) and any(abs(int(value)) > EXACT for value in present)
            form = form_of(field.type, wide=wide) if lacking else None
            if form is not None:
                forms[field.name] = form
        return cls(fields, forms)

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [field.name for field in self.fields]

    def add_to_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with these columns at its end."""
        return pa.schema([*schema, *self.fields])

    def values(self, path: str, rows: int) -> list[tuple[pa.Field, pa.Array]]:
        """Return the columns for some rows of one file."""
        found = hive_values(path)
        return [(field, constant(found.get(field.name), field.type, rows)) for field in self.fields]


def _integers(values: set[str | None]) -> bool:
    present = [value for value in values if value is not None]
    numbers = all(
        digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) < 2**63
        for digits in (value.removeprefix("-") for value in present)
    )
    return numbers and len(set(map(int, present))) == len(present) > 0  # "7" and "07" are two values
