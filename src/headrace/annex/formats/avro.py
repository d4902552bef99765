"""Avro object container files, read block by block.

The format is Apache Avro 1.12's: a header with the schema, then blocks of records, each behind its number of records
and of bytes and before a marker that is the same for the whole file. fastavro decodes the records.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from headrace.core.files.artifacts import require
from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad, Location
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.errors import HeadraceError, UnreadableFile
from headrace.sources.file_source import FileSource, damaged

if TYPE_CHECKING:
    import pyarrow as pa


# ------------------------------------------------------------ types and values


_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_WHOLE, _BROKEN = {"int", "long"}, {"float", "double"}
_PLAIN = {
    "null": "null",
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "binary",
    "string": "string",
}


class NoArrowType(Exception):
    """A schema, or a part of one, that no Arrow type stands for."""


def columns_of(schema: Any) -> pa.Schema:
    """Return the columns of a schema that fastavro has parsed; ``NoArrowType`` for what has none."""
    import pyarrow as pa

    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise NoArrowType("its schema is not a record, so it has no columns")
    types = _Types({schema["name"]: None})
    return pa.schema([(each["name"], types.of(each["type"], each["name"])) for each in schema["fields"]])


def without_logical_types(schema: Any) -> Any:
    """Return a schema whose values are decoded as they are stored: dates and times as numbers, UUIDs as texts.

    Decimals stay: their scale is in the schema.
    """
    if isinstance(schema, list):
        return [without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType" or value == "decimal"}
    for key in ("type", "items", "values", "fields"):
        if key in kept:
            kept[key] = without_logical_types(kept[key])
    return kept


@dataclass
class _Types:
    """Finds the types of values; ``named`` are the types that have names, None while one is being made."""

    named: dict[str, pa.DataType | None]

    def of(self, schema: Any, place: str) -> pa.DataType:
        import pyarrow as pa

        if isinstance(schema, list):
            return self._union(schema, place)
        if isinstance(schema, str):
            return self._known(schema, place)
        kind = schema["type"]
        if (logical := self._logical(schema)) is not None:
            return logical
        if kind == "array":
            return pa.list_(self.of(schema["items"], f"{place}[]"))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], f"{place}[]"))
        if kind in ("record", "error", "enum", "fixed"):
            self.named[schema["name"]] = None
            made = self._named(kind, schema, place)
            self.named[schema["name"]] = made
            return made
        return self.of(kind, place)

    def _named(self, kind: str, schema: Any, place: str) -> pa.DataType:
        import pyarrow as pa

        if kind == "enum":
            return pa.string()
        if kind == "fixed":
            return pa.binary(schema["size"])
        fields = schema["fields"]
        return pa.struct(
            [(each["name"], self.of(each["type"], f"{place}.{each['name']}")) for each in fields]
        )

    def _logical(self, schema: Any) -> pa.DataType | None:
        """Return the type of a date, a time or a decimal; None if the schema is of none of these."""
        import pyarrow as pa

        name, kind = schema.get("logicalType", ""), schema["type"]
        if name == "decimal" and (kind == "bytes" or kind == "fixed"):
            precision = schema["precision"]
            make = pa.decimal128 if precision <= 38 else pa.decimal256
            return make(precision, schema.get("scale", 0))
        if name == "date" and kind == "int":
            return pa.date32()
        what, _, unit = name.rpartition("-")
        if unit not in _UNITS or kind != ("int" if name == "time-millis" else "long"):
            return None
        if what == "timestamp":
            return pa.timestamp(_UNITS[unit], "UTC")
        if what == "local-timestamp":
            return pa.timestamp(_UNITS[unit])
        if what == "time":
            return pa.time32("ms") if unit == "millis" else pa.time64(_UNITS[unit])
        return None

    def _known(self, name: str, place: str) -> pa.DataType:
        import pyarrow as pa

        if name in _PLAIN:
            return pa.type_for_alias(_PLAIN[name])
        found = self.named.get(name)
        if found is None:
            raise NoArrowType(f"the record {name!r}, at {place!r}, contains itself, and no Arrow type does")
        return found

    def _union(self, schemas: Sequence[Any], place: str) -> pa.DataType:
        """Return the type of one of several; whole numbers that a column with fractions would round are bad rows."""
        import pyarrow as pa

        others = [each for each in schemas if each != "null"]
        if len(others) <= 1:
            return self.of(others[0] if others else "null", place)
        plain = {each for each in others if isinstance(each, str)}
        if len(plain) == len(others) and plain <= _WHOLE | _BROKEN:
            return pa.int64() if plain <= _WHOLE else pa.float64()
        names = [each if isinstance(each, str) else str(each.get("name", each["type"])) for each in others]
        raise NoArrowType(f"{place!r} is one of {', '.join(names)}, and a column has only one type")


_SPLIT_BYTES = 8 << 20
_UNPACKED = 3  # bytes in memory for each in a file, about
_MAGIC, _SYNC = b"Obj\x01", 16
_MOST_HEADER = 64 << 20
_CODECS = ("null", "deflate", "bzip2", "xz", "snappy", "zstandard")


class _Block(NamedTuple):
    """Where the data of a block lie, how many bytes these are, and how many records."""

    at: int
    size: int
    rows: int


class _File(NamedTuple):
    schema: Any  # as JSON, without logical types but for decimals
    codec: str
    columns: pa.Schema
    blocks: list[_Block]


class _Found(NamedTuple):
    files: list[_File]
    schema: pa.Schema


class AvroSource(FileSource[_Found]):
    """Reads Avro files: each record is a row. A split is some neighbouring blocks, of about 8 MiB in the file.

    Where blocks begin is read before anything else, some bytes of each; that also finds out if a file was cut short.
    """

    kind = "avro"
    suffixes = suffixes_read_by("read_avro")
    reads_objects = True

    def inspect(self, files: list[InputFile]) -> _Found:
        from headrace.sources.schemas import unify

        require("fastavro", "avro", "read_avro")
        found = [_inspected(file.path, file.size) for file in files]
        return _Found(
            found, unify((file.path, each.columns) for file, each in zip(files, found, strict=True))
        )

    def splits(self) -> list[Split]:
        """Group neighbouring blocks."""
        splits = []
        for number, file in enumerate(self.refreshed().files):
            start = held = rows = first = 0
            for i, block in enumerate(file.blocks):
                held, rows = held + block.size, rows + block.rows
                if held >= _SPLIT_BYTES or i + 1 == len(file.blocks):
                    splits.append(Split(number, start, i + 1, rows, max(1, held * _UNPACKED), first))
                    start, held, rows, first = i + 1, 0, 0, first + rows
        return splits

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the blocks of a split; the records of a damaged one are bad together."""
        import fastavro
        import pyarrow as pa

        from headrace.sources.schemas import conformed, select

        path, known = self.file(split.file).path, self.inspected().files[split.file]
        whole = self.inspected().schema
        target = select(whole, columns)
        fields = [field for field in known.columns if field.name in target.names]
        schema = fastavro.parse_schema(known.schema)
        row = 0
        with _open(path) as file:
            for number in range(split.start, split.stop):
                block = known.blocks[number]
                try:
                    records = _records(file, block, known.codec, schema)
                    made = {
                        field.name: pa.array([record[field.name] for record in records], field.type)
                        for field in fields
                    }
                except MemoryError:
                    raise
                except Exception as error:  # whatever damaged bytes make of the decoder
                    unreadable = damaged(f"block {number} (byte {block.at:,}) of {path!r} as Avro", error)
                    if bad is None:
                        raise unreadable from error
                    bad(row, block.rows, unreadable)
                    row += block.rows
                    continue
                row += block.rows
                rows = pa.RecordBatch.from_pydict(made or {"": pa.nulls(block.rows)})
                yield from conformed(rows, target, path, batch_rows)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the record, counted from 0."""
        return Location(self.file(split.file).path, split.first + row)


# ---------------------------------------------------------------- the file


def _inspected(path: str, size: int) -> _File:
    """Read the header, and where each block is; all of them have to be there."""
    import fastavro

    try:
        with _open(path) as file:
            codec, schema, sync = _header(file)
            blocks = list(_blocks(file, size, sync))
        columns = columns_of(fastavro.parse_schema(schema))
    except HeadraceError:
        raise
    except NoArrowType as error:
        raise UnreadableFile(
            f"Cannot read {path!r}: {error}. Read it with fastavro in a function of your own "
            "(read_binary_files(paths).flat_map(records))."
        ) from error
    except Exception as error:  # of a schema that is none, fastavro raises much
        raise damaged(f"{path!r} as Avro", error) from error
    return _File(without_logical_types(schema), codec, columns, blocks)


def _header(file: IO[bytes]) -> tuple[str, Any, bytes]:
    """Return the codec, the schema, and the marker behind each block."""
    if file.read(4) != _MAGIC:
        raise ValueError("it does not begin as an Avro file does")
    entries: dict[str, bytes] = {}
    while count := _long(file):
        if count < 0:
            count = -count
            _long(file)  # its bytes
        for _ in range(count):
            name = _bytes(file).decode()
            entries[name] = _bytes(file)
    codec = entries.get("avro.codec", b"null").decode()
    if codec not in _CODECS:
        raise ValueError(f"its codec {codec!r} is none of {', '.join(_CODECS)}")
    return codec, json.loads(entries["avro.schema"]), _exactly(file, _SYNC)


def _blocks(file: IO[bytes], size: int, sync: bytes) -> Iterator[_Block]:
    number = 0
    while (begins := file.tell()) < size:
        rows, length = _long(file), _long(file)
        at = file.tell()
        if rows < 0 or length < 0:
            raise ValueError(f"block {number} (byte {begins:,}) is damaged: it has a negative size")
        if at + length + _SYNC > size:
            raise ValueError(f"block {number} (byte {begins:,}) was cut short, by the end of the file")
        file.seek(at + length)
        if _exactly(file, _SYNC) != sync:
            raise ValueError(f"block {number} (byte {begins:,}) does not end where its size says")
        if rows:
            yield _Block(at, length, rows)
        number += 1


def _long(file: IO[bytes]) -> int:
    """Read a number of variable length."""
    value = shift = 0
    while True:
        (byte,) = _exactly(file, 1)
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
        if shift > 63:
            raise ValueError("a number in it has too many bytes")


def _bytes(file: IO[bytes]) -> bytes:
    length = _long(file)
    if not 0 <= length <= _MOST_HEADER:
        raise ValueError("its header is damaged")
    return _exactly(file, length)


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise ValueError("it was cut short")
    return data


# ---------------------------------------------------------------- records


def _records(file: IO[bytes], block: _Block, codec: str, schema: Any) -> list[dict[str, Any]]:
    import fastavro

    file.seek(block.at)
    data = _unpacked(_exactly(file, block.size), codec)
    stream = io.BytesIO(data)
    read = fastavro.schemaless_reader
    records = [read(stream, schema, None) for _ in range(block.rows)]
    if stream.tell() != len(data):
        raise ValueError(f"it has {len(data) - stream.tell():,} bytes more than its {block.rows:,} records")
    return records


def _unpacked(data: bytes, codec: str) -> bytes:
    if codec == "null":
        return data
    if codec == "deflate":
        return zlib.decompress(data, -15)
    if codec == "bzip2":
        return bz2.decompress(data)
    if codec == "xz":
        return lzma.decompress(data)
    import pyarrow as pa

    if codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            unpacked: bytes = stream.read()
        return unpacked
    body, check = data[:-4], int.from_bytes(data[-4:], "big")  # snappy, with a checksum of the records
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    plain: bytes = pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(plain) != check:
        raise ValueError("its checksum is wrong")
    return plain


def _open(path: str) -> IO[bytes]:
    try:
        return open_binary(path)
    except OSError as error:
        raise damaged(f"{path!r} as Avro", error) from error
