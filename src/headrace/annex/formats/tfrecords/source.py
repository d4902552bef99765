"""TFRecord files of ``tf.train.Example``: each record is a row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.annex.formats.tfrecords import framing
from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad, Location
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.errors import ArgumentError, SchemaMismatch, UnreadableFile
from headrace.sources.file_source import FileSource, PathArgument, batches_of, damaged

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS = 256  # of a file, from which types are settled
FILES = 8
_BYTES = 16 << 20
_READER = "read_tfrecords"
_KINDS = {"bytes_list": "bytes", "float_list": "floats", "int64_list": "integers"}

_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")

Features = dict[str, tuple[str, Sequence[Any]]]  # kind ("" of none) and values, by name


class Found(NamedTuple):
    """The columns of all files, and the forms in which functions see them."""

    schema: pa.Schema
    forms: dict[str, str]


class TFRecordSource(FileSource[Found]):
    """Reads TFRecord files, plain or compressed; a split is a file."""

    kind = "tfrecords"
    suffixes = suffixes_read_by(_READER)
    reads_objects = True

    def __init__(
        self, paths: PathArgument, *, schema: pa.Schema | None = None, include_paths: bool = False
    ) -> None:
        super().__init__(paths, include_paths=include_paths)
        framing.needs_libraries(_READER)
        for field in schema if schema is not None else ():
            if _kind_of(field.type) is None:
                raise ArgumentError(
                    f"read_tfrecords: schema= has the column {field.name!r} of type {field.type}; a feature is "
                    "bytes, text, floats or integers, or a list of these."
                )
        self._given = schema

    def options(self) -> dict[str, Any]:
        given = None if self._given is None else [[field.name, str(field.type)] for field in self._given]
        return {"schema": given}

    def forms(self) -> Mapping[str, str]:
        """Return the forms of numbers that some record lacks."""
        return self.inspected().forms

    def inspect(self, files: list[InputFile]) -> Found:
        if self._given is not None:
            return Found(self._given, {})
        return _settled(files)

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the records of a file; a batch ends early at 64 MiB."""
        import pyarrow as pa

        from headrace.core.arrow.batch import empty_columns
        from headrace.sources.schemas import select

        path, known = self.file(split.file).path, self.inspected().schema
        target = select(known, columns)

        def rows() -> Iterator[tuple[list[Any], int] | UnreadableFile]:
            for number, record in enumerate(_records(path)):
                try:
                    if isinstance(record, framing.Damage):
                        raise ValueError(record.reason)
                    yield self._values(record, known, target), len(record)
                except ValueError as error:
                    yield damaged(f"record {number:,} of {path!r} as TFRecord", error, path, _READER)

        def batch(records: list[list[Any]]) -> pa.RecordBatch:
            if not len(target):
                return empty_columns(len(records))
            columns = zip(zip(*records, strict=True), target, strict=True)
            return pa.RecordBatch.from_arrays(
                [pa.array(values, field.type) for values, field in columns], schema=target
            )

        return batches_of(rows(), batch, batch_rows, bad)

    def _values(self, record: bytes, known: pa.Schema, target: pa.Schema) -> list[Any]:
        """Return the values of a row; raises ``ValueError`` for a record that does not fit the columns."""
        strict = self._given is None
        features = features_of(record, whole=strict)
        for name in features if strict else ():
            if known.get_field_index(name) < 0:
                raise ValueError(
                    f"none of the first records has a feature {name!r}, so there is no column for it. Name the "
                    "columns with schema="
                )
        return [_value(field, *features.get(field.name, ("", ()))) for field in target]

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the record, counted from 0."""
        return Location(self.file(split.file).path, row, "record")


# ---------------------------------------------------------------- records


def _records(path: str) -> Iterator[bytes | framing.Damage]:
    import pyarrow as pa

    with _opened(path) as file:
        try:
            yield from framing.records(file)
        except (EOFError, OSError, pa.ArrowException) as error:
            yield framing.Damage(f"its compression is damaged: {error}", True)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a file; what is compressed, by its first bytes, is unpacked."""
    from headrace.sources import text

    try:
        with open_binary(path) as file:
            head = file.read(12)
        if head and not framing.begins_a_record(head):
            if text.compression_of(path) is not None:
                with text.open_stream(path) as packed:
                    yield _Whole(packed)
                return
            if head[:2] in _ZLIB:
                raise damaged(
                    f"{path!r} as TFRecord", "it is compressed by ZLIB. Write it with GZIP", path, _READER
                )
        with open_binary(path) as file:
            yield file
    except OSError as error:
        raise damaged(f"{path!r} as TFRecord", error, path, _READER) from error


