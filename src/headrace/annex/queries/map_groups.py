"""``map_groups``: each group is one row on its way, with a list for each column, so that nothing ever divides it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.core.arrow.batch import one_array
from headrace.core.arrow.same import same
from headrace.errors import BadInput
from headrace.plan.steps.base import StepFunction
from headrace.plan.steps.functions import MapBatches
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import StepContext, runs
from headrace.worker.steps.map_batches import MappingBatches, map_batches

_ROW_GROUP_BYTES = 16 << 20  # which a worker reads at a time
_FEW = 16  # groups in one, at least


def packed_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of groups: a list for each column of the rows."""
    return pa.schema([pa.field(each.name, pa.list_(each.type)) for each in schema])


def pack(path: Path, keys: Sequence[str]) -> int:
    """Replace a Parquet file of rows, sorted by ``keys``, by one of groups; return how many rows these have.

    A group is in memory as a whole, and besides it what a worker reads at a time.
    """
    import pyarrow.parquet as pq

    groups, waiting, rows, written = path.with_suffix(".groups"), list[pa.Table](), 0, 0
    with pq.ParquetFile(path) as file:
        schema = packed_schema(file.schema_arrow)
        with pq.ParquetWriter(groups, schema, compression="snappy") as writer:
            for table in itertools.chain(_whole_groups(file, keys), [None]):
                if table is not None:
                    waiting.append(table)
                    rows += sum(int(pc.sum(pc.list_value_length(each)).as_py()) for each in table.columns[:1])
                few = max(_FEW, written // _FEW)  # so that all workers have some, and the footer stays small
                there = sum(each.num_rows for each in waiting)
                size = sum(each.nbytes for each in waiting)
                if waiting and (table is None or there >= few or size >= _ROW_GROUP_BYTES):
                    writer.write_table(pa.concat_tables(waiting).cast(schema), row_group_size=few)
                    written += there
                    waiting.clear()
    os.replace(groups, path)
    return rows


def _whole_groups(file: Any, keys: Sequence[str]) -> Iterator[pa.Table]:
    """Yield tables of groups; what may go on in the next rows waits for them."""
    open_rows: list[pa.RecordBatch] = []
    for batch in file.iter_batches(batch_size=65_536):
        last = [open_rows[-1].slice(open_rows[-1].num_rows - 1)] if open_rows else []
        begins = _begins(pa.Table.from_batches([*last, batch]).select(list(keys)).combine_chunks())
        starts = np.flatnonzero(begins[len(last) :] if last else begins)
        if not len(starts):
            open_rows.append(batch)
            continue
        before = [*open_rows, batch.slice(0, int(starts[0]))]
        if open_rows:
            yield _packed(pa.Table.from_batches(before).combine_chunks(), np.array([0]))
        if len(starts) > 1:
            yield _packed(
                pa.Table.from_batches([batch.slice(int(starts[0]), int(starts[-1] - starts[0]))]),
                starts[:-1] - starts[0],
            )
        open_rows = [batch.slice(int(starts[-1]))]
    if open_rows:
        yield _packed(pa.Table.from_batches(open_rows).combine_chunks(), np.array([0]))


def _begins(keys: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Say for each row whether its keys are others than those of the row before; the first one begins."""
    begins = np.zeros(keys.num_rows, np.bool_)
    begins[:1] = True
    for column in keys.columns:
        values = one_array(column)
        begins[1:] |= ~same(values.slice(1), values.slice(0, max(len(values) - 1, 0)))
    return begins


def _packed(rows: pa.Table, starts: Any) -> pa.Table:
    offsets = pa.array(np.append(starts, rows.num_rows).astype(np.int32))
    try:
        lists = [pa.ListArray.from_arrays(offsets, _one(column)) for column in rows.columns]
    except pa.ArrowInvalid as error:  # more than 2 GiB of text
        raise BadInput(
            f"map_groups: a group of {rows.num_rows:,} rows is too big to be held as a whole: {error}. Add a key "
            "that divides it, or leave columns out before."
        ) from error
    return pa.table(lists, names=rows.column_names)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def unpacked(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a group, or of none, with their own types."""
    columns = [_restored(batch.column(each.name).flatten(), each.type) for each in schema]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _restored(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind or pt.is_dictionary(kind):
        return values
    if isinstance(kind, pa.BaseExtensionType):
        storage = values.storage if isinstance(values.type, pa.BaseExtensionType) else values
        return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))
    return values.cast(kind)


@dataclass(frozen=True, slots=True)
class MapGroups(MapBatches):
    """Rows that are groups in, what the function returns for each out; ``schema`` is that of the rows in a group."""

    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    verb = "map_groups"

    def functions(self) -> tuple[StepFunction, ...]:
        """Return the function; how many rows a group has is not ours to say."""
        return (StepFunction(self.function, self.label(), self.label(), batch_size=self.batch_size),)


@runs(MapGroups)
class MappingGroups(MappingBatches):
    """Calls a function with the rows of each group."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Call the function with one group after the other."""
        user_code = context.user_code(self.step.label(), "a group")
        return map_batches(rows, self.step, callers[0], user_code, context.eager, opened=self._unpacked)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Call a plain function with no rows."""
        return super().on_no_rows(self._unpacked(batch))

    def _unpacked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return unpacked(batch, self.step.schema)  # type: ignore[attr-defined]
