"""Where a fast reader fails or is wrong: records that cannot be parsed, and whole numbers that float64 has not.

Beyond 2**53 float64 has every second whole number, then every fourth.
A column of whole numbers and fractions is read as float64, and so is one of numbers beyond int64. There each number
that is big enough to have been rounded is looked at: what was written decides whether it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.plain import columns_within
from headrace.core.source_ports import Bad
from headrace.errors import SourceError, UnreadableFile

_BEYOND = 2.0**53
_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_DIGITS = 309  # the most that a float64 has before the point


def rounded(text: str) -> str | None:
    """Return what becomes of a number that float64 does not hold; None if it holds it, or if it is not a number.

    >>> rounded("9007199254740993")
    'a whole number that float64 would round to 9007199254740992'
    >>> rounded("1e400"), rounded("9007199254740992"), rounded("1.7e18"), rounded("inf")
    ('too big for float64', None, None, None)
    """
    if _WHOLE.fullmatch(text):
        digits = text.strip()
        if len(digits) > _DIGITS + 1:
            return "too big for float64"
        try:
            value = float(int(digits))
        except OverflowError:
            return "too big for float64"
        return None if value == int(digits) else f"a whole number that float64 would round to {value:.0f}"
    if any(mark.isdigit() for mark in text):
        try:
            return "too big for float64" if np.isinf(float(text)) else None
        except ValueError:
            return None
    return None


def large(column: pa.Array) -> bool:
    """Return whether a column holds, at whatever depth, a floating-point number of 2**53 or more."""
    if pa.types.is_floating(column.type):
        return bool(_large(column).any())
    return any(map(large, columns_within(column)))


def _large(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.abs(to_numpy(column)) >= _BEYOND
    return found


def unrounded(
    batches: Iterable[pa.RecordBatch],
    names: Sequence[str],
    texts: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
    number: Callable[[str], int],
) -> Iterator[pa.RecordBatch]:
    """Pass the batches of a CSV file on; raise what Arrow would if a number in columns ``names`` was rounded.

    ``texts`` reads the same rows again, columns as they are written; ``number`` numbers a column.
    """
    written: _Rows | None = None
    given = 0
    for batch in batches:
        doubtful = [name for name in names if large(batch.column(name))]
        if doubtful:
            written = written or _Rows(texts(names))
            rows = written.of(given, batch.num_rows)
            for name in doubtful:
                at = np.flatnonzero(_large(batch.column(name)))
                for row, text in zip(at.tolist(), rows[name].take(pa.array(at)).to_pylist(), strict=True):
                    if (what := rounded(text)) is not None:
                        raise pa.ArrowInvalid(
                            f"In CSV column #{number(name)}: Row #{given + row + 1}: CSV conversion error to "
                            f"double: {text.strip()} is {what}"
                        )
        given += batch.num_rows
        yield batch


class _Rows:
    """The rows of some batches, by their numbers, in order."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: list[pa.RecordBatch] = []
        self._first = self._stop = 0

    def of(self, start: int, count: int) -> pa.Table:
        while self._stop < start + count:
            batch = next(self._batches)
            self._held.append(batch)
            self._stop += batch.num_rows
        while self._first + self._held[0].num_rows <= start:
            self._first += self._held.pop(0).num_rows
        return pa.Table.from_batches(self._held).slice(start - self._first, count)


# ------------------------------------------------------------ records that cannot be parsed


Faults = Mapping[int, str]  # what planning found of rows that cannot be parsed: file number to message
Parse = Callable[[bytes], Sequence[pa.RecordBatch]]
Explain = Callable[[Exception, bytes, int], SourceError]


def faults_of(errors: Iterable[SourceError | None]) -> Faults:
    """Return the error of each file by its number. Where bad rows are not rejected, it is raised when they are read.

    The plan is written to files that others may read, so it holds no data.
    """
    return {file: str(error.without_data()) for file, error in enumerate(errors) if error is not None}


def raise_fault(faults: Faults, file: int) -> None:
    """Raise what planning found in a file."""
    if file in faults:
        raise UnreadableFile(faults[file])


class Bisection:
    """Parses records, and halves those that fail until the bad ones are found.

    ``explain(error, record, row)`` makes an error of what ``parse`` raised. Rows before row ``given`` have been
    read before: they are counted, and not yielded; one of them that fails now is an error.
    """

    def __init__(self, parse: Parse, explain: Explain, bad: Bad, *, given: int) -> None:
        self._parse = parse
        self._explain = explain
        self._bad = bad
        self._given = given
        self._row = 0

    def read(self, piece: bytes, records: Callable[[bytes], Sequence[bytes]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece of text; ``records`` cuts it if it must be halved."""
        try:
            batches = self._parse(piece)
        except MemoryError:
            raise
        except (pa.ArrowException, UnicodeError):
            yield from self.bisect(records(piece))
        else:
            yield from self._passed(batches)

    def bisect(self, records: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these records but for the bad ones."""
        try:
            batches = self._parse(b"".join(records))
        except MemoryError:
            raise
        except (pa.ArrowException, UnicodeError) as error:
            if len(records) == 1:
                self.reject(self._explain(error, records[0], self._row))
                return
            middle = len(records) // 2
            yield from self.bisect(records[:middle])
            yield from self.bisect(records[middle:])
        else:
            yield from self._passed(batches)

    def reject(self, error: SourceError) -> None:
        """Report that the next row is bad."""
        if self._row < self._given:
            raise error
        self._bad(self._row, 1, error)
        self._row += 1

    def next_row(self) -> int:
        """Return the number of the next row."""
        return self._row

    def _passed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            fresh = batch.slice(min(max(self._given - self._row, 0), batch.num_rows))
            self._row += batch.num_rows
            if fresh.num_rows:
                yield fresh
