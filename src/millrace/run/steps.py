"""Steps at work: each is a generator of rows over the rows of the step before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.batch import (
    ConversionError,
    column_from,
    empty_array,
    from_result,
    from_rows,
    rows_of,
    to_format,
)
from millrace.errors import BadReturn, StepError, UnknownColumn, nearest
from millrace.plan.logical import (
    Drop,
    Filter,
    FlatMap,
    Limit,
    MapBatches,
    MapRows,
    Rename,
    Select,
    Step,
    function_of,
    step_label,
)
from millrace.run.batching import ROW_STEP_ROWS, auto_size
from millrace.run.rows import Rows, rebatch

Where = Callable[[Rows], str]


class Meter:
    """Counts rows and seconds of one attempt; ``steps`` has (rows in, rows out) for each step."""

    def __init__(self, steps: int) -> None:
        self.steps = [[0, 0] for _ in range(steps)]
        self.read_rows = 0
        self.seconds = {"read": 0.0, "steps": 0.0, "write": 0.0, "wait": 0.0}

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Add the time that the block takes to ``what``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start


class Chain:
    """The steps of a plan, with the user's classes constructed, ready for any number of attempts."""

    def __init__(self, steps: Sequence[Step], where: Where) -> None:
        self._steps = tuple(steps)
        self._where = where
        self._calls: list[Callable[[Any], Any] | None] | None = None

    def load(self) -> None:
        """Construct the user's classes, once."""
        if self._calls is None:
            self._calls = [self._build(step) for step in self._steps]

    @staticmethod
    def _build(step: Step) -> Callable[[Any], Any] | None:
        function = function_of(step)
        if function is None:
            return None
        try:
            return function.build()
        except Exception as error:
            raise StepError(
                f"{function.name} could not be constructed for {step_label(step)}: "
                f"{type(error).__name__}: {error}. No row was read by it."
            ) from error

    def run(self, rows: Iterator[Rows], meter: Meter, budgets: Sequence[int]) -> Iterator[Rows]:
        """Send ``rows`` through all steps. ``budgets`` says how many rows each ``limit`` lets pass."""
        self.load()
        assert self._calls is not None
        left = list(budgets)
        for i, (step, call) in enumerate(zip(self._steps, self._calls, strict=True)):
            rows = _entering(rows, meter, i)
            if isinstance(step, Limit):
                rows = _limit(rows, left.pop(0))
            else:
                rows = self._apply(step, call, rows, meter)
            rows = _leaving(rows, meter, i)
        return rows

    def _apply(
        self, step: Step, call: Callable[[Any], Any] | None, rows: Iterator[Rows], meter: Meter
    ) -> Iterator[Rows]:
        if isinstance(step, (Select, Drop, Rename)):
            return (part.with_batch(recolumn(part.batch, step)) for part in rows)
        if isinstance(step, Filter) and step.function is None:
            return _filter_expression(rows, step, meter)
        assert call is not None
        guard = _Guard(step, self._where, meter)
        if isinstance(step, MapBatches):
            return _map_batches(rows, step, call, guard)
        rows = _small(rows)
        if isinstance(step, MapRows):
            return _map_rows(rows, call, guard)
        if isinstance(step, FlatMap):
            return _flat_map(rows, call, guard)
        return _filter(rows, call, guard)


def _entering(rows: Iterator[Rows], meter: Meter, step: int) -> Iterator[Rows]:
    count = meter.steps[step]
    for part in rows:
        count[0] += len(part)
        yield part


def _leaving(rows: Iterator[Rows], meter: Meter, step: int) -> Iterator[Rows]:
    count = meter.steps[step]
    for part in rows:
        count[1] += len(part)
        yield part


class _Guard:
    """Runs the user's code on some rows, takes the time, and says where it failed."""

    def __init__(self, step: Step, where: Where, meter: Meter) -> None:
        self._step = step
        self._where = where
        self._meter = meter

    @contextmanager
    def over(self, rows: Rows) -> Iterator[None]:
        """Turn what the user's code raises into a ``StepError`` that names file, rows and step."""
        start = time.perf_counter()
        try:
            yield
        except ConversionError as error:
            raise BadReturn(
                f"{step_label(self._step)} gave something that is not a batch: {error}. It was working on "
                f"{self._where(rows)}."
            ) from error.__cause__
        except StepError:
            raise
        except Exception as error:
            raise StepError(
                f"{step_label(self._step)} raised {type(error).__name__}: {error}{_hint(error)} It was working "
                f"on {self._where(rows)}."
            ) from error
        finally:
            self._meter.seconds["steps"] += time.perf_counter() - start


def _hint(error: Exception) -> str:
    if isinstance(error, ValueError) and "read-only" in str(error):
        return (
            ". Batches are read-only views of the input: copy an array before writing to it (`x = x.copy()`)."
        )
    if isinstance(error, KeyError):
        return ", a key that the batch does not have (does `columns=` name it?)."
    return "" if str(error).endswith(".") else "."


def _map_batches(
    rows: Iterator[Rows], step: MapBatches, call: Callable[[Any], Any], guard: _Guard
) -> Iterator[Rows]:
    for part in _sized(_projected(rows, step), step.batch_size):
        if not len(part):
            continue
        with guard.over(part):
            results = [
                from_result(result) for result in _results(call(to_format(part.batch, step.batch_format)))
            ]
        for batch in results:
            same = len(results) == 1 and batch.num_rows == len(part)
            yield part.with_batch(batch) if same else part.blurred(batch)


