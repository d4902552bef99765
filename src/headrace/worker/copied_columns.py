"""An attempt some columns of which are copied: steps see columns without values in their place.

In a plan of several stages, the workers of the first leave out what those of the last will copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.arrow.batch import empty_columns
from headrace.core.target_ports import JoinedWriter
from headrace.core.work import Reject, Split
from headrace.plan.physical import Program
from headrace.worker.copy_choice import CopyChoice, choose_copied, typed_fields
from headrace.worker.copying import CannotCopy, GroupCopier
from headrace.worker.meter import Meter
from headrace.worker.reading import Read, read_split
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
        self._fields = typed_fields(program.source, chosen.copied)
        self._copier: GroupCopier | None = None
        decoded = {program.carried[name] for name in chosen.decoded}
        self.names = chosen.copied
        self.old_times = chosen.old_times
        self.columns = tuple(
            name for name in _columns(program) if name in program.looked_at or name in decoded
        )
        self.schema = pa.schema([])

    @classmethod
    def chosen(
        cls, program: Program, splits: Sequence[Split], settled: pa.Schema | None
    ) -> CopiedColumns | None:
        """Return what is copied of a shard; None if that is nothing."""
        assert program.sink is not None
        found = choose_copied(
            program.source, program.sink.format, program.carried, splits, settled, program.looked_at
        )
        if program.reads_blocks and found.decoded:
            name, why = next(iter(found.decoded.items()))
            raise CannotCopy(f"column {name!r} was not read by the stages before: {why}")
        return cls(program, found) if found.copied else None

    # ------------------------------------------------------------ before the steps

    def placed(self, reads: Iterator[Read]) -> Iterator[Read]:
        """Yield what was read, with all columns: those that nobody looks at have no values."""
        return _placed(reads, _columns(self._program))

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


def read_for_copying(program: Program, split: Split, meter: Meter, skip: Sequence[Reject]) -> Iterator[Read]:
    """Read a split for the next stage, without the columns that the last stage copies and no step looks at."""
    every = _columns(program)
    looked_at = [name for name in every if name in program.looked_at]
    return _placed(read_split(program, split, meter, skip, looked_at), every)


def _columns(program: Program) -> Sequence[str]:
    """Return the columns of the source that the plan has."""
    return program.source.schema().names if program.columns is None else program.columns


def _placed(reads: Iterator[Read], columns: Sequence[str]) -> Iterator[Read]:
    for read in reads:
        yield Read(read.rows.with_batch(_with_places(read.rows.batch, columns)), read.rejects)


def _with_places(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    nothing = pa.nulls(batch.num_rows)
    fields: list[pa.Field] = []
    columns: list[Any] = []
    for name in names:
        at = batch.schema.get_field_index(name)
        fields.append(batch.schema.field(at) if at >= 0 else pa.field(name, pa.null(), metadata={_MARK: b""}))
        columns.append(batch.column(at) if at >= 0 else nothing)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
