"""What a Parquet file's footer says: columns, row groups, and where chunks lie. And a footer for joined ones.

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift

Here is what may be copied from one file to another. A footer that says anything which is not known here, or that
contradicts itself, is ``NotUnderstood``: whoever asked decodes the file instead.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from headrace.core.parquet import compact
from headrace.core.parquet.compact import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    NotUnderstood,
    Struct,
    binary,
    number,
    of_binaries,
    of_number,
)

MAGIC = b"PAR1"
TAIL = 8  # bytes behind the footer: its length and the magic

_STATISTICS = {1: BINARY, 2: BINARY, 3: I64, 4: I64, 5: BINARY, 6: BINARY, 7: TRUE, 8: TRUE, 9: I64}
_SIZES = {5: I64, 6: I64, 7: I64, 9: I64, 10: I64, 11: I64, 14: I64, 15: I32}
_META: compact.Shape = {
    1: I32,
    2: LIST,
    3: LIST,
    4: I32,
    8: LIST,
    12: _STATISTICS,
    13: LIST,
    16: STRUCT,
    **_SIZES,
}
_CHUNK: compact.Shape = {1: BINARY, 2: I64, 3: _META, 4: I64, 5: I32, 6: I64, 7: I32, 8: STRUCT, 9: BINARY}
_GROUP: compact.Shape = {1: [_CHUNK], 2: I64, 3: I64, 4: LIST, 5: I64, 6: I64, 7: I16}
_ELEMENT = {1: I32, 2: I32, 3: I32, 4: BINARY, 5: I32, 6: I32, 7: I32, 8: I32, 9: I32, 10: STRUCT}
_ORDER: dict[int, Any] = {1: {}, 2: {}}
_FILE: compact.Shape = {
    1: I32,
    2: [_ELEMENT],
    3: I64,
    4: [_GROUP],
    5: LIST,
    6: BINARY,
    7: [_ORDER],
    8: STRUCT,
    9: BINARY,
}

FIXED, INT96 = 7, 3  # physical types
CODECS = {0: "none", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4"}
_DEEPEST = 64

Skeleton: TypeAlias = "tuple[tuple[int, int, int, int], ...]"

# Readers know some writers by name, and read what these wrote in another way. A copy would not have that name.
_UNLIKE_OTHERS = {
    "parquet-mr": (
        1,
        10,
        0,
    ),  # statistics (PARQUET-251, -686), sizes of chunks (-816), DELTA_BYTE_ARRAY (-246)
    "parquet-cpp": (99, 0, 0),  # statistics before 1.3.0; pages of the second version (ARROW-10353)
    "parquet-cpp-arrow": (3, 0, 0),  # ARROW-10353
    "impala": (99, 0, 0),
}


class Column(msgspec.Struct, frozen=True):
    """A column at the top of the schema: its elements, its own the first, and the leaves among all of the file."""

    name: str
    elements: tuple[Struct, ...]
    first: int
    paths: tuple[tuple[bytes, ...], ...]
    types: tuple[int, ...]

    @property
    def leaves(self) -> range:
        """The numbers of its leaves."""
        return range(self.first, self.first + len(self.paths))

    @property
    def skeleton(self) -> Skeleton:
        """What the levels and the values of its pages are read by: types, repetition and children, without names."""
        return tuple(
            (number(each.get(1), -1), number(each.get(2)), number(each.get(3), -1), number(each.get(5)))
            for each in self.elements
        )


class Chunk(msgspec.Struct, frozen=True):
    """The values of a leaf in a row group: its metadata, and where its bytes lie."""

    meta: Struct
    start: int
    size: int

    @property
    def stop(self) -> int:
        """Where its bytes end."""
        return self.start + self.size

    @property
    def values(self) -> int:
        """How many values, nulls included."""
        return number(self.meta[5])

    @property
    def codec(self) -> str | None:
        """The name of its compression, if it is one that all readers take alike."""
        return CODECS.get(number(self.meta[4]))

    @property
    def nulls(self) -> int | None:
        """How many of the values are null, if that is known."""
        statistics = self.meta.get(12)
        return number(statistics[1][3]) if statistics is not None and 3 in statistics[1] else None


class RowGroup(msgspec.Struct, frozen=True):
    """Some rows of all columns; ``chunks`` has one for each leaf, in the order of the schema."""

    rows: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Footer:
    """A footer; ``root`` is the top of its schema, ``fields`` what else it says of the file."""

    root: Struct
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...]
    created_by: str
    fields: Struct
    ordered: tuple[bool, ...]  # for each leaf, whether its new statistics have the order of its type

    def with_columns_of(self, other: Footer) -> Footer:
        """Return the same with the columns of another footer in the place of those that have their names.

        Only for columns of one leaf.
        """
        columns = tuple(
            column if (found := other.column(column.name)) is None else replace(found, first=column.first)
            for column in self.columns
        )
        return dataclasses.replace(self, columns=columns)

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def column(self, name: str) -> Column | None:
        """Return the column of that name."""
        return self._by_name.get(name)


def parse(data: bytes, end: int) -> Footer:
    """Parse a footer that begins at offset ``end`` of its file. Raises ``NotUnderstood``, with the reason."""
    fields, stop = compact.read_struct(data, 0, _FILE)
    if stop != len(data):
        raise NotUnderstood("there are bytes behind it")
    if 8 in fields or 9 in fields:
        raise NotUnderstood("the file is encrypted")
    if not {2, 3, 4} <= fields.keys():
        raise NotUnderstood("it lacks schema or row groups")
    elements = fields.pop(2)[1]
    columns = _columns(elements)
    leaves = [
        (of_binaries(path)[1], type_, repeated)
        for column in columns
        for path, type_, repeated in zip(column.paths, column.types, _depths(column), strict=True)
    ]
    groups = tuple(_group(each, leaves, end) for each in fields.pop(4)[1])
    if sum(group.rows for group in groups) != number(fields[3]):
        raise NotUnderstood("its row groups have other numbers of rows than the file")
    _refuse_overlaps(groups)
    created_by = (binary(fields.get(6)) or b"").decode("utf-8", "replace")
    return Footer(elements[0], columns, groups, created_by, fields, _ordered(fields.get(7), leaves))


def why_not_copied(created_by: str) -> str:
    """Say why chunks of a writer are not copied, if readers have to know that they are its; "" if they are."""
    found = re.match(r"\s*([A-Za-z0-9-]+)(?:\s+version)?\s+v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", created_by)
    name = re.match(r"\s*([A-Za-z0-9-]*)", created_by)
    first = _UNLIKE_OTHERS.get(name[1].lower() if name else "")
    if not created_by.strip():
        return "the file does not say who wrote it"
    if first is None:
        return ""
    version = tuple(int(part or 0) for part in found.groups()[1:]) if found else (0, 0, 0)
    return f"{created_by[:60]!r} wrote it, which readers treat apart" if version < first else ""


# ---------------------------------------------------------------- schema


def _columns(elements: Sequence[Struct]) -> tuple[Column, ...]:
    if not elements:
        raise NotUnderstood("its schema is empty")
    columns: list[Column] = []
    at, leaves = 1, 0
    for _ in range(_children(elements[0], len(elements))):
        paths: list[tuple[bytes, ...]] = []
        types: list[int] = []
        stop = _walked(elements, at, (), paths, types)
        try:
            name = paths[0][0].decode() if paths else ""
        except UnicodeDecodeError:
            raise NotUnderstood("the name of a column is no text") from None
        columns.append(Column(name, tuple(elements[at:stop]), leaves, tuple(paths), tuple(types)))
        at, leaves = stop, leaves + len(paths)
    if at != len(elements):
        raise NotUnderstood("its schema is no tree")
    if len({column.name for column in columns}) != len(columns):
        raise NotUnderstood("two columns have one name")
    return tuple(columns)


def _walked(
    elements: Sequence[Struct],
    at: int,
    above: tuple[bytes, ...],
    paths: list[tuple[bytes, ...]],
    types: list[int],
) -> int:
    """Add the leaves below an element; return where the next one is that is not below it."""
    if at >= len(elements) or len(above) > _DEEPEST:
        raise NotUnderstood("its schema is no tree")
    element = elements[at]
    name = binary(element.get(4))
    if name is None or number(element.get(3), -1) not in (0, 1, 2):
        raise NotUnderstood("an element of its schema lacks its name or repetition")
    path = (*above, name)
    if 1 in element:
        if number(element.get(5)):
            raise NotUnderstood("an element of its schema has both values and children")
        type_ = number(element[1])
        if not 0 <= type_ <= FIXED or (type_ == FIXED) != (number(element.get(2)) > 0):
            raise NotUnderstood("an element of its schema has an unknown type")
        paths.append(path)
        types.append(type_)
        return at + 1
    following = at + 1
    for _ in range(_children(element, len(elements))):
        following = _walked(elements, following, path, paths, types)
    return following


def _children(element: Struct, most: int) -> int:
    count = number(element.get(5))
    if not 0 < count < most:
        raise NotUnderstood("an element of its schema has neither values nor children")
    return count


def _depths(column: Column) -> Iterator[bool]:
    """Yield for each leaf whether it may have several values, or none, in a row."""
    repeated: list[tuple[int, bool]] = []  # children that are left, at each level
    above = False
    for element in column.elements:
        while repeated and not repeated[-1][0]:
            repeated.pop()
        above = repeated[-1][1] if repeated else False
        if repeated:
            repeated[-1] = repeated[-1][0] - 1, repeated[-1][1]
        here = above or number(element[3]) == 2
        if 1 in element:
            yield here
        else:
            repeated.append((number(element[5]), here))


# ---------------------------------------------------------------- row groups


def _group(group: Struct, leaves: Sequence[tuple[bytes, int, bool]], end: int) -> RowGroup:
    chunks = group[1][1] if 1 in group else []
    rows = number(group.get(3), -1)
    if rows < 0 or len(chunks) != len(leaves):
        raise NotUnderstood("a row group has another number of columns than the schema")
    return RowGroup(rows, tuple(_chunk(*each, rows, end) for each in zip(chunks, leaves, strict=True)))


def _chunk(chunk: Struct, leaf: tuple[bytes, int, bool], rows: int, end: int) -> Chunk:
    path, type_, repeated = leaf
    if 1 in chunk:
        raise NotUnderstood("a column lies in another file")
    if 8 in chunk or 9 in chunk:
        raise NotUnderstood("a column is encrypted")
    meta: Struct = chunk[3][1] if 3 in chunk else {}
    if not {1, 2, 3, 4, 5, 6, 7, 9} <= meta.keys():
        raise NotUnderstood("the metadata of a column are not complete")
    if meta[3][1] != path or number(meta[1]) != type_:
        raise NotUnderstood("a column is another one than in the schema")
    values, size, data = number(meta[5]), number(meta[7]), number(meta[9])
    dictionary = number(meta.get(11))
    if values < 0 or number(meta[6]) < 0 or (values != rows if not repeated else values < rows):
        raise NotUnderstood("a column has another number of values than of rows")
    if not values:  # nor rows: nobody copies it
        return Chunk(meta, 0, 0)
    if dictionary >= data or dictionary < 0:
        raise NotUnderstood("a dictionary lies behind its values")
    start = dictionary or data
    if start < len(MAGIC) or size < 0 or start + size > end or (data > start + size):
        raise NotUnderstood("a column lies outside of the file")
    return Chunk(meta, start, size)


def _refuse_overlaps(groups: Sequence[RowGroup]) -> None:
    """Copies of chunks that share bytes would be longer than the file: a footer of a kilobyte could ask for any."""
    places = sorted((chunk.start, chunk.stop) for group in groups for chunk in group.chunks if chunk.size)
    if any(stop > start for (_, stop), (start, _) in pairwise(places)):
        raise NotUnderstood("two columns share bytes")


def _ordered(orders: tuple[int, Any] | None, leaves: Sequence[tuple[bytes, int, bool]]) -> tuple[bool, ...]:
    """Say of each leaf whether its statistics are declared to have the order of its type; INT96 has none."""
    if orders is None:
        return (False,) * len(leaves)
    if len(orders[1]) != len(leaves):
        raise NotUnderstood("it has orders for another number of columns")
    return tuple(
        set(order) == {1} and type_ != INT96 for order, (_, type_, _) in zip(orders[1], leaves, strict=True)
    )


def read_tail(data: bytes, size: int) -> int:
    """Return how long the footer is, from the last eight bytes of a file of ``size`` bytes."""
    length = int.from_bytes(data[:4], "little")
    if len(data) != TAIL or data[4:] != MAGIC or length > size - TAIL - len(MAGIC):
        raise NotUnderstood("the file does not end as Parquet does")
    return length


# ---------------------------------------------------------------- the footer of a joined file

_NO_OFFSET = of_number(I64, 0)


class Placed(NamedTuple):
    """A chunk in the new file. ``ordered``: whether its old footer says which order its statistics have."""

    chunk: Chunk
    start: int
    ordered: bool


class FooterJoiner:
    """Collects row groups, and gives the footer; schema, metadata and writer are those of ``like``."""

    def __init__(self, like: Footer) -> None:
        self._like = like
        self._paths = [of_binaries(path) for column in like.columns for path in column.paths]
        self._groups: list[Struct] = []
        self.rows = 0

    def add(self, rows: int, chunks: Sequence[Placed]) -> None:
        """Add a row group: a chunk for each leaf of the schema, in its order."""
        metas = [_moved(placed, path) for placed, path in zip(chunks, self._paths, strict=True)]
        chunk_structs: list[Struct] = [{2: _NO_OFFSET, 3: (STRUCT, meta)} for meta in metas]
        group: Struct = {
            1: (LIST, chunk_structs),
            2: of_number(I64, sum(compact.number(meta[6]) for meta in metas)),
            3: of_number(I64, rows),
            6: of_number(I64, sum(placed.chunk.size for placed in chunks)),
        }
        if chunks:
            group[5] = of_number(I64, chunks[0].start)
        if len(self._groups) < 1 << 15:
            group[7] = of_number(I16, len(self._groups))
        self._groups.append(group)
        self.rows += rows

    def footer(self) -> bytes:
        """Return all that stands behind the chunks, to the end of the file."""
        like = self._like
        elements = [like.root, *(element for column in like.columns for element in column.elements)]
        fields = {**like.fields, 2: (LIST, elements), 3: of_number(I64, self.rows), 4: (LIST, self._groups)}
        data = compact.write_struct(fields)
        return data + struct.pack("<I", len(data)) + MAGIC


def _moved(placed: Placed, path: tuple[int, bytes]) -> Struct:
    """Return the metadata of a chunk in its new place, without what lies outside of it: indexes and filters."""
    chunk, start, ordered = placed
    meta = {**chunk.meta, 3: path}
    for outside in (10, 14, 15):
        meta.pop(outside, None)
    shift = start - chunk.start
    for offset in (9, 11):
        if offset in meta:
            meta[offset] = of_number(I64, compact.number(meta[offset]) + shift)
    if not compact.number(chunk.meta.get(11)):
        meta.pop(11, None)  # some write 0 for none
    if 12 in meta:
        meta[12] = STRUCT, _statistics(meta[12][1], ordered=ordered)
    return meta


def _statistics(given: Struct, *, ordered: bool) -> Struct:
    """Return what a reader may rely on, whoever wrote it.

    The old fields, 1 and 2, have an order that nobody wrote down: they stay where the new ones say the same. Counts
    of distinct values may be estimates, and few know those of NaN.
    """
    kept: Struct = {field: given[field] for field in (3, 5, 6, 7, 8) if field in given}
    if not ordered:
        return {3: kept[3]} if 3 in kept else {}
    for old, new in ((1, 5), (2, 6)):
        if old in given and new in given and given[old] == given[new]:
            kept[old] = given[old]
    return kept
