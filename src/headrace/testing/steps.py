"""What steps promise, with what runs them, and accumulators, as tests; and the words if a promise is broken."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from headrace.core.failures import shortened
from headrace.core.work import Split
from headrace.dataset.dataset import Dataset
from headrace.errors import BadReturn, UnknownColumn
from headrace.plan.steps.base import Step
from headrace.readers.from_memory import from_arrow
from headrace.worker.meter import Meter, StepCounts
from headrace.worker.rows import Rows, RowSpan
from headrace.worker.steps.base import StepChain, running

# ------------------------------------------------------------ words


_CHARS = 500


def check(holds: object, words: str) -> None:
    """Raise ``AssertionError`` with these words unless something holds.

    >>> check(3 > 2, "3 is more than 2")
    """
    if not holds:
        raise AssertionError(words)


def same(found: Any, expected: Any, what: str) -> None:
    """Raise ``AssertionError`` unless ``what`` is as expected; Arrow data is compared with its types.

    >>> same(1 + 1, 3, "the sum")
    Traceback (most recent call last):
    AssertionError: the sum: expected 3, and it is 2
    """
    equals = getattr(expected, "equals", None)
    if not (equals(found) if equals is not None else found == expected):
        raise AssertionError(f"{what}: expected {_shown(expected)}, and it is {_shown(found)}")


def _shown(value: Any) -> str:
    return shortened(str(value) if hasattr(value, "equals") else repr(value), _CHARS)


CUTS = (1, 2, 7, 1000)


class StepContract:
    """The contract of a verb: of its step and of what runs it. Override ``make`` and ``rows``."""

    def make(self) -> Step:
        """Return the step."""
        raise NotImplementedError

    def rows(self) -> pa.Table:
        """Return ten rows or more on which it has something to do, with a column that it does not need."""
        raise NotImplementedError

    def expected(self) -> Sequence[dict[str, Any]] | None:
        """Return the rows that come out. Default: None, they are not compared."""
        return None

    def _run(self, step: Step, cut: int = 1000, rows: pa.Table | None = None) -> tuple[pa.Table, StepCounts]:
        """Send rows through the step in batches of ``cut``; return what comes out, and what was counted."""
        table = (self.rows() if rows is None else rows).combine_chunks()
        meter = Meter(1)
        chain = StepChain([step], lambda rows: "here")
        try:
            budgets = [] if step.row_limit is None else [step.row_limit]
            made = [part.batch for part in chain.run(_cut(table, cut), meter, budgets) if len(part)]
        finally:
            chain.close()
        check(made, "no row comes out: make() and rows() must give some")
        return pa.Table.from_batches(made), meter.steps[0]

    def _planned(self, *steps: Step) -> Dataset:
        data = from_arrow(self.rows()).with_options(engine="inline", progress=False)
        for step in steps:
            data = data.with_step(step)
        return data

    def test_there_is_something_to_test(self) -> None:
        rows = self.rows()
        check(rows.num_rows >= 10, f"rows() must return ten or more, not {rows.num_rows}")
        spare = set(rows.column_names) - set(self.make().reads())
        check(spare, "rows() must have a column that the step does not read")
        expected = self.expected()
        if expected is not None:
            _same(self._run(self.make())[0].to_pylist(), list(expected))

    def test_a_step_that_has_travelled_does_the_same(self) -> None:
        step = self.make()
        travelled: Step = cloudpickle.loads(cloudpickle.dumps(step))
        same(
            (travelled.label(), travelled.shape()),
            (step.label(), step.shape()),
            "label and shape after pickle",
        )
        _same(self._run(travelled)[0].to_pylist(), self._run(step)[0].to_pylist())

    @pytest.mark.parametrize("cut", CUTS)
    def test_any_cut_of_the_rows_gives_the_same(self, cut: int) -> None:
        whole, _ = self._run(self.make())
        found, _ = self._run(self.make(), cut)
        same(found.schema, whole.schema, f"the types, from batches of {cut} rows instead of one")
        _same(found.to_pylist(), whole.to_pylist())

    @pytest.mark.parametrize("cut", CUTS)
    def test_every_row_is_counted(self, cut: int) -> None:
        made, counts = self._run(self.make(), cut)
        same(counts.given, made.num_rows, "the rows that are counted as given")
        came, went = counts.taken + counts.added, counts.given + counts.rejected + counts.dropped
        check(
            came == went,
            f"{came} rows came or were added, and {went} went, were rejected or dropped: rows that are dropped or "
            "added are counted by context.count_dropped and count_added",
        )

    def test_it_tells_how_many_rows_come_out(self) -> None:
        step, rows = self.make(), self.rows().num_rows
        made = self._run(step)[0].num_rows
        told = step.rows_after(rows)
        check(
            told in (None, made), f"rows_after({rows}) says {told}, and {made} rows come out; None: not known"
        )
        check(not step.one_to_one or made == rows, f"one_to_one = True, and {rows} rows become {made}")
        check(step.makes_rows or made <= rows, f"makes_rows is False, and {rows} rows become {made}")
        same(self._planned(step).count(), made, "count() of a dataset with the step")

    def test_it_tells_which_columns_come_out(self) -> None:
        step, rows = self.make(), self.rows()
        made, _ = self._run(step)
        told = step.columns_after(list(rows.column_names))
        check(
            told in (None, made.column_names),
            f"columns_after() says {told}, and {made.column_names} come out",
        )
        carried = step.carried({name: name for name in rows.column_names})
        same(set(carried) - set(made.column_names), set(), "columns of carried() that do not come out")
        for name, before in carried.items():
            same(
                made.schema.field(name).type, rows.schema.field(before).type, f"the type of {name!r}, carried"
            )
            if step.passes_values and step.one_to_one:
                _same(made[name].to_pylist(), rows[before].to_pylist())

    def test_a_batch_without_rows_tells_the_columns(self) -> None:
        made, _ = self._run(self.make())
        (batch,) = self.rows().combine_chunks().to_batches()
        try:
            empty = running(self.make()).on_no_rows(batch.slice(0, 0))
        except BadReturn:
            pytest.skip("only rows would tell")
        same(empty.num_rows, 0, "the rows of on_no_rows()")
        same(empty.schema.remove_metadata(), made.schema.remove_metadata(), "the columns of on_no_rows()")

    def test_what_it_needs_is_read(self) -> None:
        step = self.make()
        made, _ = self._run(step)
        for name in made.column_names:
            alone = self._planned(step).select_columns([name])
            _same(alone.take_all(), made.select([name]).to_pylist())

    def test_a_column_that_is_not_there_is_refused_before_the_run(self) -> None:
        step = self.make()
        if not step.reads():
            pytest.skip("it asks for no column by name")
        with pytest.raises(UnknownColumn, match=step.verb):
            step.check_columns([name for name in self.rows().column_names if name not in step.reads()])

    def test_what_it_is_given_stays_as_it_is(self) -> None:
        rows = self.rows()
        before = rows.to_pylist()
        self._run(self.make(), rows=rows)
        _same(rows.to_pylist(), before)

    def test_it_has_a_name_and_a_shape(self) -> None:
        step, again = self.make(), self.make()
        check(
            step.label().startswith(step.verb), f"label() begins with {step.verb!r}, unlike {step.label()!r}"
        )
        shape = step.shape()
        same(json.loads(json.dumps(shape)), shape, "shape() by way of JSON")
        same(again.shape(), shape, "shape() of another step like it")
        same(shape["verb"], step.verb, "the verb in shape()")


def _cut(table: pa.Table, size: int) -> Iterator[Rows]:
    for start in range(0, table.num_rows, size):
        (batch,) = table.slice(start, size).combine_chunks().to_batches()
        yield Rows(batch, (RowSpan(Split(0, 0, table.num_rows), start, batch.num_rows),))


def _same(found: Any, expected: Any) -> None:
    """Compare by the texts of values, so that NaN is like NaN."""
    same(repr(found), repr(expected), "the rows")


# ------------------------------------------------------------ accumulators


class AccumulatorContract:
    """The contract of the ``Accumulator`` port. Override ``make`` and ``batches``."""

    def make(self) -> Any:
        """Return a new accumulator."""
        raise NotImplementedError

    def batches(self) -> Sequence[pa.RecordBatch]:
        """Return some batches with its columns, three of them or more."""
        raise NotImplementedError

    def same(self, one: Any, other: Any) -> None:
        """Assert that two results are the same; override it where ``==`` does not tell."""
        same(other, one, "the result")

    def _of(self, batches: Sequence[pa.RecordBatch]) -> Any:
        made = self.make().empty()
        for batch in batches:
            made.update(batch.select(list(made.columns)))
        return made

    def _merged(self, *parts: Any) -> Any:
        total = self.make().empty()
        for part in parts:
            total.merge(total.from_bytes(part.to_bytes()))
        return total

    def test_an_empty_one_knows_nothing(self) -> None:
        made = self._of(self.batches())
        before = copy.deepcopy(made.result())
        self.same(made.empty().result(), self.make().result())
        self.same(made.result(), before)
        self.same(self._merged(made, made.empty()).result(), before)
        self.same(self._merged(made.empty(), made).result(), before)

    def test_parts_give_what_the_whole_gives_in_any_order(self) -> None:
        batches = list(self.batches())
        check(len(batches) >= 3, f"batches() must return three or more, not {len(batches)}")
        a, b, c = self._of(batches[:1]), self._of(batches[1:2]), self._of(batches[2:])
        whole = self._of(batches).result()
        for merged in (
            self._merged(a, b, c),
            self._merged(self._merged(a, b), c),
            self._merged(a, self._merged(b, c)),
            self._merged(c, a, b),
        ):
            self.same(merged.result(), whole)

    def test_it_travels_as_bytes_and_by_pickle(self) -> None:
        made = self._of(self.batches())
        data = made.to_bytes()
        check(isinstance(data, bytes), f"to_bytes() returns bytes, not {type(data).__name__}")
        self.same(self.make().from_bytes(data).result(), made.result())
        self.same(pickle.loads(pickle.dumps(self.make())).from_bytes(data).result(), made.result())

    def test_a_batch_may_change_when_it_was_seen(self) -> None:
        made, copied = self.make().empty(), self.make().empty()
        for batch in self.batches():
            batch = batch.select(list(made.columns))
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, batch.schema) as writer:
                writer.write_batch(batch)
            memory = bytearray(stream.getvalue())
            made.update(pa.ipc.open_stream(pa.py_buffer(memory)).read_next_batch())
            copied.update(batch)
            memory[:] = bytes(len(memory))
        self.same(made.result(), copied.result())

    def test_batches_without_rows_change_nothing(self) -> None:
        made = self._of(self.batches())
        before = made.to_bytes()
        made.update(self.batches()[0].slice(0, 0).select(list(made.columns)))
        same(made.to_bytes(), before, "its bytes after a batch without rows")
