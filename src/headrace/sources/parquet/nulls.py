"""Which columns of a Parquet file may hold nulls, by its footer: for those whose dtype depends on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.arrow.forms import EXACT, form_of, is_wide


def may_be_null(
    metadata: pq.FileMetaData, schema: pa.Schema, columns: Collection[str] | None
) -> dict[str, bool]:
    """Return the columns of integers and booleans that hold nulls, or for which the file does not tell.

    True: such a column is known to hold integers that float64 may round.
    """
    wanted = {
        field.name: field
        for field in schema
        if field.nullable
        and (form_of(field.type) is not None or pa.types.is_null(field.type))
        and (columns is None or field.name in columns)
    }
    if not wanted:
        return {}
    leaves: dict[str, list[int]] = {}
    for leaf in range(metadata.num_columns):
        path = metadata.schema.column(leaf).path
        if path in wanted:
            leaves.setdefault(path, []).append(leaf)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    found = {}
    for name, field in wanted.items():
        places = leaves.get(name, [])
        chunks = (group.column(places[0]) for group in groups if group.num_rows)
        if len(places) != 1 or any(map(_may_hold_nulls, chunks)):
            found[name] = is_wide(field.type) and len(places) == 1 and _beyond(groups, places[0])
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
