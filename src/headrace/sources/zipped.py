"""The rows of several sources side by side."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.files.input_files import Mark
from headrace.core.source_ports import Bad, Keys, Location, Numbers, Source, names_side_by_side, note_marks
from headrace.core.work import Split
from headrace.errors import ArgumentError

if TYPE_CHECKING:
    import pyarrow as pa


class ZipSource(Source):
    """Reads sources of equally many rows side by side; a split is a range of rows.

    A range ends where a split of some source does, so that each source reads a split twice at most. A name that was
    there before gets ``_1``, ``_2``, ….
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self.decodes = any(source.decodes for source in sources)
        self.shares_memory = any(source.shares_memory for source in sources)
        self._splits: list[list[Split]] | None = None  # of each source

    def describe(self) -> dict[str, Any]:
        """Return what the sources say."""
        sources = [source.describe() for source in self._sources]
        paths = [path for each in sources for path in each.get("paths", ())]
        return {"kind": "zip", "paths": paths, "sources": sources}

    def schema(self) -> pa.Schema:
        """Return the columns of all, side by side."""
        import pyarrow as pa

        return pa.schema(
            [
                source.schema().field(name).with_name(new).remove_metadata()
                for source, names in zip(self._sources, self.names(), strict=True)
                for name, new in names.items()
            ]
        )

    def forms(self) -> Mapping[str, str]:
        """Return the forms of the columns, by their new names."""
        return {
            names[name]: form
            for source, names in zip(self._sources, self.names(), strict=True)
            for name, form in source.forms().items()
        }

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, in order."""
        return self._sources

    def names(self) -> list[dict[str, str]]:
        """Return, for each source, its columns and what they are called here."""
        columns = [source.schema().names for source in self._sources]
        return [
            dict(zip(names, called, strict=True))
            for names, called in zip(columns, names_side_by_side(columns), strict=True)
        ]

    # ------------------------------------------------------------ files and splits

    def files(self) -> list[tuple[str, int, int]]:
        """Return the files of all sources."""
        return [file for source in self._sources for file in source.files()]

    def files_of(self, split: Split) -> range:
        """Return the numbers of the files from the first that a split reads to the last."""
        offsets = [0, *accumulate(len(source.files()) for source in self._sources)]
        found = [
            number + offset
            for source, offset, pieces in zip(self._sources, offsets, self._pieces(split), strict=False)
            for piece, _, _ in pieces
            for number in source.files_of(piece)
        ]
        return range(min(found), max(found) + 1) if found else range(0)

    def pinned(self, paths: Sequence[str]) -> Source:
        """Return this source if it has these very files: rows side by side depend on every one of them."""
        counts = [len(source.files()) for source in self._sources]
        ends = [0, *accumulate(counts)]
        if ends[-1] != len(paths):
            raise ArgumentError(
                f"zip: the run was planned with {len(paths)} input files, and there are {ends[-1]}; different rows "
                "would be combined. Bring the old files back, or write to another folder."
            )
        return ZipSource(
            [
                source.pinned(paths[start:stop]) if stop > start else source
                for source, start, stop in zip(self._sources, ends, ends[1:], strict=False)
            ]
        )

    def splits(self) -> list[Split]:
        """Cut the rows into ranges; ``ArgumentError`` if the sources differ in how many they have."""
        self._splits = [list(source.splits()) for source in self._sources]
        return self._ranges(self._splits)

    def splits_in_batches(self, rows: int) -> list[Split]:
        """Cut the rows into ranges, as the sources cut theirs for batches."""
        self._splits = [list(source.splits_in_batches(rows)) for source in self._sources]
        return self._ranges(self._splits)

    def rows(self) -> int:
        """Return the number of rows; ``ArgumentError`` if the sources differ in it, or one does not know it."""
        return sum(split.rows for split in self.splits())

    def _ranges(self, splits: list[list[Split]]) -> list[Split]:
        counts = []
        for number, each in enumerate(splits, 1):
            if any(split.rows < 0 for split in each):
                raise ArgumentError(
                    f"zip: the number of rows of dataset {number} is not known before it is read, for example "
                    "because it is text. Write it as Parquet first, or call .materialize() on it if it fits into "
                    "memory."
                )
            counts.append(sum(split.rows for split in each))
        if len(set(counts)) > 1:
            raise ArgumentError(
                f"zip: the datasets differ in their numbers of rows: {', '.join(f'{count:,}' for count in counts)}."
            )
        ends = [list(accumulate(split.rows for split in each)) for each in splits]
        made, start = [], 0
        while start < counts[0]:
            stop = max(each[bisect_right(each, start)] for each in ends)
            size = sum(
                split.bytes * (min(end, stop) - max(end - split.rows, start)) // split.rows
                for each, of in zip(splits, ends, strict=True)
                for split, end in zip(each, of, strict=True)
                if split.rows and end > start and end - split.rows < stop
            )
            made.append(Split(0, start, stop, stop - start, size, start))
            start = stop
        return made

    def _pieces(self, split: Split) -> list[list[tuple[Split, int, int]]]:
        """Return, for each source, the splits that a range reads, and from which of their rows to which."""
        if self._splits is None:
            self._splits = [list(source.splits()) for source in self._sources]
        found = []
        for each in self._splits:
            pieces, at = [], 0
            for piece in each:
                low, high = max(split.start - at, 0), min(split.stop - at, piece.rows)
                if low < high:
                    pieces.append((piece, low, high))
                at += piece.rows
            found.append(pieces)
        return found

    def __getstate__(self) -> dict[str, Any]:
        if self._splits is None:  # workers must not list files themselves
            self._splits = [list(source.splits()) for source in self._sources]
        return dict(self.__dict__)

    # ------------------------------------------------------------ rows

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a range of rows of each source. A row that is bad in one of them is bad."""
        import pyarrow as pa

        from headrace.sources.schemas import select

        target = self.schema() if columns is None else select(self.schema(), columns)
        wanted, streams = [], []
        for source, names, pieces in zip(self._sources, self.names(), self._pieces(split), strict=True):
            own = [name for name, new in names.items() if new in target.names]
            wanted.append([names[name] for name in own])
            streams.append(_Stream(source, pieces, own, batch_rows, tolerant=bad is not None))
        at, rows = 0, split.stop - split.start
        while at < rows:
            heads = [stream.head() for stream in streams]
            count = min(map(_length, heads))
            failed = next((head[1] for head in heads if isinstance(head, tuple)), None)
            if failed is not None:
                assert bad is not None
                bad(at, count, failed)
            else:
                arrays = {
                    new: column
                    for names, head in zip(wanted, heads, strict=True)
                    for new, column in zip(names, head.slice(0, count).columns, strict=True)
                }
                yield (
                    pa.RecordBatch.from_arrays([arrays[name] for name in target.names], schema=target)
                    if len(target)
                    else _empty(count)
                )
            for stream in streams:
                stream.skip(count)
            at += count

    def note_marks(self, marks: Sequence[Mark]) -> None:
        """Keep the marks of all files."""
        note_marks(self._sources, marks)

    def check_unchanged(self, split: Split) -> None:
        """Check the files of a range."""
        for source, pieces in zip(self._sources, self._pieces(split), strict=True):
            for piece, _, _ in pieces:
                source.check_unchanged(piece)

    def locate(self, split: Split, row: int) -> Location:
        """Say where a row stands in each source."""
        first, *others = (
            _located(source, pieces, row)
            for source, pieces in zip(self._sources, self._pieces(split), strict=True)
        )
        return msgspec.structs.replace(first, beside=(*first.beside, *others))

    def row_keys(self, split: Split, numbers: Numbers) -> Keys:
        """Return the keys of the first source's rows."""
        import numpy as np

        made = np.zeros(len(numbers), np.uint64)
        at = 0
        for piece, low, high in self._pieces(split)[0]:
            here = (numbers >= at) & (numbers < at + high - low)
            made[here] = self._sources[0].row_keys(piece, numbers[here] - at + low)
            at += high - low
        return made

    def close(self) -> None:
        """Close the sources."""
        for source in self._sources:
            source.close()


