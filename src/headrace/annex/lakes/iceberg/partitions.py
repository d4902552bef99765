"""The partitions of an Iceberg table: which one a row is in, and how a part says which one it is.

Workers compute the values by Arrow and NumPy, as the specification has them (https://iceberg.apache.org/spec/,
"Partition Transforms"), since to import ``pyiceberg`` takes a second in each.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.annex.lakes.tables import MARKS, cast
from headrace.core.arrow.batch import taken
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.files.hive import folder_name
from headrace.errors import SinkError
from headrace.sinks.dividing import Codes, Folders, groups

MARK = MARKS + b"partition"
"""In the metadata of a part: its partition, and the spec by which that was computed."""

_TRANSFORM = re.compile(r"(identity|void|year|month|day|hour|bucket|truncate)(?:\[(\d+)\])?")
_TYPES = {"boolean", "int", "long", "string", "binary", "date", "timestamp", "timestamptz"}
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of the years 1 and 9999, which the library's times end with
_DAY, _HOUR = 86_400_000_000, 3_600_000_000
_LONGEST = 80  # bytes of a value in the name of a folder

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a partition spec: what is made of the values of a column."""

    name: str
    column: str
    source: int  # the number of the column, which it keeps when it is renamed
    transform: str
    width: int = 0  # of truncate; of bucket, how many there are

    def __str__(self) -> str:
        width = f"{self.width}, " if self.width else ""
        return self.column if self.transform == "identity" else f"{self.transform}({width}{self.column})"

    @property
    def mark(self) -> str:
        """What a value depends on.

        >>> PartitionField("day", "when", 3, "day").mark
        '3:day'
        """
        return f"{self.source}:{self.transform}{f'[{self.width}]' if self.width else ''}"


def fields_of(table: Any, identifier: str) -> tuple[PartitionField, ...]:
    """Return the fields of a table's spec; raises ``SinkError`` for one by which rows are not divided here."""
    columns = {column.field_id: column for column in table.schema().fields}
    found = []
    for each in table.spec().fields:
        match = _TRANSFORM.fullmatch(str(each.transform))
        column = columns.get(each.source_id)
        why = ""
        if match is None:
            why = f"its transform {each.transform} is not known"
        elif match[1] == "void":
            pass
        elif column is None:
            why = "its column is within another one, or was dropped"
        elif str(column.field_type) not in _TYPES and not str(column.field_type).startswith("decimal("):
            why = f"its column {column.name!r} is of type {column.field_type}"
        elif column.initial_default is not None:
            why = f"its column {column.name!r} has a default for older files"
        if why:
            raise SinkError(
                f"The Iceberg table {identifier} is partitioned by the field {each.name!r}, and {why}. Headrace "
                "cannot divide rows by such a field. Write to another table, and insert its rows with an engine that "
                "can; or change the spec (table.update_spec())."
            )
        assert match is not None
        name = "" if column is None else column.name
        found.append(PartitionField(each.name, name, each.source_id, match[1], int(match[2] or 0)))
    return tuple(found)


# ------------------------------------------------------------ in workers


