"""Writes rejected rows: their columns as they are in the source, and why each was rejected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import one_batch
from headrace.core.arrow.objects import as_texts, is_objects
from headrace.core.arrow.row_selection import column_taken, taken
from headrace.core.ports import Source, Writer
from headrace.core.rejected import ERROR_FIELDS, rejected_schema
from headrace.core.work import Reject, Split, Task
from headrace.plan.physical import Program
from headrace.worker.reading import SplitReader

ROWS = 4_096


def write_rejected(program: Program, task: Task, rejects: Sequence[Reject]) -> Writer:
    """Write what an attempt rejected, in the order of the source; the caller closes the writer."""
    assert program.sink is not None
    schema = rejected_schema(program.source.schema())
    writer = program.sink.open_rejected(task, schema)
    place = {split: at for at, split in enumerate(task.shard.splits)}
    try:
        ordered = sorted(rejects, key=lambda reject: (place.get(reject.split, len(place)), reject.row))
        for split, of_split in groupby(ordered, key=lambda reject: reject.split):
            for batch in _batches(program.source, split, list(of_split), schema, task.attempt + 1):
                writer.write(batch)
    except BaseException:
        writer.abort()
        raise
    return writer


def _batches(
    source: Source, split: Split, rejects: list[Reject], schema: pa.Schema, attempts: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rejected rows of one split. Their columns are read from the source again, whatever was projected."""
    numbers = np.concatenate([np.arange(each.row, each.row + each.count) for each in rejects])
    whose = np.repeat(np.arange(len(rejects)), [each.count for each in rejects])
    exact = np.array([each.row + each.count - 1 == each.last for each in rejects])[whose]
    originals = _Originals(source, split, np.unique(numbers[exact]))
    places = _RowLocations(source, split)
    for at in range(0, len(numbers), ROWS):
        part = slice(at, at + ROWS)
        columns = originals.columns(np.where(exact[part], numbers[part], -1), schema)
        chosen = [rejects[i] for i in whose[part]]
        files, rows = places.of(numbers[part], exact[part])
        ours = [
            [each.fault.message for each in chosen],
            [each.fault.kind for each in chosen],
            [each.fault.step for each in chosen],
            files,
            rows,
            [attempts] * len(chosen),
        ]
        columns += [pa.array(values, field.type) for values, field in zip(ours, ERROR_FIELDS, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Originals:
    """The rows of a split that have certain numbers, as far as they can be read."""

    def __init__(self, source: Source, split: Split, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        found: list[pa.RecordBatch] = []
        self._numbers: list[int] = []
        reading = SplitReader(source, split, None, tolerant=True)
        while len(numbers) and (read := reading.next()) is not None:
            if not len(read.rows):
                continue
            there = np.concatenate([span.numbers() for span in read.rows.spans])
            at = np.flatnonzero(np.isin(there, numbers))
            if len(at):
                found.append(taken(read.rows.batch, at))
                self._numbers += there[at].tolist()
            if there[-1] >= numbers[-1]:
                break
        self._rows = one_batch(pa.Table.from_batches(found)) if found else None

    def columns(self, numbers: np.ndarray[Any, np.dtype[np.int64]], schema: pa.Schema) -> list[pa.Array]:
        """Return the source's columns of these rows, with nulls where a row could not be read."""
        fields = list(schema)[: -len(ERROR_FIELDS)]
        if self._rows is None:
            return [pa.nulls(len(numbers), field.type) for field in fields]
        at = np.searchsorted(self._numbers, numbers).clip(max=len(self._numbers) - 1)
        places = np.where(np.asarray(self._numbers)[at] == numbers, at, -1)
        found = [column_taken(self._rows.column(field.name), places) for field in fields]
        return [as_texts(column) if is_objects(column.type) else column for column in found]


class _RowLocations:
    """File and row number of rows of a split, of the words in which the source tells them."""

    def __init__(self, source: Source, split: Split) -> None:
        self._source = source
        self._split = split

    def of(
        self, numbers: np.ndarray[Any, np.dtype[np.int64]], exact: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> tuple[list[str], list[int | None]]:
        """Return files and row numbers. Asking may be slow: where first and last say enough, no others are asked."""
        (file, first), (other, last) = self._place(int(numbers[0])), self._place(int(numbers[-1]))
        between = int(numbers[-1] - numbers[0])
        if file == other and first is not None and last is not None and last - first == between:
            files, rows = [file] * len(numbers), (numbers - numbers[0] + first).tolist()
        else:
            places = [self._place(int(number)) for number in numbers]
            files, rows = [place for place, _ in places], [row for _, row in places]
        return files, [row if known else None for row, known in zip(rows, exact.tolist(), strict=True)]

    def _place(self, number: int) -> tuple[str, int | None]:
        location = self._source.locate(self._split, number)
        if location.number is None:
            return str(location), None
        return location.file, location.number
