"""Steps whose function sees one row, and the filter that is an Arrow expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import filtered, nulled, taken
from headrace.core.arrow.batch_formats import rows_from, to_numpy
from headrace.core.arrow.forms import without_null_marks
from headrace.core.arrow.input_view import PLAIN, InputRowsView, copied_value
from headrace.core.arrow.objects import weight
from headrace.core.arrow.values import ConversionError, a, from_rows
from headrace.core.arrow.views import make_rows_view
from headrace.errors import StepError
from headrace.plan.expressions import valid_fields
from headrace.plan.steps.functions import Filter, FlatMap, MapRows
from headrace.worker.batching import BATCH_BYTES, ROW_STEP_ROWS, auto_size
from headrace.worker.calls import Caller
from headrace.worker.fast_road import FastRoad, filter_window, flat_map_window, map_rows_window
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RowChoice, RunningStep, StepContext, runs
from headrace.worker.user_code import UserCode, evaluated

Call = Callable[[Any], Any]

_ROW_WEIGHT = 256  # a dict's own bytes


@runs(MapRows)
class MappingRows(RunningStep[MapRows]):
    """Replaces rows by what the function returns for each."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Call the function with one row after the other."""
        return map_rows(rows, callers[0], context.user_code(self.step.label(), "a row"))


@runs(FlatMap)
class FlatMapping(RunningStep[FlatMap]):
    """Replaces rows by the rows that the function returns for each."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Call the function with one row after the other."""
        return flat_map(rows, callers[0], context.user_code(self.step.label(), "a row"))


@runs(Filter)
class Filtering(RowChoice[Filter]):
    """Keeps the rows for which a function or an expression is true."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Call the function with one row after the other, or evaluate the expression for a batch."""
        user_code = context.user_code(self.step.label(), "True or False")
        if self.step.function is None:
            return filter_expression(rows, self.step, user_code)
        return filter_rows(rows, callers[0], user_code)


def map_rows(rows: Iterator[Rows], caller: Caller, user_code: UserCode) -> Iterator[Rows]:
    """Replace each row by what the function returns for it."""
    return _same_columns(_row_results(rows, caller, user_code, _one, _mapped), caller)


def flat_map(rows: Iterator[Rows], caller: Caller, user_code: UserCode) -> Iterator[Rows]:
    """Replace each row by the rows that the function returns for it."""
    return _same_columns(_row_results(rows, caller, user_code, _items, flat_map_window), caller)


def _same_columns(pieces: Iterator[tuple[Rows, bool]], caller: Caller) -> Iterator[Rows]:
    """Give batches of which all rows failed the schema of the results; the first wait until it is known."""
    waiting: list[Rows] = []
    for piece, made in pieces:
        if made:
            caller.result_schema = piece.batch.schema
        elif caller.result_schema is None:
            waiting.append(piece)
            continue
        schema = caller.result_schema
        assert schema is not None
        yield from (each.with_batch(nulled(each.batch, schema)) for each in waiting)
        waiting.clear()
        yield piece if made else piece.with_batch(nulled(piece.batch, schema))
    yield from waiting


def _row_results(
    rows: Iterator[Rows],
    caller: Caller,
    user_code: UserCode,
    items: Callable[[Any], Iterable[Any]],
    fast: Callable[[Call, pa.RecordBatch], tuple[pa.RecordBatch, Sequence[int] | None]],
) -> Iterator[tuple[Rows, bool]]:
    """Yield what becomes of the rows, and whether the function made any of it: else they all failed."""
    road = FastRoad(caller, user_code)
    for part in _small_batches(rows, user_code):
        tried = road.tried(part, fast)
        if tried is None:
            yield from road.careful(part, _carefully(part, caller, user_code, items))
            continue
        batch, counts = tried
        if counts is None:
            yield part.with_batch(batch), True
            continue
        user_code.count_output(counts.count(0), 0)
        user_code.count_output(0, batch.num_rows - len(part) + counts.count(0))
        yield part.repeated(batch, counts), True


