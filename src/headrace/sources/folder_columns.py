"""Columns from the folders of files: ``day=1/city=Rio/part.csv`` has a day and a city in each row."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.core.arrow.forms import EXACT, form_of
from headrace.core.arrow.values import column_from
from headrace.core.files.hive import hive_values
from headrace.core.files.input_files import InputFile

_INTEGER = 18  # digits that surely fit int64


def folder_values(files: Sequence[InputFile]) -> dict[str, set[str | None]]:
    """Return the values of each key that a file's folders have."""
    values: dict[str, set[str | None]] = {}
    for folder in dict.fromkeys(file.path.rpartition(os.sep)[0] for file in files):
        for key, value in hive_values(os.path.join(folder, "")).items():
            values.setdefault(key, set()).add(value)
    return values


def folder_fields(values: Mapping[str, set[str | None]]) -> list[pa.Field]:
    """Return a column for each key: int64 where every value is an integer, else string."""
    return [pa.field(key, pa.int64() if _integers(found) else pa.string()) for key, found in values.items()]


def constant(value: str | None, type_: pa.DataType, rows: int) -> pa.Array:
    """Return a column that holds the value of a folder in each row."""
    if value is None:
        return pa.nulls(rows, type_)
    if pa.types.is_integer(type_):
        return column_from(np.full(rows, int(value), np.int64)).cast(type_)
    return column_from([value] * rows).cast(type_)


@dataclass(frozen=True)
class FolderColumns:
    """The columns that the folders of some files add behind their own."""

    fields: tuple[pa.Field, ...]
    forms: Mapping[str, str]

    @classmethod
    def of(cls, files: Sequence[InputFile], own: pa.Schema) -> FolderColumns:
        """See which there are; a column of the files' own of such a name wins."""
        values = folder_values(files)
        fields = tuple(field for field in folder_fields(values) if own.get_field_index(field.name) < 0)
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

    def add_to(
        self, batches: Iterator[pa.RecordBatch], columns: Sequence[str] | None, path: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one file with these columns, as far as ``columns`` (None: all) names them."""
        values = hive_values(path)
        wanted = [field for field in self.fields if columns is None or field.name in columns]
        for batch in batches:
            if not wanted:
                yield batch
                continue
            found = {field.name: (field, batch.column(i)) for i, field in enumerate(batch.schema)}
            for field in wanted:
                found[field.name] = field, constant(values.get(field.name), field.type, batch.num_rows)
            names = list(found) if columns is None else list(columns)
            yield pa.RecordBatch.from_arrays(
                [found[name][1] for name in names], schema=pa.schema([found[name][0] for name in names])
            )


def _integers(values: set[str | None]) -> bool:
    present = [value for value in values if value is not None]
    numbers = all(
        digits.isascii() and digits.isdigit() and len(digits) <= _INTEGER
        for digits in (value.removeprefix("-") for value in present)
    )
    return numbers and len(set(map(int, present))) == len(present) > 0  # "7" and "07" are two values
