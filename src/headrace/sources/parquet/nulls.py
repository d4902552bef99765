"""Which columns of a Parquet file may hold nulls, by its footer; and what is wrong with files that have none."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.arrow.forms import EXACT, form_of, is_wide
from headrace.core.stores.objects import open_binary
from headrace.errors import SourceError, UnreadableFile


@dataclass(frozen=True, slots=True)
class Nullable:
    """Columns of integers and booleans that may hold nulls, and where a file of this schema has their leaves."""

    places: tuple[tuple[pa.Field, _Leaf | None], ...]  # None: more leaves than one, or none

    @classmethod
    def of(cls, parquet: pq.ParquetSchema, schema: pa.Schema, columns: Collection[str] | None) -> Nullable:
        """Look for the columns in a schema; only among ``columns``, if given."""
        wanted = {
            field.name: field
            for field in schema
            if field.nullable
            and (form_of(field.type) is not None or pa.types.is_null(field.type))
            and (columns is None or field.name in columns)
        }
        leaves: dict[str, list[int]] = {}
        for leaf in range(len(parquet) if wanted else 0):
            path = parquet.column(leaf).path
            if path in wanted:
                leaves.setdefault(path, []).append(leaf)
        places = ((field, leaves.get(name, [])) for name, field in wanted.items())
        return cls(
            tuple(
                (field, _Leaf(found[0], parquet.column(found[0]).physical_type) if len(found) == 1 else None)
                for field, found in places
            )
        )

    def holding(self, groups: Sequence[pq.RowGroupMetaData]) -> dict[str, bool]:
        """Return those that hold nulls in these row groups, or for which the file does not tell.

        True: such a column is known to hold integers that float64 may round.
        """
        found = {}
        for field, leaf in self.places:
            if leaf is None:
                found[field.name] = False
            elif any(leaf.may_hold_nulls(group) for group in groups if group.num_rows):
                found[field.name] = is_wide(field.type) and _beyond(groups, leaf)
        return found


class _Leaf(NamedTuple):
    number: int
    type: str  # of its values in the file

    def may_hold_nulls(self, group: pq.RowGroupMetaData) -> bool:
        """Say so of a row group; also if the file does not tell."""
        statistics = self.statistics(group)
        return statistics is None or not statistics.has_null_count or statistics.null_count > 0

    def statistics(self, group: pq.RowGroupMetaData) -> pq.Statistics | None:
        """Return what a row group says of its values; raises for one of another type, as Arrow ends the process."""
        chunk = group.column(self.number)
        if chunk.physical_type != self.type:
            raise pa.ArrowInvalid(f"a column of {self.type} has values of {chunk.physical_type}")
        return chunk.statistics if chunk.is_stats_set else None


def _beyond(groups: Sequence[pq.RowGroupMetaData], leaf: _Leaf) -> bool:
    for group in groups:
        statistics = leaf.statistics(group)
        if statistics is None or not statistics.has_min_max:
            continue
        if not -EXACT <= statistics.min <= statistics.max <= EXACT:
            return True
    return False


def no_footer(path: str, error: Exception) -> SourceError:
    """Explain why a file could not be opened as Parquet."""
    if isinstance(error, OSError) and error.errno:  # an error of the system, not of the file
        return UnreadableFile(f"Cannot open input file {path!r}: {error.strerror or error}.")
    try:
        with open_binary(path) as file:
            head = file.read(4)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4))
            tail = file.read(4)
    except OSError as refused:
        return UnreadableFile(f"Cannot open input file {path!r}: {refused.strerror}.")
    if size == 0:
        what = "it is empty (0 bytes)"
    elif tail == b"PARE":
        what = "its footer is encrypted, and encrypted Parquet is not supported"
    elif head == b"PAR1" and tail != b"PAR1":
        what = f"it begins as one, but at offset {size - 4:,} its end mark is missing: the file is cut short"
    elif head != b"PAR1":
        return UnreadableFile(f"Cannot read {path!r} as Parquet: {_what_else(path, head)}.")
    else:
        what = f"its footer, at the end of its {size:,} bytes, is damaged ({error})"
    return UnreadableFile(f"Cannot read {path!r} as Parquet: {what}. Restore the file or leave it out.")


def _what_else(path: str, head: bytes) -> str:
    """Return what a file is that is not Parquet, and which reader is for it."""
    from headrace.core.files.formats import reader_of  # for the message only

    reader = reader_of(path)
    if reader in ("", "read_parquet"):
        return f"it begins with {head!r}, not with b'PAR1'. Restore the file or leave it out"
    return f"by its name and its first bytes, {head!r}, it is something else; {reader} reads it"
