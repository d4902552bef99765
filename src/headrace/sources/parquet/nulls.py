"""Which columns of a Parquet file may hold nulls, by its footer: for those whose dtype depends on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.arrow.forms import EXACT, form_of, is_wide


@dataclass(frozen=True, slots=True)
class Nullable:
    """Columns of integers and booleans that may hold nulls, and where a file of this schema has their leaves."""

    places: tuple[tuple[pa.Field, int | None], ...]  # None: more leaves than one, or none

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
        return cls(tuple((field, found[0] if len(found) == 1 else None) for field, found in places))

    def holding(self, groups: Sequence[pq.RowGroupMetaData]) -> dict[str, bool]:
        """Return those that hold nulls in these row groups, or for which the file does not tell.

        True: such a column is known to hold integers that float64 may round.
        """
        found = {}
        for field, leaf in self.places:
            if leaf is None:
                found[field.name] = False
            elif any(_may_hold_nulls(group.column(leaf)) for group in groups if group.num_rows):
                found[field.name] = is_wide(field.type) and _beyond(groups, leaf)
        return found


def _may_hold_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics if chunk.is_stats_set else None
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0


def _beyond(groups: Sequence[pq.RowGroupMetaData], leaf: int) -> bool:
    for group in groups:
        chunk = group.column(leaf)
        statistics = chunk.statistics if chunk.is_stats_set else None
        if statistics is None or not statistics.has_min_max:
            continue
        if not -EXACT <= statistics.min <= statistics.max <= EXACT:
            return True
    return False
