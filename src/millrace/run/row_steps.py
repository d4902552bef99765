"""Steps whose function sees one row, and the filter that is an Arrow expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.batch import nulled, one_array, rows_from, to_numpy
from millrace.core.choosing import filtered, taken
from millrace.core.forms import without_marks
from millrace.core.handed import PLAIN, HandedRows, kept, weight
from millrace.core.values import ConversionError, a, from_rows
from millrace.core.views import lend_rows
from millrace.errors import StepError, UnknownColumn, nearest
from millrace.plan.expressions import missing_field, valid_fields
from millrace.plan.logical import Filter, step_label
from millrace.run.batching import BATCH_BYTES, ROW_STEP_ROWS, auto_size
from millrace.run.calls import Caller
from millrace.run.guard import Guard
from millrace.run.rows import Rows

Call = Callable[[Any], Any]

_ROW_WEIGHT = 256  # a dict's own bytes


def map_rows(rows: Iterator[Rows], caller: Caller, guard: Guard) -> Iterator[Rows]:
    """Replace each row by what the function returns for it."""
    return _alike(_pieces(rows, caller, guard, lambda value: (value,)), caller)


def flat_map(rows: Iterator[Rows], caller: Caller, guard: Guard) -> Iterator[Rows]:
    """Replace each row by the rows that the function returns for it."""
    return _alike(_pieces(rows, caller, guard, _items), caller)


def _alike(pieces: Iterator[tuple[Rows, bool]], caller: Caller) -> Iterator[Rows]:
    """Give rows of which all failed, and are kept, the columns of others; the first wait until those are known."""
    waiting: list[Rows] = []
    for piece, made in pieces:
        if made:
            caller.seen = piece.batch.schema
        elif caller.seen is None:
            waiting.append(piece)
            continue
        schema = caller.seen
        assert schema is not None
        yield from (each.with_batch(nulled(each.batch, schema)) for each in waiting)
        waiting.clear()
        yield piece if made else piece.with_batch(nulled(piece.batch, schema))
    yield from waiting


def _pieces(
    rows: Iterator[Rows], caller: Caller, guard: Guard, items: Callable[[Any], Iterable[Any]]
) -> Iterator[tuple[Rows, bool]]:
    """Yield what becomes of the rows, and whether the function made any of it: else they all failed."""
    for part in _small(rows, guard):
        for start, batch, index in _Made(part, guard, caller, items).batches():
            made = batch is not None
            batch = batch if batch is not None else taken(part.batch, np.array(index, np.int64))
            counts = np.bincount(np.array(index, np.int64) - start)
            piece = part.cut(start, start + len(counts))
            # Or some of the rows between gave none, or several.
            alike = bool((counts == 1).all())
            yield piece.with_batch(batch) if alike else piece.spread(batch, counts.tolist()), made


class _Made:
    """The rows that the user's function makes of those of one batch, in batches of bounded weight."""

    def __init__(
        self, part: Rows, guard: Guard, caller: Caller, items: Callable[[Any], Iterable[Any]]
    ) -> None:
        """``items``: the rows that are in what the function returns."""
        self._part = part
        self._guard = guard
        self._caller = caller
        self._items = items

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch | None, list[int]]]:
        """Yield batches, each with the row that its first came from, and those that all came from.

        None stands for rows that all failed and are kept.
        """
        made: Iterator[tuple[int, dict[Any, Any], int]] | None = None
        handed: HandedRows | None = None
        ended = False
        while not ended:
            rows: list[dict[Any, Any]] = []
            index: list[int] = []
            held = 0
            batch = None
            with self._guard.watched(self._part), self._guard.over(self._part, counted=False):
                handed = handed or lend_rows(self._part.batch, tried=self._caller.tried)
                made = made or self._each(handed)
                for at, row, heavy in made:
                    rows.append(row)
                    index.append(at)
                    held += heavy
                    if held >= BATCH_BYTES:
                        break
                else:
                    ended = True
                self._guard.row = None  # from here on, no single row is to blame
                if any(type(row) is not _Failed for row in rows):
                    batch = from_rows(self._with_failed(rows), handed, index)
            del rows
            if ended:
                self._caller.tried = True
                self._guard.done += len(self._part)
            if index:
                yield index[0], batch, index

    def _each(self, handed: HandedRows) -> Iterator[tuple[int, dict[Any, Any], int]]:
        """Copy each row as it comes: its values, or the dict itself, may be filled again for the next."""
        call = self._guard.patient(self._caller.built.call, handed.renewed)
        for at, row in enumerate(rows_from(handed.columns, len(self._part))):
            self._guard.row = at
            if self._guard.tolerant:
                yield from self._whole(at, row, handed, call)
                continue
            some = False
            for item in self._items(call(row)):
                if some:
                    self._guard.gave(1, 2)
                some = True
                yield self._copied(at, item, handed)
            if not some:
                self._guard.gave(1, 0)

    def _whole(
        self, at: int, row: dict[str, Any], handed: HandedRows, call: Call
    ) -> Iterable[tuple[int, dict[Any, Any], int]]:
        """Make all of one row, or count it as failed: what was made before it failed does not count."""
        try:
            made = [self._copied(at, item, handed) for item in self._items(call(row))]
        except BaseException as error:
            if not self._guard.is_fault(error):
                raise
            self._guard.set_aside(self._part.cut(at, at + 1), error)
            return [(at, _Failed(handed.renewed(at)), _ROW_WEIGHT)] if self._guard.keeps else []
        self._guard.gave(1, len(made))
        return made

    def _copied(self, at: int, item: Any, handed: HandedRows) -> tuple[int, dict[Any, Any], int]:
        heavy = _ROW_WEIGHT
        copy = {}
        for key, value in _row(item).items():
            kind = type(value)
            if kind is str or kind is bytes:
                heavy += len(value)
            elif kind not in PLAIN:
                if not handed.has(key, at, value):
                    value = kept(value, views=not handed.is_copy)
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


