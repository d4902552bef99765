"""The base of all verbs: a plan, its options, and the report of the last run."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from headrace.errors import ArgumentError
from headrace.plan.logical import Plan
from headrace.plan.parameters import given_rows
from headrace.plan.steps.base import Step

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.options import RunOptions
    from headrace.result import Metrics

_FEW = 1_000
"""Rows that are made first of a source whose rows have to be made, where only their types count."""

# A verb that runs the plan imports what runs it: a write starts its first worker before the rest is imported.


class DatasetBase:
    """A plan and its options, which never change, its columns once they are known, and the report of its last run."""

    __slots__ = ("_known_schema", "_last_report", "_options", "_plan")

    def __init__(self, plan: Plan, options: RunOptions) -> None:
        self._plan = plan
        self._options = options
        self._known_schema: pa.Schema | None = None
        self._last_report = ""

    def with_step(self, step: Step) -> Self:
        """Return this dataset with one more step: what each verb does, and how to write one of your own.

        ``step`` is one of ``headrace.plan.steps``, or a class of yours that subclasses ``Step``. Raises ``PlanError``
        if it cannot stand behind those that are there.

        >>> import headrace as hr
        >>> from headrace.plan.steps.selection import Limit
        >>> hr.range(9).with_step(Limit(1)).take_all()
        [{'id': 0}]
        """
        return type(self)(self._plan.then(step), self._options)

    def _batches(
        self,
        plan: Plan | None = None,
        *,
        marks: bool = False,
        shows_progress: bool = False,
        look: bool = False,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Run the plan, or one that was made of it, for its rows; the rest as in ``execution.read``."""
        from headrace.session import read as execution

        yield from execution.read(
            plan or self._plan,
            self._options,
            self._note,
            marks=marks,
            shows_progress=shows_progress,
            look=look,
        )

    @property
    def _shares_memory(self) -> bool:
        """True if batches may be views of data that is read again: the user's own, or a kept result."""
        return self._plan.source.shares_memory

    def _check_unrequired(self, verb: str) -> None:
        """Refuse a verb that makes another plan of this one, which would not have its requirements."""
        if self._plan.requirements:
            raise ArgumentError(
                f"{verb}: the dataset has require(), which is about all rows that are written. Put it after {verb}."
            )

    def _known_rows(self) -> int | None:
        """Return how many rows come out, if that is known without reading any."""
        from headrace.session import read as execution

        return execution.known_count(self._plan, self._options)

    def _head(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the first rows of the output, made in this process."""
        from headrace.session.made import head

        return head(self._plan, rows, self._options, told=True)

    def _evaluated(self, plan: Plan) -> Metrics:
        """Run a plan, this one with more metrics, for those alone."""
        from headrace.session import read as execution

        return execution.evaluate(plan, self._options, self._note)

    def _note(self, report: str) -> None:
        self._last_report = report

    def _all_batches(self, verb: str, limit: int | None, *, look: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield all of the output, but stop at once when it has more than ``limit`` rows."""
        left = given_rows(verb, "limit", limit) if limit is not None else None
        with contextlib.closing(self._batches(shows_progress=True, look=look)) as batches:
            for batch in batches:
                if left is not None:
                    left -= batch.num_rows
                    if left < 0:
                        raise ArgumentError(
                            f"{verb}(limit={limit}): the dataset has more rows. take({limit}) gives the first ones."
                        )
                yield batch

    def _schema(self) -> pa.Schema:
        """Return the columns of the output. They are found once: a model may have to predict some rows for it."""
        if self._known_schema is None:
            self._known_schema = self._found_schema()
        return self._known_schema

    def _found_schema(self) -> pa.Schema:
        from headrace.core.arrow.forms import unmarked
        from headrace.plan.compile import columns_at
        from headrace.session import read as execution
        from headrace.session.combined import branch_plans
        from headrace.session.made import head

        branches = branch_plans(self._plan)
        if branches:
            from headrace.sources.union import unified

            return unified([type(self)(plan, self._options)._schema() for plan in branches])
        if None not in columns_at(self._plan.steps, self._plan.source.known_schema()):
            return execution.static_schema(self._plan)
        few = self._plan.source.few(_FEW)
        plans = [self._plan] if few is self._plan.source else [replace(self._plan, source=few), self._plan]
        for plan in plans:
            for batch in head(plan, 16, self._options):
                return unmarked(batch.schema)
        return execution.static_schema(self._plan)

    def _table(self, verb: str, limit: int | None = None) -> pa.Table:
        from headrace.core.arrow.forms import without_marks

        return without_marks(self._marked_table(verb, limit))

    def _marked_table(self, verb: str, limit: int | None = None) -> pa.Table:
        """Return all of the output; lists that were made of arrays are marked."""
        import pyarrow as pa

        batches = list(self._all_batches(verb, limit))
        if not batches:
            return self._schema().empty_table()
        from headrace.core.arrow.widening import widened

        return pa.Table.from_batches(widened(batches))