def _projected(rows: Iterator[Rows], step: MapBatches) -> Iterator[Rows]:
    if step.columns is None:
        return rows
    chosen = Select(step.columns)
    return (part.with_batch(recolumn(part.batch, chosen, step_label(step))) for part in rows)


def _sized(rows: Iterator[Rows], size: int | None) -> Iterator[Rows]:
    if size is not None:
        return rebatch(rows, size)
    return _auto_sized(rows)


def _auto_sized(rows: Iterator[Rows]) -> Iterator[Rows]:
    head: list[Rows] = []
    for part in rows:
        head.append(part)
        if len(part):
            break
    if not head:
        return
    yield from rebatch(_chained(head, rows), auto_size(head[-1].batch))


def _chained(head: list[Rows], rows: Iterator[Rows]) -> Iterator[Rows]:
    yield from head
    yield from rows


def _results(value: Any) -> list[Any]:
    """A function may return one batch or yield several; what it yields counts only if it ends well."""
    if isinstance(value, Iterator):
        return list(value)
    return [value]


def _small(rows: Iterator[Rows]) -> Iterator[Rows]:
    """Cut big batches for steps that turn rows into Python objects, which need many times the memory."""
    for part in rows:
        for at in range(0, len(part), ROW_STEP_ROWS):
            yield part.cut(at, min(at + ROW_STEP_ROWS, len(part)))


def _map_rows(rows: Iterator[Rows], call: Callable[[Any], Any], guard: _Guard) -> Iterator[Rows]:
    for part in rows:
        with guard.over(part):
            batch = from_rows([_row(call(row)) for row in rows_of(part.batch)])
        yield part.with_batch(batch)


def _flat_map(rows: Iterator[Rows], call: Callable[[Any], Any], guard: _Guard) -> Iterator[Rows]:
    for part in rows:
        made: list[Mapping[str, Any]] = []
        counts = []
        with guard.over(part):
            for row in rows_of(part.batch):
                before = len(made)
                made.extend(_row(item) for item in _items(call(row)))
                counts.append(len(made) - before)
            batch = from_rows(made) if made else None
        if batch is not None:
            yield part.spread(batch, counts)


def _row(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConversionError(f"a row is a dict, but it returned {type(value).__name__}")
    return value


def _items(value: Any) -> Any:
    if value is None or isinstance(value, (str, bytes, Mapping)):
        raise ConversionError(f"flat_map returns a list of rows, but it returned {type(value).__name__}")
    return value


def _filter(rows: Iterator[Rows], call: Callable[[Any], Any], guard: _Guard) -> Iterator[Rows]:
    for part in rows:
        with guard.over(part):
            mask = np.fromiter((bool(call(row)) for row in rows_of(part.batch)), np.bool_, len(part))
        yield part.keep(part.batch.filter(column_from(mask)), mask)


def _filter_expression(rows: Iterator[Rows], step: Filter, meter: Meter) -> Iterator[Rows]:
    number = "__millrace_row__"
    for part in rows:
        with meter.timing("steps"):
            index = column_from(np.arange(len(part), dtype=np.int64))
            table = pa.Table.from_batches([part.batch]).append_column(number, index)
            try:
                kept = table.filter(step.expression)
            except (pa.ArrowException, KeyError, ValueError) as error:
                raise StepError(
                    f"{step_label(step)} cannot be evaluated on these columns: {error}"
                ) from error
            mask = np.zeros(len(part), np.bool_)
            for chunk in kept[number].chunks:
                mask[np.from_dlpack(chunk)] = True
            batch = from_result(kept.drop_columns([number]))
        yield part.keep(batch, mask)


def recolumn(batch: pa.RecordBatch, step: Select | Drop | Rename, label: str = "") -> pa.RecordBatch:
    """Choose, leave out or rename columns; nothing is copied."""
    names = batch.schema.names
    asked = [old for old, _ in step.names] if isinstance(step, Rename) else step.columns
    for name in asked:
        if name not in names:
            raise UnknownColumn(
                f"{label or step_label(step)} asks for column {name!r}, but the columns here are "
                f"{', '.join(names) or 'none'}.{nearest(name, names)}"
            )
    if isinstance(step, Select):
        return batch.select(list(step.columns))
    if isinstance(step, Drop):
        return batch.select([name for name in names if name not in step.columns])
    new = dict(step.names)
    return batch.rename_columns([new.get(name, name) for name in names])


def _limit(rows: Iterator[Rows], budget: int) -> Iterator[Rows]:
    for part in rows:
        yield part.cut(0, min(budget, len(part)))
        budget -= min(budget, len(part))
        if budget == 0:
            return


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of no rows."""
    return pa.RecordBatch.from_arrays([empty_array(field.type) for field in schema], schema=schema)


def schema_by_trying(steps: Sequence[Step], schema: pa.Schema) -> pa.Schema | None:
    """Send a batch of no rows through the steps; None if a function cannot do without rows."""
    batch = empty_batch(schema)
    for step in steps:
        try:
            batch = _tried(step, batch)
        except Exception:
            return None
    return batch.schema


def _tried(step: Step, batch: pa.RecordBatch) -> pa.RecordBatch:
    if isinstance(step, (Select, Drop, Rename)):
        return recolumn(batch, step)
    if isinstance(step, (Filter, Limit)):
        return batch
    if isinstance(step, MapBatches) and not isinstance(step.function.call, type):
        if step.columns is not None:
            batch = recolumn(batch, Select(step.columns))
        return from_result(_results(step.function.build()(to_format(batch, step.batch_format)))[0])
    raise BadReturn("only rows would tell")
