"""The fast road of functions that cost little: the loop that one would write by hand, over many calls at a time.

Rows are converted once, the function is called in a tight loop, and what it returned is converted once. That is
right only where each call is plain: it returns, and what it returns has the same columns and types as the calls
beside it. If anything else happens, an exception included, the results are dropped and the rows take the careful
road: it calls the function again, one batch or one row after the other, and knows of retries, rows at fault and
memory. Both roads give the same values and types.

A value is copied as soon as its call has ended, as the function may fill the same memory again.
"""

from __future__ import annotations

import datetime
import decimal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch_formats import rows_from
from headrace.core.arrow.input_view import PLAIN, InputRowsView, is_immutable
from headrace.core.arrow.values import from_result, from_row_columns
from headrace.core.arrow.views import make_rows_view, make_view
from headrace.core.failures import is_interrupt
from headrace.core.process import has_forked, is_worker
from headrace.worker.batching import BATCH_BYTES
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows, join
from headrace.worker.user_code import UserCode

T = TypeVar("T")
Call = Callable[[Any], Any]

WINDOW_SECONDS = 0.05
"""How much work may have to be done again."""

_GROWTH = 4  # of a window, to the next
_MOST_SKIPPED = 10  # the power of two
_MOST_ROWS_OF_ONE = 16
_NUMBERS = frozenset({int, float, bool})
_IMMUTABLE = PLAIN | {
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal),
    *(np.dtype(code).type for code in "?bhilqBHILQefd"),
}


class _Odd(Exception):
    """A result is not like those beside it."""


