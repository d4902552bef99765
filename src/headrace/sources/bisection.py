"""Finds the records that cannot be parsed, where a fast reader fails on a piece of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from headrace.core.ports import Bad
from headrace.errors import SourceError, UnreadableFile

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
