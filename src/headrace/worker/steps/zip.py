"""Steps of one of the datasets of a ``zip``: the columns of the others go along beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from headrace.core.arrow.batch import empty_columns
from headrace.core.source_ports import names_side_by_side
from headrace.errors import StepError
from headrace.plan.steps.zip import Apart, OnSide, Zip
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningDatasetStep, RunningStep, StepContext, runs


@runs(Apart)
class Parting(RunningStep[Apart]):
    """Calls columns by whose they are."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Rename the columns of each batch."""
        return (part.with_batch(self.on_no_rows(part.batch)) for part in rows)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do the same."""
        return _renamed(batch, dict(self.step.names or ()))


@runs(Zip)
class Zipping(RunningStep[Zip]):
    """Puts the columns of all datasets beside each other, in order, and gives each a name of its own."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Rename the columns of each batch."""
        if self.step.names is None and context.unread:
            raise AssertionError("the names of columns depend on all, and some were not read")
        planned = frozenset(old for old, _ in self.step.names or ()) - context.unread
        for part in rows:
            if self.step.names is not None and planned != frozenset(part.batch.schema.names):
                raise AssertionError(f"{planned} were planned, and {part.batch.schema.names} came")
            yield part.with_batch(self.on_no_rows(part.batch))

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do the same."""
        if self.step.names is None:
            prefixes = [f"{number}:" for number in range(1, self.step.datasets + 1)]
            own = [[name for name in batch.schema.names if name.startswith(prefix)] for prefix in prefixes]
            bare = (
                [name[len(prefix) :] for name in names] for prefix, names in zip(prefixes, own, strict=True)
            )
            names = {
                old: new
                for olds, news in zip(own, names_side_by_side(bare), strict=True)
                for old, new in zip(olds, news, strict=True)
            }
        else:
            names = dict(self.step.names)
        return _renamed(batch, names)


def _renamed(batch: pa.RecordBatch, names: dict[str, str]) -> pa.RecordBatch:
    """Return the columns of a batch that ``names`` has, in its order."""
    schema = batch.schema
    there = [name for name in names if name in schema.names]
    if not there:
        return empty_columns(batch.num_rows)
    return pa.RecordBatch.from_arrays(
        [batch.column(name) for name in there],
        schema=pa.schema([schema.field(name).with_name(names[name]) for name in there]),
    )


def _beside(batch: pa.RecordBatch, others: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of two batches of equally many rows in one."""
    fields = [*batch.schema, *others.schema]
    if not fields:
        return empty_columns(batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, *others.columns], schema=pa.schema(fields))


@runs(OnSide)
class RunningOnSide(RunningDatasetStep[OnSide]):
    """Runs the step for the columns of its dataset; what is left of each row comes back to it afterwards."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Do what the step does, and see that each row stays beside those of the others."""
        own = msgspec.structs.replace(context, unread=self.step.own_unread(context.unread), paired=True)
        carries = False

        def parted(part: Rows) -> Rows:
            nonlocal carries
            mine, others = self._columns(part.batch)
            carries = carries or bool(others.num_columns)
            mine_alone = part.with_batch(mine)
            return mine_alone.with_side_columns(others) if others.num_columns else mine_alone

        for part in self.own.run(map(parted, rows), callers, own):
            others = part.side_columns
            if others is None and not carries:
                yield part.with_batch(self._called(part.batch))
            elif others is None or others.num_rows != len(part):
                raise StepError(
                    f"{self.step.label()} lost which row stands beside which. A step before a zip yields the rows "
                    "that it gets, by rows.with_batch(batch), with a row in the batch for each of them."
                )
            else:
                yield part.without_side_columns(_beside(self._called(part.batch), others))

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do what the step does with the columns of its dataset."""
        mine, others = self._columns(batch)
        return _beside(self._called(self.own.on_no_rows(mine)), others)

    def _columns(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the columns of the step's dataset by the names that it knows, and the others."""
        prefix = self.step.prefix
        mine = {name: name[len(prefix) :] for name in batch.schema.names if name.startswith(prefix)}
        others = {name: name for name in batch.schema.names if name not in mine}
        return _renamed(batch, mine), _renamed(batch, others)

    def _called(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _renamed(batch, {name: self.step.prefix + name for name in batch.schema.names})