def filter_rows(rows: Iterator[Rows], caller: Caller, guard: Guard) -> Iterator[Rows]:
    """Keep the rows for which the function is true; one that fails is set aside: nobody knows if it should stay."""
    for part in _small(rows, guard):
        with guard.watched(part), guard.over(part):
            mask = np.fromiter(_answers(part, caller, guard), np.bool_, len(part))
        caller.tried = True
        yield part.keep(filtered(part.batch, mask), mask)


def _answers(part: Rows, caller: Caller, guard: Guard) -> Iterator[bool]:
    handed = lend_rows(part.batch, tried=caller.tried)
    call = guard.patient(caller.built.call, handed.renewed)
    for at, row in enumerate(rows_from(handed.columns, len(part))):
        guard.row = at
        try:
            answer = bool(call(row))
            if not answer:
                guard.dropped(1)
        except BaseException as error:
            if not (guard.tolerant and guard.is_fault(error)):
                raise
            guard.set_aside(part.cut(at, at + 1), error, keep=False)
            answer = False
        yield answer


def _small(rows: Iterator[Rows], guard: Guard) -> Iterator[Rows]:
    """Cut big batches: rows as Python objects need many times the memory."""
    for part in rows:
        size = min(ROW_STEP_ROWS, auto_size(part.batch)) if len(part) else 1
        for at in range(0, len(part), size):
            yield from guard.pieces(part.cut(at, min(at + size, len(part))))


def _row(value: Any) -> Mapping[str, Any]:
    if type(value) is not dict and not isinstance(value, Mapping):
        missing = " (is a `return` missing?)" if value is None else ""
        raise ConversionError(f"a row is a dict, but it returned {a(value)}{missing}")
    return value


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConversionError(f"flat_map takes a list of rows, but it returned {a(value)}")
    return value


def filter_expression(rows: Iterator[Rows], step: Filter, guard: Guard) -> Iterator[Rows]:
    """Keep the rows for which the step's Arrow expression is true."""
    never_null = valid_fields(step.expression)
    for part in rows:
        for piece, mask in _masks(part, step, guard):
            kept = to_numpy(mask.fill_null(False)) if mask.null_count else to_numpy(mask)
            batch = filtered(piece.batch, kept)
            guard.dropped(len(piece) - mask.true_count)
            yield piece.keep(without_marks(batch, never_null) if never_null else batch, kept)


def _projected(step: Filter, batch: pa.RecordBatch) -> pa.Array:
    # `Table.filter` would import pyarrow.dataset, and that pandas.
    from pyarrow._acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

    source = Declaration("table_source", TableSourceNodeOptions(pa.Table.from_batches([batch])))
    mask = Declaration("project", ProjectNodeOptions([step.expression], ["mask"]), [source])
    return one_array(mask.to_table(use_threads=False).column(0))


def _compared_as_floats(step: Filter, batch: pa.RecordBatch, error: pa.ArrowInvalid) -> pa.Array:
    """Evaluate again with integers as float64, where that changes none of them.

    Arrow takes the 0.5 of ``id > 0.5`` for a float32, and refuses to compare integers beyond 2**24 with it. Any
    other error stays one: as floats, a division by zero would be none.
    """
    if "not in range" not in str(error):
        raise error from None
    try:
        columns = [
            column.cast(pa.float64()) if pa.types.is_integer(column.type) else column
            for column in batch.columns
        ]
        return _projected(step, pa.RecordBatch.from_arrays(columns, names=batch.schema.names))
    except pa.ArrowException:
        raise error from None


def _masks(part: Rows, step: Filter, guard: Guard) -> Iterator[tuple[Rows, pa.Array]]:
    """Evaluate the expression; where it fails, halve the rows until those at fault stand alone."""
    try:
        with guard.timed(len(part)):
            mask = _evaluate(step, part.batch)
    except StepError as error:
        if not guard.tolerant or not error.__cause__:
            raise
        if len(part) <= 1:
            guard.set_aside(part, error.__cause__, keep=False)
            return
        half = len(part) // 2
        for piece in (part.cut(0, half), part.cut(half, len(part))):
            yield from _masks(piece, step, guard)
    else:
        yield part, mask


def _evaluate(step: Filter, batch: pa.RecordBatch) -> pa.Array:
    try:
        try:
            column = _projected(step, batch)
        except pa.ArrowInvalid as error:
            column = _compared_as_floats(step, batch, error)
    except (pa.ArrowException, KeyError, ValueError) as error:
        unknown = missing_field(error)
        if unknown is not None:
            names = batch.schema.names
            raise UnknownColumn(
                f"{step_label(step)} asks for column {unknown!r}, but the columns here are "
                f"{', '.join(names) or 'none'}.{nearest(unknown, names)}"
            ) from None
        raise StepError(f"{step_label(step)} cannot be evaluated on these columns: {error}") from error
    if not pa.types.is_boolean(column.type):
        raise StepError(
            f"{step_label(step)} gives {column.type}; the expression of a filter is true or false."
        )
    return column
