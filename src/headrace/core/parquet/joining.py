"""The footer of a file that is put together from column chunks of others."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.parquet import compact
from headrace.core.parquet.compact import I16, I64, LIST, STRUCT, Struct, of_binaries, of_number
from headrace.core.parquet.footer import MAGIC, Chunk, Footer

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
