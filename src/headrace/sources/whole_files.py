"""Sources that read files whole: a split is a run of neighbouring files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import BinaryIO

from headrace.core.files.input_files import FileState, InputFile
from headrace.core.row_keys import Keys, Location, Numbers, file_keys
from headrace.core.stores.objects import ObjectPath, contents
from headrace.core.work import Split
from headrace.sources.file_source import FileSource, Inspected

SPLITS = 64  # about so many, where that makes them neither less than a file nor huge
SPLIT_BYTES = 8 << 20
SPLIT_FILES = 256
_READ_AT_ONCE = 64 << 20  # bytes of a file


def runs(sizes: Sequence[int], rows: int = 0) -> Iterator[tuple[range, int]]:
    """Group neighbouring files up to a 64th of all bytes, 8 MiB, or 256 files; yield which, and their bytes.

    With ``rows``, a group ends at each multiple of so many files, or holds a multiple of them.
    """
    most = min(sum(sizes) // SPLITS, SPLIT_BYTES)
    start = 0
    while start < len(sizes):
        stop, held = start + 1, sizes[start]
        while stop < len(sizes) and held + sizes[stop] <= most and stop - start < SPLIT_FILES:
            held += sizes[stop]
            stop += 1
        if rows and stop // rows * rows > start:
            stop = stop // rows * rows
            held = sum(sizes[start:stop])
        yield range(start, stop), held
        start = stop


def fetched(files: Sequence[InputFile]) -> Iterator[BinaryIO | None]:
    """Yield the contents of objects, many of which are fetched at a time; None for files, which are opened later."""
    if any(isinstance(file.path, ObjectPath) for file in files):
        yield from map(io.BytesIO, contents([file.path for file in files]))
    else:
        yield from repeat(None, len(files))


def content(file: InputFile) -> BinaryIO:
    """Return a file's bytes, read at once; a big file stays on disk, and is read as it is decoded."""
    if file.size > _READ_AT_ONCE:
        return open(file.path, "rb")
    with open(file.path, "rb") as data:
        return io.BytesIO(data.read(_READ_AT_ONCE))


class WholeFileSource(FileSource[Inspected]):
    """A source of which each row is a file. ``start`` and ``stop`` of its splits number files."""

    def files_of(self, split: Split) -> range:
        """Return the numbers of the files that a split reads."""
        return range(split.start, split.stop)

    def splits(self) -> list[Split]:
        """Group neighbouring files up to a 64th of all bytes in memory, 8 MiB, or 256 files."""
        return self._groups()

    def splits_from(self, file: int) -> list[Split]:
        """Group the files from number ``file`` on, as ``splits`` does all."""
        return self._groups(file)

    def splits_in_batches(self, rows: int) -> list[Split]:
        """Group files as ``splits`` does, so that groups end where batches of ``rows`` rows do."""
        return self._groups(rows=rows)

    def _groups(self, first: int = 0, rows: int = 0) -> list[Split]:
        groups = runs(self._sizes(self.refreshed())[first:], rows)
        return [
            Split(run.start + first, run.start + first, run.stop + first, len(run), size)
            for run, size in groups
        ]

    def _states(self, split: Split, columns: Sequence[str] | None) -> Sequence[FileState | None]:
        """Check the files, unless all that is asked for is their names."""
        opens = columns is None or not set(columns) <= {"path"}
        return super()._states(split, columns) if opens else ()

    def locate(self, split: Split, row: int) -> Location:
        """Name the file."""
        return Location(self.file(split.start + row).path)

    def row_keys(self, split: Split, numbers: Numbers) -> Keys:
        """Return a key for each file, by its path."""
        return file_keys([self.file(split.start + int(number)).path for number in numbers])

    def _sizes(self, inspected: Inspected) -> Sequence[int]:
        """Estimate how many bytes each file is in memory."""
        return [file.size for file in self._files]