@dataclass(frozen=True)
class Partitions:
    """Divides the rows of batches by their partitions, for a ``PartitionedWriter``."""

    fields: tuple[PartitionField, ...]
    kinds: pa.Schema  # of columns as they are written
    table: str
    limits: Folders
    values: dict[str, list[Any]] = field(default_factory=dict)  # folder → partition

    @property
    def told(self) -> str:
        """What errors call it."""
        return f"The Iceberg table {self.table} is partitioned by {', '.join(map(str, self.fields))}"

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the folder of each partition that has rows in the batch, with copies of these rows."""
        found = [self._found(each, batch) for each in self.fields]
        for rows in groups([codes for codes, _, _ in found], batch.num_rows):
            at = [codes[rows[0]] for codes, _, _ in found]
            folder = "/".join(names[i] for i, (_, names, _) in zip(at, found, strict=True))
            self.limits.check_path(folder)
            self.values.setdefault(folder, [values[i] for i, (_, _, values) in zip(at, found, strict=True)])
            yield folder, taken(batch, rows)

    def schema_in(self, folder: str, schema: pa.Schema) -> pa.Schema:
        """Return the columns, with what a part in a folder says of its partition."""
        about = {"spec": [each.mark for each in self.fields], "values": self.values[folder]}
        return schema.with_metadata({MARK: json.dumps(about).encode()})

    def _found(self, each: PartitionField, batch: pa.RecordBatch) -> tuple[Codes, list[str], list[Any]]:
        """Return the number of each row's value; the names of folders, and the values, that have these numbers."""
        at = batch.schema.get_field_index(each.column)
        if at < 0 or each.transform == "void":  # a column that is left out is null
            return np.zeros(batch.num_rows, np.int64), [self._folder(each, None)], [None]
        kind = self.kinds.field(each.column).type
        try:
            made = transformed(each.transform, each.width, cast(batch.column(at), kind))
        except (ValueError, OverflowError) as error:  # Arrow's are, too
            raise SinkError(
                f"{self.told}, and a value of the column {each.column!r} has no partition: {error}. "
                "Drop such rows in a step, or replace the value with null."
            ) from None
        encoded = made.dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        names = [self._folder(each, text_of(each.transform, kind, value)) for value in values]
        return to_numpy(encoded.indices).astype(np.int64), names, [_plain(value) for value in values]

    def _folder(self, each: PartitionField, text: str | None) -> str:
        """Return the name of a folder. No two values have the same: "null" and null, and long texts, neither."""
        key = re.sub(r"[^A-Za-z0-9_.~-]", "-", each.name)[:_LONGEST]
        key = f"-{key}" if key.startswith((".", "_")) else key
        if text is None:
            return f"{key}=null"
        name = folder_name(key, text, caseless=self.limits.caseless).replace("~", "%7E")
        value = name.partition("=")[2]
        if value == "null":
            return f"{key}=%6Eull"
        if len(value) > _LONGEST:
            start = folder_name(key, text[:4], caseless=self.limits.caseless).replace("~", "%7E")
            return f"{start}~{hashlib.sha256(text.encode()).hexdigest()}"
        return name


def transformed(transform: str, width: int, values: pa.Array) -> pa.Array:
    """Return the values of a partition field: integers of 64 bits for what is a number, a date or a time.

    Dates are days since 1970, times are microseconds.

    >>> days = pa.array([-1, None, 40], pa.date32())
    >>> transformed("month", 0, days).to_pylist(), transformed("identity", 0, days).to_pylist()
    ([-1, None, 1], [-1, None, 40])
    >>> transformed("truncate", 10, pa.array([-7, 19])).to_pylist()
    [-10, 10]
    """
    kind = values.type
    if pt.is_temporal(kind):
        _check_years(values)
    if pt.is_integer(kind) or pt.is_temporal(kind):
        whole = values.cast(pa.int32()).cast(pa.int64()) if kind.bit_width == 32 else values.cast(pa.int64())
    if transform == "bucket":
        distinct = (whole if not _is_bytes(kind) and not pt.is_decimal(kind) else values).dictionary_encode()
        hashes = [_hash(value) % width for value in _raw(distinct.dictionary)]
        return pa.array(hashes, pa.int64()).take(distinct.indices)
    if transform == "truncate":
        if pt.is_string(kind):
            return pc.utf8_slice_codeunits(values, 0, width)
        if pt.is_binary(kind):
            return pc.binary_slice(values, 0, width)
        if pt.is_decimal(kind):
            distinct = values.dictionary_encode()
            cut = [number - number % width for number in _unscaled(distinct.dictionary)]
            return pa.array([_decimal(number, kind.scale) for number in cut], kind).take(distinct.indices)
        least = -(2 ** (kind.bit_width - 1)) + width
        return _mapped(whole, lambda numbers: _truncated(numbers, width, least))
    if transform != "identity":
        unit = 1 if kind.bit_width == 32 else _DAY
        return _mapped(whole, lambda numbers: _periods(transform, numbers, unit))
    return whole if pt.is_integer(kind) or pt.is_temporal(kind) else values


def text_of(transform: str, kind: pa.DataType, value: Any) -> str | None:
    """Return a partition's value as the name of its folder has it: no two values have the same text.

    >>> text_of("month", pa.date32(), -1), text_of("identity", pa.string(), "a"), text_of("bucket", pa.int64(), 3)
    ('1969-12', 'a', '3')
    """
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (str, Decimal)):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if not pt.is_temporal(kind) or transform == "bucket":
        return str(value)
    units: dict[str, Any] = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
    unit = units.get(transform, "D" if kind.bit_width == 32 else "us")
    zone = "+00:00" if unit == "us" and kind.tz else ""
    return f"{np.datetime64(value, unit)}{zone}".replace("T", "-" if unit == "h" else "T")