def _carefully(
    part: Rows, caller: Caller, user_code: UserCode, items: Callable[[Any], Iterable[Any]]
) -> Iterator[tuple[Rows, bool]]:
    for start, batch, index in _RowResults(part, user_code, caller, items).batches():
        made = batch is not None
        batch = batch if batch is not None else taken(part.batch, np.array(index, np.int64))
        counts = np.bincount(np.array(index, np.int64) - start)
        piece = part.cut(start, start + len(counts))
        # Or some of the rows between gave none, or several.
        alike = bool((counts == 1).all())
        yield piece.with_batch(batch) if alike else piece.repeated(batch, counts.tolist()), made


class _RowResults:
    """The rows that the user's function makes of those of one batch, in batches of bounded weight."""

    def __init__(
        self, part: Rows, user_code: UserCode, caller: Caller, items: Callable[[Any], Iterable[Any]]
    ) -> None:
        """``items``: the rows that are in what the function returns."""
        self._part = part
        self._user_code = user_code
        self._caller = caller
        self._items = items

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch | None, list[int]]]:
        """Yield batches, each with the row that its first came from, and those that all came from.

        None stands for rows that all failed and are kept.
        """
        made: Iterator[tuple[int, dict[Any, Any], int]] | None = None
        input_view: InputRowsView | None = None
        ended = False
        while not ended:
            rows: list[dict[Any, Any]] = []
            index: list[int] = []
            held = 0
            batch = None
            with (
                self._user_code.reporting_call(self._part),
                self._user_code.locating_errors(self._part, counted=False),
            ):
                input_view = input_view or make_rows_view(self._part.batch, tried=self._caller.has_run)
                made = made or self._result_rows(input_view)
                for at, row, heavy in made:
                    rows.append(row)
                    index.append(at)
                    held += heavy
                    if held >= BATCH_BYTES:
                        break
                else:
                    ended = True
                self._user_code.row = None  # from here on, no single row is to blame
                if any(type(row) is not _Failed for row in rows):
                    batch = from_rows(self._with_failed(rows), input_view, index)
            del rows
            if ended:
                self._caller.has_run = True
                self._user_code.done += len(self._part)
            if index:
                yield index[0], batch, index

    def _result_rows(self, input_view: InputRowsView) -> Iterator[tuple[int, dict[Any, Any], int]]:
        """Copy each row as it comes: its values, or the dict itself, may be filled again for the next."""
        call = self._user_code.with_retries(self._caller.built.call, input_view.restored_row)
        for at, row in enumerate(rows_from(input_view.columns, len(self._part))):
            self._user_code.row = at
            if self._user_code.tolerant:
                yield from self._all_or_nothing(at, row, input_view, call)
                continue
            some = False
            for item in self._items(call(row)):
                if some:
                    self._user_code.count_output(1, 2)
                some = True
                yield self._copy(at, item, input_view)
            if not some:
                self._user_code.count_output(1, 0)

    def _all_or_nothing(
        self, at: int, row: dict[str, Any], input_view: InputRowsView, call: Call
    ) -> Iterable[tuple[int, dict[Any, Any], int]]:
        """Make all of one row, or count it as failed: what was made before it failed does not count."""
        try:
            made = [self._copy(at, item, input_view) for item in self._items(call(row))]
        except BaseException as error:
            if not self._user_code.is_row_error(error):
                raise
            self._user_code.reject_row(self._part.cut(at, at + 1), self._user_code.fault_of(error))
            return (
                [(at, _Failed(input_view.restored_row(at)), _ROW_WEIGHT)]
                if self._user_code.nulls_failures
                else []
            )
        self._user_code.count_output(1, len(made))
        return made

    def _copy(self, at: int, item: Any, input_view: InputRowsView) -> tuple[int, dict[Any, Any], int]:
        heavy = _ROW_WEIGHT
        copy = {}
        for key, value in _row(item).items():
            kind = type(value)
            if kind is str or kind is bytes:
                heavy += len(value)
            elif kind not in PLAIN:
                if not input_view.has(key, at, value):
                    value = copied_value(value, views=not input_view.is_copy)
                heavy += weight(value)
            copy[key] = value
        return at, copy, heavy + 32 * len(copy)

    def _with_failed(self, rows: list[dict[Any, Any]]) -> list[dict[Any, Any]]:
        """Give rows that failed and are kept the keys that others have: as they were, if of the same type."""
        if not any(type(row) is _Failed for row in rows):
            return rows
        like = next(row for row in rows if type(row) is not _Failed)
        return [
            {key: row[key] for key, value in like.items() if key in row and type(row[key]) is type(value)}
            if type(row) is _Failed
            else row
            for row in rows
        ]