class _Whole:
    """A stream that gives all bytes that it is asked for, where a decompressor may give less at a time."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        """Read so many bytes, fewer only at the end."""
        from headrace.sources.text import read_fully

        return read_fully(self._stream, size)


def features_of(record: bytes, *, whole: bool = True) -> Features:
    """Return the features of a record, by name; raises ``ValueError`` for what is no ``tf.train.Example``.

    ``whole``: nor may it have more than features, as a ``tf.train.SequenceExample`` has.
    """
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    try:
        example = framing.example_class().FromString(record)
    except DecodeError:
        raise ValueError("it is not a tf.train.Example") from None
    if whole and len(UnknownFieldSet(example)):
        raise ValueError(
            "it is not a tf.train.Example. It may be a tf.train.SequenceExample, whose lists of features cannot be "
            "read. To read only the features of its context, name them with schema="
        )
    found: Features = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = (kind, getattr(feature, kind).value) if kind else ("", ())
    return found


def _value(field: pa.Field, kind: str, values: Sequence[Any]) -> Any:
    """Return the value of a column; raises ``ValueError`` where the feature does not fit its type."""
    if not kind:
        _check_null(field)
        return None
    wanted, many = _shape_of(field.type)
    if kind != wanted and (values or wanted):
        raise ValueError(f"its feature {field.name!r} is of {_KINDS[kind]}, and the column {field.type}")
    if many:
        size = many if many > 0 else len(values)
        if len(values) != size:
            raise ValueError(
                f"its feature {field.name!r} has {len(values):,} values, and the column {field.type}"
            )
        made = list(values)
    else:
        if len(values) > 1:
            raise ValueError(
                f"its feature {field.name!r} has {len(values):,} values, and the first records have one at most. Use "
                "schema= to make it a list"
            )
        if not values:
            _check_null(field)
        made = list(values) or [None]
    return _checked(field, made) if many else _checked(field, made)[0]


def _check_null(field: pa.Field) -> None:
    if not field.nullable:
        raise ValueError(f"it has no value for the feature {field.name!r}, and the column allows no nulls")


def _checked(field: pa.Field, values: list[Any]) -> list[Any]:
    import pyarrow as pa

    type_ = field.type.value_type if _is_list(field.type) else field.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        try:
            return [None if value is None else value.decode() for value in values]
        except UnicodeDecodeError:
            raise ValueError(f"its feature {field.name!r} is not text in UTF-8, as in the column") from None
    if pa.types.is_boolean(type_):
        if not {*values} <= {0, 1, None}:
            raise ValueError(f"its feature {field.name!r} has numbers other than 0 and 1")
        return [None if value is None else bool(value) for value in values]
    exact = (pa.int64(), pa.float32(), pa.float64())
    if type_ in exact or pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return values
    try:
        made = pa.array(values, type_)
        if pa.types.is_float16(type_):
            pairs = zip(values, made.to_pylist(), strict=True)
            if any(kept is not None and math.isinf(kept) and not math.isinf(value) for value, kept in pairs):
                raise ValueError("a number is too large")
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise ValueError(f"its feature {field.name!r} does not fit {type_}: {error}") from error
    return values


def _is_list(type_: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


def _kind_of(type_: pa.DataType) -> str | None:
    """Return in which list of a feature values of a type are; None for other types."""
    import pyarrow as pa

    types = pa.types
    if _is_list(type_):
        type_ = type_.value_type
    if (
        types.is_binary(type_)
        or types.is_large_binary(type_)
        or types.is_string(type_)
        or types.is_large_string(type_)
    ):
        return "bytes_list"
    if types.is_floating(type_):
        return "float_list"
    return "int64_list" if types.is_integer(type_) or types.is_boolean(type_) else None


def _shape_of(type_: pa.DataType) -> tuple[str, int]:
    """Return the kind of a column, and how many values it has: 0 for one, -1 for any number."""
    import pyarrow as pa

    kind = _kind_of(type_) or ""
    if pa.types.is_fixed_size_list(type_):
        return kind, int(type_.list_size)
    return kind, -1 if _is_list(type_) else 0


# ---------------------------------------------------------------- planning


def _settled(files: Sequence[InputFile]) -> Found:
    """Settle columns and types by the first records of some files."""
    import pyarrow as pa

    from headrace.core.arrow.forms import form_of

    seen: dict[str, dict[str, str]] = {}  # the kinds of each feature, and where each was first
    most: dict[str, int] = {}
    counts: dict[str, int] = {}
    total, damage = 0, ""
    for file in files[:FILES]:
        size = 0
        for number, record in enumerate(_records(file.path)):
            try:
                if isinstance(record, framing.Damage):
                    raise ValueError(record.reason)
                features = features_of(record)
            except ValueError as error:  # reported where it is read
                what = f"record {number:,} of {file.path!r} as TFRecord"
                damage = damage or str(damaged(what, error, file.path, _READER))
                continue
            total += 1
            size += len(record)
            for name, (kind, values) in features.items():
                if kind and len(values):
                    seen.setdefault(name, {}).setdefault(kind, f"record {number:,} of {file.path!r}")
                    counts[name] = counts.get(name, 0) + 1
                most[name] = max(most.get(name, 0), len(values))
            if number + 1 >= RECORDS or size > _BYTES:
                break
    if damage and not total:
        raise UnreadableFile(damage)
    plain = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
    fields, forms = [], {}
    for name in sorted(most):
        kinds = seen.get(name, {})
        if len(kinds) > 1:
            (one, where), (other, there) = [*kinds.items()][:2]
            raise SchemaMismatch(
                f"The records do not fit together: the feature {name!r} is of {_KINDS[one]} in {where}, and of "
                f"{_KINDS[other]} in {there}. Use schema= to choose one; rows with the other type are then bad rows."
            )
        type_ = plain[next(iter(kinds))] if kinds else pa.null()
        fields.append(pa.field(name, pa.list_(type_) if most[name] > 1 else type_))
        form = form_of(type_) if most[name] == 1 and counts[name] < total else None
        if form is not None:
            forms[name] = form
    return Found(pa.schema(fields), forms)
