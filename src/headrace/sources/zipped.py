"""The rows of several sources side by side."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.human import plural
from headrace.core.source_ports import (
    Bad,
    Keys,
    Location,
    Numbers,
    Preparation,
    Source,
    names_side_by_side,
)
from headrace.core.work import Split
from headrace.errors import ArgumentError, TooManyErrors
from headrace.sources.union import Several

if TYPE_CHECKING:
    import pyarrow as pa


class ZipSource(Several):
    """Reads sources of equally many rows side by side; a split is a range of rows.

    A range ends where a split of some source does, so that each source reads a split twice at most. A name that was
    there before gets ``_1``, ``_2``, …. ``chosen``: which columns of a source are read, by what they are called; None
    for all of them, by their own names. ``most``: only so many rows.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        chosen: Sequence[Mapping[str, str] | None] | None = None,
        most: int = sys.maxsize,
    ) -> None:
        super().__init__(sources)
        self._chosen = tuple(chosen or [None] * len(self._sources))
        self._most = most
        self._splits: list[list[Split]] | None = None  # of each source

    def describe(self) -> dict[str, Any]:
        """Return what the sources say."""
        chosen = [each and list(each.items()) for each in self._chosen]
        return {**self._described("zip"), **({"columns": chosen} if any(chosen) else {})}

    def code(self) -> dict[str, str]:
        """Return the code of all sources."""
        return {place: print_ for source in self._sources for place, print_ in source.code().items()}

    def prepared(self, preparation: Preparation) -> Source:
        """Have each source make its rows. Raises ``TooManyErrors`` if some failed: others would be beside them."""
        whole = ZipSource(self.each_prepared(preparation), self._chosen)
        for number, source in enumerate(whole._sources, 1):
            found = [(made, *each) for made in source.preparations() for each in made.rejected.items()]
            for made, place, rows in found[:1]:
                raise TooManyErrors(
                    f"zip: {plural(rows, 'row')} of dataset {number} failed in {made.what}, so that the rows behind "
                    "would stand beside others. Put these steps behind the zip, where a row that fails is set aside "
                    "with what stands beside it; or let it be null: on_error='null'. If the run writes an output, "
                    f"hr.read_rejected({place!r}) has the rows."
                )
        whole.rows()  # what does not fit is refused here
        return whole

    def first_rows(self, rows: int, options: Any) -> Source | None:
        """Return the first rows of each side by side; one that fails is an error, as it is for all rows."""
        if options.on_error == "reject":
            options = replace(options, on_error="raise")
        first = self.each_first(rows, options)
        return None if first is None else ZipSource(first, self._chosen, rows)

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
            if name in names
        }

    def names(self) -> list[dict[str, str]]:
        """Return, for each source, its columns that are read, and what they are called here."""
        columns = [
            {name: name for name in source.schema().names} if chosen is None else chosen
            for source, chosen in zip(self._sources, self._chosen, strict=True)
        ]
        return [
            dict(zip(own.values(), called, strict=True))
            for own, called in zip(columns, names_side_by_side(columns), strict=True)
        ]

    # ------------------------------------------------------------ files and splits

    def files_of(self, split: Split) -> range:
        """Return the numbers of the files from the first that a split reads to the last."""
        found = [
            number + offset
            for source, offset, pieces in zip(
                self._sources, self.offsets(), self._pieces(split), strict=False
            )
            for piece, _, _ in pieces
            for number in source.files_of(piece)
        ]
        return range(min(found), max(found) + 1) if found else range(0)

    def pinned(self, paths: Sequence[str]) -> Source:
        """Return this source if it has these very files: rows side by side depend on every one of them."""
        ends = self.offsets()
        if ends[-1] != len(paths):
            raise ArgumentError(
                f"zip: the run was planned with {len(paths)} input files, and there are {ends[-1]}; different rows "
                "would be combined. Bring the old files back, or write to another folder."
            )
        return ZipSource(
            [
                source.pinned(paths[start:stop]) if stop > start else source
                for source, (start, stop) in zip(self._sources, pairwise(ends), strict=True)
            ],
            self._chosen,
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
        """Return the number of rows, -1 if it is not known yet; ``ArgumentError`` if the sources differ in it."""
        return sum(split.rows for split in self.splits())

    def _ranges(self, splits: list[list[Split]]) -> list[Split]:
        counts = [
            -1
            if any(split.rows < 0 for split in each)
            else min(sum(split.rows for split in each), self._most)
            for each in splits
        ]
        if len(known := {count for count in counts if count >= 0}) > 1:
            raise ArgumentError(
                "zip: the datasets differ in their numbers of rows: "
                f"{', '.join(f'{count:,}' if count >= 0 else 'not known' for count in counts)}."
            )
        if self.unprepared:
            return [Split(0, 0, 0, -1 if -1 in counts else known.pop())]
        ends = [list(accumulate(split.rows for split in each)) for each in splits]
        made, start = [], 0
        while start < counts[0]:
            stop = min(max(each[bisect_right(each, start)] for each in ends), self._most)
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