class _Failed(dict[Any, Any]):
    """A row that failed, as it was."""


def filter_rows(rows: Iterator[Rows], caller: Caller, user_code: UserCode) -> Iterator[Rows]:
    """Keep the rows for which the function is true; rows for which it fails are rejected, never nulled."""
    road = FastRoad(caller, user_code)
    for part in _small_batches(rows, user_code):
        mask = road.tried(part, filter_window)
        if mask is None:
            (mask,) = road.careful(part, _masks(part, caller, user_code))
        else:
            user_code.count_dropped(len(part) - int(mask.sum()))
        yield part.masked(filtered(part.batch, mask), mask)


def _masks(part: Rows, caller: Caller, user_code: UserCode) -> Iterator[np.ndarray[Any, np.dtype[np.bool_]]]:
    with user_code.reporting_call(part), user_code.locating_errors(part):
        mask = np.fromiter(_answers(part, caller, user_code), np.bool_, len(part))
    caller.has_run = True
    yield mask


def _answers(part: Rows, caller: Caller, user_code: UserCode) -> Iterator[bool]:
    input_view = make_rows_view(part.batch, tried=caller.has_run)
    call = user_code.with_retries(caller.built.call, input_view.restored_row)
    for at, row in enumerate(rows_from(input_view.columns, len(part))):
        user_code.row = at
        try:
            answer = _truth(call(row))
            if not answer:
                user_code.count_dropped(1)
        except BaseException as error:
            if not (user_code.tolerant and user_code.is_row_error(error)):
                raise
            user_code.reject_row(part.cut(at, at + 1), user_code.fault_of(error), keep=False)
            answer = False
        yield answer


def _truth(value: Any) -> bool:
    """Say whether a row is kept. A text or a list is more likely a mistake than an answer: "no" would be true."""
    if isinstance(value, (str, bytes, Mapping, list, tuple, set)) or bool(getattr(value, "ndim", 0)):
        raise ConversionError(
            f"a filter returns True or False, but it returned {a(value)}; compare it, or convert it: `bool(…)`, "
            "`len(…) > 0`, `.any()`"
        )
    return bool(value)


def _small_batches(rows: Iterator[Rows], user_code: UserCode) -> Iterator[Rows]:
    """Cut big batches: rows as Python objects need many times the memory."""
    for part in rows:
        size = min(ROW_STEP_ROWS, auto_size(part.batch)) if len(part) else 1
        for piece in part.pieces(size):
            yield from user_code.split_suspects(piece)


def _one(value: Any) -> tuple[Any]:
    return (value,)


def _mapped(call: Call, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, None]:
    return map_rows_window(call, batch), None


def _row(value: Any) -> Mapping[str, Any]:
    if type(value) is not dict and not isinstance(value, Mapping):
        missing = " (is a `return` missing?)" if value is None else ""
        raise ConversionError(f"a row is a dict, but it returned {a(value)}{missing}")
    return value


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConversionError(f"flat_map takes a list of rows, but it returned {a(value)}")
    return value


def filter_expression(rows: Iterator[Rows], step: Filter, user_code: UserCode) -> Iterator[Rows]:
    """Keep the rows for which the step's Arrow expression is true."""
    never_null = valid_fields(step.expression)
    for part in rows:
        for piece, mask in evaluated(part, step.expression, step.label(), user_code, _check_condition):
            copied_value = to_numpy(mask.fill_null(False)) if mask.null_count else to_numpy(mask)
            batch = filtered(piece.batch, copied_value)
            user_code.count_dropped(len(piece) - mask.true_count)
            yield piece.masked(without_null_marks(batch, never_null) if never_null else batch, copied_value)


def _check_condition(label: str, column: pa.Array) -> None:
    if not pa.types.is_boolean(column.type):
        raise StepError(f"{label} gives {column.type}; the expression of a filter must be true or false.")