class FastRoad:
    """Decides which windows take the fast road; belongs to one function in one worker.

    The first call is never made here: it may import a library that writes to read-only memory. After a window that
    was not plain the next one takes the careful road, and twice as many each time that it happens again.
    """

    def __init__(self, caller: Caller, user_code: UserCode) -> None:
        self._caller = caller
        self._user_code = user_code
        self._pace = caller.pace

    def window(self, size: int) -> int:
        """Return how many rows the next window has at most: a multiple of ``size``."""
        pace = self._pace
        most = _GROWTH * pace.rows
        if pace.seconds:
            most = min(most, int(WINDOW_SECONDS / pace.seconds))
        if pace.bytes:
            most = min(most, int(BATCH_BYTES / pace.bytes))
        return max(1, most // size) * size

    def windows(self, rows: Iterator[Rows], size: int) -> Iterator[Rows]:
        """Cut a stream as ``rebatch`` does, into windows of one batch or several. Only batches are ever joined."""
        waiting: list[Rows] = []
        held = 0
        for part in rows:
            if waiting and not waiting[0].can_join(part):
                yield join(waiting)
                waiting, held = [], 0
            at = min(size - held, len(part)) if waiting else 0
            if at:
                waiting.append(part.cut(0, at))
                held += at
                if held == size:
                    yield join(waiting)
                    waiting, held = [], 0
            while len(part) - at >= size:
                stop = at + min(self.window(size), (len(part) - at) // size * size)
                yield part.cut(at, stop)
                at = stop
            if at < len(part):
                waiting, held = [part.cut(at, len(part))], len(part) - at
        if waiting:
            yield join(waiting)

    def tried(self, part: Rows, work: Callable[[Call, pa.RecordBatch], T]) -> T | None:
        """Return what ``work`` makes of rows by calling the function; None if they are to take the careful road."""
        pace, caller, user_code = self._pace, self._caller, self._user_code
        if not (caller.has_run and 0 < pace.seconds * len(part) <= 2 * WINDOW_SECONDS and self._is_free()):
            return None
        if pace.skipped:
            pace.skipped -= 1
            return None
        began = time.perf_counter()
        made = None
        with user_code.timed(0):
            try:
                made = work(caller.built.call, part.batch)
            except BaseException as error:
                if is_interrupt(error):
                    raise
        if made is None:
            pace.failed = min(pace.failed + 1, _MOST_SKIPPED)
            pace.skipped = (1 << pace.failed) - 1
            return None
        pace.failed = 0
        pace.rows, pace.seconds = len(part), max(time.perf_counter() - began, 1e-6) / len(part)
        user_code.done += len(part)
        return made

    def careful(self, part: Rows, made: Iterator[T]) -> Iterator[T]:
        """Pass on what the careful road makes of rows, and measure how long it takes."""
        before = self._user_code.seconds
        yield from made
        if len(part):
            pace = self._pace
            pace.rows, pace.seconds = len(part), max(self._user_code.seconds - before, 1e-6) / len(part)

    def _is_free(self) -> bool:
        caller = self._caller
        small = caller.ceiling is not None or caller.shrink_requested
        told = self._user_code.is_watched or self._user_code.repeats_calls
        return not (small or told or has_forked()) and suits(caller)

    def made(self, rows: int, size: int) -> None:
        """Record how many bytes were made of rows."""
        self._pace.bytes = size / max(rows, 1)


def suits(caller: Caller) -> bool:
    """Say whether a function is called call by call, in a worker: whoever runs it here may look at what it does."""
    return type(caller) is Caller and caller.built.predictor is None and is_worker()


# ---------------------------------------------------------------- batches


def map_window(call: Call, batch: pa.RecordBatch, size: int) -> pa.RecordBatch:
    """Return what a function makes of batches of ``size`` rows, which are dicts of arrays; raise if it is odd."""
    view, input_view = make_view(batch, "numpy", tried=True)
    names, arrays = [*view], [*view.values()]
    keys: list[Any] | None = None
    places: list[int | None] = []
    columns: list[list[Any]] = []
    for start in range(0, batch.num_rows, size):
        given = [array[start : start + size] for array in arrays]
        result = call(dict(zip(names, given, strict=True)))
        if type(result) is not dict or not result:
            raise _Odd
        if keys is None:
            keys = [*result]
            places = [_place_of(value, given) for value in result.values()]
            columns = [[] for _ in keys]
        elif [*result] != keys:
            raise _Odd
        for values, place, value in zip(columns, places, result.values(), strict=True):
            if place is not None:
                if value is not given[place]:
                    raise _Odd
                if not input_view.is_writable:
                    continue
            elif type(value) is np.ndarray and value.base is not None and _shares(value, arrays):
                raise _Odd
            values.append(value.copy())
    lengths = [min(size, batch.num_rows - start) for start in range(0, batch.num_rows, size)]
    made = {
        key: _merged(values, lengths) if place is None else _unchanged(batch, place, arrays[place], values)
        for key, place, values in zip(keys or (), places, columns, strict=True)
    }
    return from_result(made, input_view)


def _place_of(value: Any, given: Sequence[Any]) -> int | None:
    return next((place for place, array in enumerate(given) if array is value), None)


def _shares(value: np.ndarray[Any, Any], arrays: Sequence[np.ndarray[Any, Any]]) -> bool:
    return any(np.may_share_memory(value, array) for array in arrays)


def _unchanged(batch: pa.RecordBatch, place: int, array: np.ndarray[Any, Any], copies: Sequence[Any]) -> Any:
    """Return an array of the input that came back; raise if its values may have changed since they did.

    There are ``copies`` where some code may write to arrays that are read-only.
    """
    if not is_immutable(batch.column(place), arrays=True):
        raise _Odd
    if copies and array.dtype != object:
        together, floats = np.concatenate(copies), array.dtype.kind in "fcmM"
        if not np.array_equal(together, array, equal_nan=floats):
            raise _Odd
    return array


def _merged(values: Sequence[Any], lengths: Sequence[int]) -> Any:
    """Return values of one column as one; raise unless they would have the same type one by one."""
    kinds = {*map(type, values)}
    if [*map(len, values)] != lengths:
        raise _Odd
    if kinds == {list}:
        together = [*chain.from_iterable(values)]
        if (
            not any({*map(type, each)} != {type(together[0])} for each in values)
            and type(together[0]) in PLAIN
        ):
            return together
        raise _Odd
    if kinds != {np.ndarray} or len({each.shape[1:] for each in values}) > 1:
        raise _Odd
    types = {each.dtype for each in values}
    kind = next(iter(types)).kind
    if kind == "O":
        if any({*map(type, each.tolist())} != {str} for each in values):
            raise _Odd
    elif {each.kind for each in types} != {kind} or (len(types) > 1 and kind != "U"):
        raise _Odd
    return np.concatenate(values)


# ---------------------------------------------------------------- rows


def map_rows_window(call: Call, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that a function makes, one of each; raise if one is odd."""
    input_view, rows = _rows(batch)
    columns, _ = _taken(zip(map(call, rows), strict=True), tuple, batch.num_rows)
    return _from_columns(columns, input_view, range(batch.num_rows))


def flat_map_window(call: Call, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
    """Return the rows that a function makes, and how many of each; raise if one is odd."""
    input_view, rows = _rows(batch)
    columns, counts = _taken(map(call, rows), list, batch.num_rows)
    index = np.repeat(np.arange(len(counts)), counts).tolist()
    return _from_columns(columns, input_view, index), counts


def filter_window(call: Call, batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for which rows a function is true; raise if it says anything else than true or false."""
    answers = [*map(call, _rows(batch)[1])]
    _check_calls(len(answers), batch.num_rows)
    if not {*map(type, answers)} <= {bool, np.bool_}:
        raise _Odd
    return np.array(answers, np.bool_)


def _rows(batch: pa.RecordBatch) -> tuple[InputRowsView, Iterator[dict[str, Any]]]:
    input_view = make_rows_view(batch, tried=True)
    return input_view, rows_from(input_view.columns, batch.num_rows)


def _check_calls(calls: int, rows: int) -> None:
    """Raise unless every row has had its call: a function that raises ``StopIteration`` ends a ``map`` in silence."""
    if calls != rows:
        raise _Odd


def _taken(
    made: Iterator[Any], kind: type[list[Any]] | type[tuple[Any, ...]], calls: int
) -> tuple[dict[Any, list[Any]], list[int]]:
    """Take the values out of rows as they come, in a ``kind`` of several from each call.

    Return them by the rows' keys, and how many rows each call gave. Lists of values are sliced out of one: that is
    faster than a tuple for each row.
    """
    names: list[Any] = []
    values: list[Any] = []
    counts: list[int] = []
    values_of: Callable[[dict[Any, Any]], tuple[Any, ...]] = tuple
    width, step = -1, 1
    room = _MOST_ROWS_OF_ONE * calls
    extend, count = values.extend, counts.append
    for rows in made:
        if type(rows) is not kind:
            raise _Odd
        count(len(rows))
        for row in rows:
            if type(row) is not dict or len(row) != width:
                if names or type(row) is not dict or not row:
                    raise _Odd
                names, width = [*row], len(row)
                values_of = itemgetter(*names, *names[: max(2 - width, 0)])  # two or more: a tuple
                step = max(width, 2)
            extend(values_of(row))
        if len(values) > room * step:
            raise _Odd
    _check_calls(len(counts), calls)
    if not names:
        raise _Odd
    return {name: values[at::step] for at, name in enumerate(names)}, counts


def _from_columns(
    columns: dict[Any, list[Any]], input_view: InputRowsView, index: Sequence[int]
) -> pa.RecordBatch:
    weight = 0
    for values in columns.values():
        kinds = {*map(type, values)}
        if not kinds <= _IMMUTABLE:
            raise _Odd
        if kinds & {str, bytes}:
            weight += sum(len(value) for value in values if type(value) is str or type(value) is bytes)
    if weight > BATCH_BYTES:
        raise _Odd
    return from_row_columns(columns, input_view, index)