def _mapped(whole: pa.Array, function: Callable[[Integers], Integers]) -> pa.Array:
    """Return integers made of integers; nulls stay null."""
    mask = to_numpy(whole.is_null())
    return pa.array(function(to_numpy(whole.fill_null(0))), pa.int64(), mask=mask)


def _periods(transform: str, numbers: Integers, per_day: int) -> Integers:
    if transform == "hour":
        return np.floor_divide(numbers, _HOUR)
    days = np.floor_divide(numbers, per_day)
    if transform == "day":
        return days
    unit = "Y" if transform == "year" else "M"
    return days.astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)


def _truncated(numbers: Integers, width: int, least: int) -> Integers:
    low = numbers[numbers < least]
    for number in low.tolist():
        if number - number % width < least - width:
            raise OverflowError(f"{number} cannot be truncated to a multiple of {width} in its type")
    return numbers - np.mod(numbers, width)


def _check_years(values: pa.Array) -> None:
    unit = 1 if values.type.bit_width == 32 else _DAY
    whole = values.cast(pa.int32()) if unit == 1 else values.cast(pa.int64())
    found = pc.min_max(whole).as_py()
    if found["min"] is not None and (
        found["min"] < _FIRST_DAY * unit or found["max"] >= (_LAST_DAY + 1) * unit
    ):
        raise ValueError("a date before the year 1, or after 9999")


def _hash(data: bytes) -> int:
    import mmh3  # it comes with pyiceberg

    return int(mmh3.hash(data)) & 0x7FFFFFFF


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_binary(kind))


def _raw(values: pa.Array) -> Iterator[bytes]:
    """Yield the bytes that are hashed: of integers eight, the lowest first; of decimals as few as hold them."""
    if _is_bytes(values.type):
        yield from values.cast(pa.binary()).to_pylist()
    elif pt.is_decimal(values.type):
        for number in _unscaled(values):
            bits = (number if number >= 0 else ~number).bit_length()
            yield number.to_bytes(bits // 8 + 1, "big", signed=True)
    else:
        data = to_numpy(values).astype("<i8").tobytes()
        yield from (data[at : at + 8] for at in range(0, len(data), 8))


def _unscaled(values: pa.Array) -> Iterator[int]:
    """Yield decimals as integers, without their point."""
    for value in values.to_pylist():
        sign, digits, _ = value.as_tuple()  # Arrow's have all digits of their scale
        number = int("".join(map(str, digits)))
        yield -number if sign else number


def _decimal(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, Decimal) else value


# ------------------------------------------------------------ in the driver


def data_file(metadata: Any, path: str, size: int, footer: Any, like: Any = None) -> Any:
    """Return the library's record of a part, with the partition that its footer names, or that of a file ``like`` it.

    Raises ``ValueError`` where the columns, or the spec, of the table are others than those of the part.
    """
    from pyiceberg.io import pyarrow as library
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    schema = metadata.schema()
    library._check_pyarrow_schema_compatible(
        schema, footer.schema.to_arrow_schema(), format_version=metadata.format_version
    )
    statistics = library.data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=library.compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=library.parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=_record(footer.metadata or {}, metadata) if like is None else like.partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id if like is None else like.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _record(footer: Mapping[bytes, bytes], metadata: Any) -> Any:
    from pyiceberg.typedef import Record
    from pyiceberg.types import BinaryType, DecimalType

    about = json.loads(footer.get(MARK, b'{"spec": [], "values": []}'))
    spec, schema = metadata.spec(), metadata.schema()
    now = [f"{each.source_id}:{each.transform}" for each in spec.fields]
    if about["spec"] != now:
        raise ValueError(f"its partitions are {now or 'none'} now, and were {about['spec'] or 'none'}")
    values = []
    for each, value in zip(spec.partition_type(schema).fields, about["values"], strict=True):
        if value is not None and isinstance(each.field_type, DecimalType):
            value = Decimal(value)
        elif value is not None and isinstance(each.field_type, BinaryType):
            value = bytes.fromhex(value)
        values.append(value)
    return Record(*values)
