"""Files of records that end with lines: what planning settles, and how a split of them is read.

A format, such as CSV, says how a file begins, where it may be cut, and what is made of some records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import BinaryIO, ClassVar, NoReturn

import pyarrow as pa

from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.errors import SchemaMismatch, SourceError, UnreadableFile
from headrace.sources import text
from headrace.sources.file_source import damaged
from headrace.sources.schemas import FolderColumns, conformed, select, unify
from headrace.sources.text import TextFile

# ------------------------------------------------------------ records that cannot be parsed


Faults = Mapping[int, str]  # what planning found of rows that cannot be parsed: file number to message
Parse = Callable[[bytes], Sequence[pa.RecordBatch]]
Explain = Callable[[Exception, bytes, int], SourceError]


def faults_of(errors: Iterable[SourceError | None]) -> Faults:
    """Return the error of each file by its number. Where bad rows are not rejected, it is raised when they are read.

    The plan is written to files that others may read, so it holds no data.
    """
    return {file: str(error.without_data()) for file, error in enumerate(errors) if error is not None}


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


# ------------------------------------------------------------ planning


_OTHER_HEADS = 1 << 16  # what is read of each file after the first
_SETTLE_BYTES = 1 << 24  # how far to read for a column that holds nothing at first


@dataclass(frozen=True)
class Start:
    """What was inferred from the first bytes of one file; no schema if it has no records."""

    text: TextFile
    schema: pa.Schema | None = None
    whole: bool = False
    fault: UnreadableFile | None = None


@dataclass(frozen=True)
class Layout:
    """What planning inferred for all files."""

    schema: pa.Schema
    texts: tuple[TextFile, ...]
    faults: Faults
    forms: Mapping[str, str] = field(default_factory=dict)
    folders: FolderColumns | None = None


class NeverClosed(ValueError):
    """The file ends within a record; the arguments are the offset where that shows, and the cuts before it."""


class RecordFormat(ABC):
    """How records are found and read."""

    settles: ClassVar[str]
    """What gives the types that files do not agree on, in a message."""

    @abstractmethod
    def start(self, file: InputFile, size: int, settle: int) -> Start:
        """Read the first ``size`` bytes of a file, up to ``settle`` for a column that holds nothing at first."""

    @abstractmethod
    def over(
        self, known: Sequence[tuple[str, pa.Schema]], *, whole: bool
    ) -> tuple[pa.Schema, Mapping[str, str]]:
        """Return the schema of all files, and the forms of its columns; ``whole``: all of them was seen."""

    @abstractmethod
    def cuts(self, file: BinaryIO, start: int, step: int) -> list[int]:
        """Return ends of records, at least ``step`` bytes apart. Raises ``NeverClosed``."""

    def unified(self, known: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
        """Unify the schemas of files."""
        try:
            return unify(known)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"{error} {self.settles}") from error


def inspect(files: Sequence[InputFile], form: RecordFormat, *, hive: str | None) -> Layout:
    """Read the start of every file, and settle names and types."""
    starts = [form.start(files[0], text.HEAD_BYTES, _SETTLE_BYTES)] if files else []
    with ThreadPoolExecutor(4, thread_name_prefix="heads") as threads:
        starts.extend(threads.map(lambda file: form.start(file, _OTHER_HEADS, 0), files[1:]))
    known = [
        (file.path, start.schema)
        for file, start in zip(files, starts, strict=True)
        if start.schema is not None
    ]
    schema, forms = form.over(known, whole=all(start.whole for start in starts if start.schema is not None))
    names: dict[tuple[str, ...], tuple[str, ...]] = {}  # many files have the same: they travel once
    texts = tuple(
        start.text._replace(
            names=None if start.text.names is None else names.setdefault(*[start.text.names] * 2)
        )
        for start in starts
    )
    folders = FolderColumns.of(files, schema, hive) if hive else None
    return Layout(schema, texts, faults_of(start.fault for start in starts), forms, folders)


def cut(files: Sequence[InputFile], layout: Layout, form: RecordFormat, block: int) -> list[Split]:
    """List the splits of all files in order. One that ends within a record ends with a split ``TO_THE_END``."""

    def cuts(number: int) -> tuple[list[int], int]:
        path, size = files[number].path, files[number].size
        try:
            with open_binary(path) as file:
                return form.cuts(file, layout.texts[number].body, block), size
        except NeverClosed as error:
            return error.args[1], text.TO_THE_END
        except OSError as error:
            raise damaged(repr(path), error) from error

    big = [
        number
        for number, known in enumerate(layout.texts)
        if known.names is not None and known.cuttable and files[number].size - known.body > block
    ]
    with ThreadPoolExecutor(4, thread_name_prefix="cuts") as threads:
        found = dict(zip(big, threads.map(cuts, big), strict=True))
    splits: list[Split] = []
    for number, known in enumerate(layout.texts):
        size = files[number].size
        if known.names is None:
            continue
        if not known.cuttable:
            splits.append(
                Split(number, known.body, text.TO_THE_END, bytes=4 * size)
            )  # text packs about so well
            continue
        between, end = found.get(number, ([], size))
        for start, stop in pairwise([known.body, *between, size]):
            if start < stop:
                last = stop if stop < size else end
                first = 0 if start == known.body else -1
                splits.append(Split(number, start, last, bytes=stop - start, first=first))
    return splits


# ------------------------------------------------------------ reading


class RecordReader(ABC):
    """Reads one split: in one go with Arrow, and where that fails record by record, to find the bad ones.

    Rows are counted from the start of the split.
    """

    numbered: ClassVar[str]
    """What is left out where rows of a file are counted, in messages."""
    encoding = "utf8"

    def __init__(self, path: str, split: Split, layout: Layout, columns: Sequence[str] | None) -> None:
        self.path = path
        self.split = split
        self.layout = layout
        self.text = layout.texts[split.file]
        self.target = select(layout.schema, columns)

    @abstractmethod
    def in_one_go(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; raises what Arrow raises."""

    @abstractmethod
    def parse(self, records: bytes) -> list[pa.RecordBatch]:
        """Return the rows of some records; raises what Arrow raises."""

    @abstractmethod
    def records(self, piece: bytes) -> list[bytes]:
        """Cut text at the end of every record."""

    @abstractmethod
    def end_of(self, data: bytes) -> int:
        """Return where the last whole record ends; 0 if none does."""

    @abstractmethod
    def explained(self, error: Exception, record: bytes, place: str) -> UnreadableFile:
        """Explain what is wrong with a record; ``place`` names its row."""

    @abstractmethod
    def count(self, split: Split) -> int | None:
        """Count the rows of a split, bad ones too; None if they cannot be told apart."""

    def read(self, batch_rows: int, bad: Bad | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        if bad is None:
            if (fault := self.layout.faults.get(self.split.file)) is not None:
                self._raise(fault)
            self.refuse()
        for batch in self._rows(bad):
            yield from conformed(batch, self.target, self.path, batch_rows)

    def _raise(self, fault: str) -> NoReturn:
        """Raise what planning found in the file; with its data, which no plan holds, if it is found again."""
        if "…" in fault:
            self.split = Split(self.split.file, self.text.body, text.TO_THE_END)
            for _ in self._one_by_one(None, 0, None):
                pass
        raise UnreadableFile(fault)

    def _rows(self, bad: Bad | None) -> Iterator[pa.RecordBatch]:
        given, failed = 0, None
        try:
            if bad is None or not self.is_doubtful():
                for batch in self.in_one_go():
                    yield batch
                    given += batch.num_rows
                return
        except MemoryError:
            raise
        except OSError as error:
            raise damaged(repr(self.path), error) from error
        except (pa.ArrowException, UnicodeError) as error:
            failed = error
        yield from self._one_by_one(bad, given, failed)

    def _one_by_one(self, bad: Bad | None, given: int, failed: Exception | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows but for the first ``given``; without ``bad``, raise what is wrong with the first bad one."""

        def first(row: int, count: int, error: Exception) -> None:
            raise error from failed

        def explain(error: Exception, record: bytes, row: int) -> UnreadableFile:
            return self.explained(error, record, self.place(row, exact=bad is None))

        bisection = Bisection(self.parse, explain, bad or first, given=given)
        try:
            for piece in self.pieces(self.split):
                yield from self.sift(piece, bisection)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnicodeError) as error:  # the compressed stream itself is damaged
            raise damaged(repr(self.path), failed or error) from error
        if bad is None and failed is not None:
            raise damaged(repr(self.path), failed) from failed

    def sift(self, piece: bytes, bisection: Bisection) -> Iterator[pa.RecordBatch]:
        """Yield the good rows of a piece."""
        return bisection.read(piece, self.records)

    def pieces(self, split: Split) -> Iterator[bytes]:
        """Yield the bytes of a split in pieces of whole records."""
        return text.pieces(text.tolerant_chunks(self.path, split, self.encoding), self.end_of)

    def is_doubtful(self) -> bool:
        """Say whether planning has found bad records in the split."""
        return self.begins_the_file() and self.split.file in self.layout.faults

    def refuse(self) -> None:
        """Raise what planning has found to be wrong with the split. Default: nothing."""
        return None

    def begins_the_file(self) -> bool:
        """Say whether the split has the first record of its file."""
        return self.split.start == self.text.body

    def rows_before(self) -> int | None:
        """Count the rows of the file before the split; None if they cannot be told apart."""
        if self.begins_the_file():
            return 0
        return self.count(Split(self.split.file, self.text.body, self.split.start))

    def place(self, row: int, *, exact: bool) -> str:
        """Name a row; not ``exact``: without counting those of earlier splits, which may take long."""
        before = self.rows_before() if exact or self.begins_the_file() else None
        if before is None:
            return f"{self.path!r}, row {row} of the part that begins at byte {self.split.start:,}"
        return row_of(self.path, before + row, self.numbered)


def row_of(path: str, row: int, numbered: str) -> str:
    """Name a row of a file."""
    return f"{path!r}, row {row} (counted from 0, {numbered})"