_Head = Any  # a batch, or (rows, why they are bad)


def _located(source: Source, pieces: Sequence[tuple[Split, int, int]], row: int) -> Location:
    for piece, low, high in pieces:
        if row < high - low:
            return source.locate(piece, low + row)
        row -= high - low
    return Location("zip", row)


class _Stream:
    """The rows of one source from one row to another: batches, and bad rows in their turn."""

    def __init__(
        self,
        source: Source,
        pieces: Sequence[tuple[Split, int, int]],
        columns: Sequence[str],
        batch_rows: int,
        *,
        tolerant: bool,
    ) -> None:
        self._source, self._columns, self._batch_rows = source, columns, batch_rows
        self._tolerant = tolerant
        self._events = self._all(pieces)
        self._head: _Head = None

    def head(self) -> _Head:
        """Return what comes next: a batch of rows, or how many bad ones and why."""
        if self._head is None:
            self._head = next(self._events)
        return self._head

    def skip(self, rows: int) -> None:
        """Go on behind so many rows of what comes next."""
        head = self.head()
        left = _length(head) - rows
        if not left:
            self._head = None
        else:
            self._head = (left, head[1]) if isinstance(head, tuple) else head.slice(rows)

    def _all(self, pieces: Sequence[tuple[Split, int, int]]) -> Iterator[_Head]:
        for piece, low, high in pieces:
            at = 0
            for head in self._of(piece):
                length = _length(head)
                start, stop = max(low - at, 0), min(high - at, length)
                if start < stop:
                    yield (
                        (stop - start, head[1])
                        if isinstance(head, tuple)
                        else head.slice(start, stop - start)
                    )
                at += length
                if at >= high:
                    break
            else:
                if at < high:
                    raise self._too_few(piece, at)

    def _of(self, piece: Split) -> Iterator[_Head]:
        told: deque[tuple[int, Exception]] = deque()
        bad: Bad | None = (lambda row, count, error: told.append((count, error))) if self._tolerant else None
        for batch in self._source.read(piece, self._columns, self._batch_rows, bad):
            while told:
                yield told.popleft()
            yield batch
        while told:
            yield told.popleft()

    def _too_few(self, piece: Split, rows: int) -> Exception:
        from headrace.errors import UnreadableFile

        return UnreadableFile(
            f"{self._source.locate(piece, 0)}: the input was planned with {piece.rows:,} rows from there on, and "
            f"reading gave {rows:,}. Restore the file or leave it out."
        )


def _length(head: _Head) -> int:
    return head[0] if isinstance(head, tuple) else int(head.num_rows)


def _empty(rows: int) -> pa.RecordBatch:
    from headrace.core.arrow.batch import empty_columns

    return empty_columns(rows)
