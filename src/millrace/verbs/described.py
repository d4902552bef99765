"""What every verb starts from: a plan, options, and a note of what the last run was like."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, cast

from millrace import execution
from millrace.errors import ArgumentError
from millrace.parameters import given_rows
from millrace.plan.logical import Plan, Select, Step

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.dataset import Dataset
    from millrace.options import RunOptions


class Described:
    """A plan and how it is to be carried out. Neither ever changes; ``_ran`` alone is replaced by each run."""

    __slots__ = ("_options", "_plan", "_ran")

    def __init__(self, plan: Plan, options: RunOptions) -> None:
        self._plan = plan
        self._options = options
        self._ran = ""

    def _same(self) -> Dataset:
        return cast("Dataset", self)

    def _then(self, step: Step) -> Dataset:
        return cast("Dataset", type(self)(self._plan.then(step), self._options))

    def _batches(
        self, columns: tuple[str, ...] | None = None, *, marks: bool = False
    ) -> Generator[pa.RecordBatch, None, None]:
        """Run the plan for its rows, or for some columns of them; ``marks`` as in ``execution.read``."""
        plan = self._plan if columns is None else self._plan.then(Select(columns))
        yield from execution.read(plan, self._options, self._note, marks=marks)

    @property
    def _is_live(self) -> bool:
        """True if batches may be views of data that is read again: the user's own, or a kept result."""
        return bool(getattr(self._plan.source, "is_live", False))

    def _note(self, report: str) -> None:
        self._ran = report

    def _collected(self, verb: str, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Yield all of the output, but stop at once when it has more than ``limit`` rows."""
        left = given_rows("limit", limit) if limit is not None else None
        with contextlib.closing(self._batches()) as batches:
            for batch in batches:
                if left is not None:
                    left -= batch.num_rows
                    if left < 0:
                        raise ArgumentError(
                            f"{verb}(limit={limit}): the dataset has more rows. take({limit}) gives the first ones."
                        )
                yield batch

    def _schema(self) -> pa.Schema:
        from millrace.plan.compile import columns_at
        from millrace.plan.logical import may_rename

        schema = self._plan.source.schema()
        columns_at(self._plan.steps, schema)
        if not any(map(may_rename, self._plan.steps)):
            return execution.static_schema(self._plan)
        for batch in execution.head(self._plan, 16, self._options):
            return batch.schema
        return execution.static_schema(self._plan)

    def _table(self, verb: str, limit: int | None = None) -> pa.Table:
        import pyarrow as pa

        batches = list(self._collected(verb, limit))
        return pa.Table.from_batches(batches) if batches else self._schema().empty_table()
