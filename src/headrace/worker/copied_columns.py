"""An attempt some columns of which are copied: steps see columns without values in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.arrow.batch import empty_columns
from headrace.core.ports import JoinedWriter
from headrace.core.work import Split
from headrace.plan.physical import Program
from headrace.worker.copy_choice import CopyChoice, choose_copied, typed_fields
from headrace.worker.copying import CannotCopy, GroupCopier
from headrace.worker.reading import Read
from headrace.worker.rows import Rows

_MARK = b"headrace.not_read"


class CopiedColumns:
    """The columns that one attempt copies.

    ``names`` are those of the output and of the source, ``old_times`` which of them are INT96, ``columns`` what is
    read of the source, ``schema`` that of the columns which are not copied, once the output's is settled.
    """

    def __init__(self, program: Program, chosen: CopyChoice) -> None:
        self._program = program
        self._chosen = chosen
        self._all = program.source.schema().names if program.columns is None else program.columns
        self._fields = typed_fields(program.source, chosen.copied)
        self._copier: GroupCopier | None = None
        decoded = {program.carried[name] for name in chosen.decoded}
        self.names = chosen.copied
        self.old_times = chosen.old_times
        self.columns = tuple(name for name in self._all if name in program.looked_at or name in decoded)
        self.schema = pa.schema([])

    @classmethod
    def chosen(
        cls, program: Program, splits: Sequence[Split], settled: pa.Schema | None
    ) -> CopiedColumns | None:
        """Return what is copied of a shard; None if that is nothing."""
        assert program.sink is not None
        found = choose_copied(
            program.source, program.sink, program.carried, splits, settled, program.looked_at
        )
        return cls(program, found) if found.copied else None

    # ------------------------------------------------------------ before the steps

    def placed(self, reads: Iterator[Read]) -> Iterator[Read]:
        """Yield what was read, with all columns: those that nobody looks at have no values."""
        for read in reads:
            yield Read(read.rows.with_batch(self._with_places(read.rows.batch)), read.rejects)

    def _with_places(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        nothing = pa.nulls(batch.num_rows)
        fields: list[pa.Field] = []
        columns: list[Any] = []
        for name in self._all:
            at = batch.schema.get_field_index(name)
            fields.append(
                batch.schema.field(at) if at >= 0 else pa.field(name, pa.null(), metadata={_MARK: b""})
            )
            columns.append(batch.column(at) if at >= 0 else nothing)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    # ------------------------------------------------------------ behind them

    def typed(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of a batch with the types of the columns that are copied."""
        return pa.schema([self._fields.get(field.name, field) for field in schema])

    def settle(
        self,
        schema: pa.Schema,
        conform: Callable[[Rows, pa.Schema], pa.RecordBatch],
        writer: Callable[[], JoinedWriter],
    ) -> None:
        """Take the output's schema, what brings rows to it, and what opens the part; the second time is nothing."""
        if self._copier is not None:
            return
        for name, field in self._fields.items():
            at = schema.get_field_index(name)
            if at < 0 or not schema.field(at).equals(field):
                raise CannotCopy(f"the output has column {name!r} with another type")
        self.schema = pa.schema([field for field in schema if field.name not in self.names])
        source = self._program.source
        self._copier = GroupCopier(self._chosen, source, lambda rows: conform(rows, schema), writer)

    def made(self, rows: Rows) -> Rows:
        """Return rows without the columns that are copied."""
        batch = rows.batch
        kept = [i for i, name in enumerate(batch.schema.names) if name not in self.names]
        for i in kept:
            if _MARK in (batch.schema.field(i).metadata or {}):
                raise AssertionError(f"column {batch.schema.names[i]!r} was not read, and is not copied")
        return rows.without_side_columns(batch.select(kept) if kept else empty_columns(batch.num_rows))

    def write(self, rows: Rows) -> None:
        """Take rows as ``made`` returns them."""
        assert self._copier is not None
        self._copier.write(rows)

    def close(self) -> None:
        """Write what is held; raises ``InputChanged`` for a file that is not what it was."""
        if self._copier is not None:
            self._copier.close()
