"""Sources that take files whole: a split is a run of neighbouring files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millrace.core.input_files import FileState
from millrace.core.work import Split
from millrace.sources.filed import FileSource, Found

SPLITS = 64  # about so many, where that makes them neither less than a file nor huge
SPLIT_BYTES = 8 << 20
SPLIT_FILES = 256


def runs(sizes: Sequence[int]) -> Iterator[tuple[range, int]]:
    """Group neighbouring files up to a 64th of all bytes, 8 MiB, or 256 files; yield which, and their bytes."""
    most = min(sum(sizes) // SPLITS, SPLIT_BYTES)
    start = held = 0
    for number, size in enumerate(sizes):
        if number > start and (held + size > most or number - start >= SPLIT_FILES):
            yield range(start, number), held
            start, held = number, 0
        held += size
    if sizes:
        yield range(start, len(sizes)), held


class WholeFileSource(FileSource[Found]):
    """A source of which each row is a file. ``start`` and ``stop`` of its splits number files."""

    def files_of(self, split: Split) -> range:
        """Return the numbers of the files that a split reads."""
        return range(split.start, split.stop)

    def splits(self) -> list[Split]:
        """Group neighbouring files up to a 64th of all bytes in memory, 8 MiB, or 256 files."""
        return self.splits_from(0)

    def splits_from(self, first: int) -> list[Split]:
        """Group the files from number ``first`` on, as ``splits`` does all."""
        found = runs(self._sizes(self._look())[first:])
        return [
            Split(run.start + first, run.start + first, run.stop + first, len(run), size)
            for run, size in found
        ]

    def _states(self, split: Split, columns: Sequence[str] | None) -> Sequence[FileState | None]:
        """Check the files, unless all that is asked for is their names."""
        opens = columns is None or not set(columns) <= {"path"}
        return super()._states(split, columns) if opens else ()

    def locate(self, split: Split, row: int) -> str:
        """Name the file."""
        return self._file(split.start + row).path

    def _sizes(self, found: Found) -> Sequence[int]:
        """Estimate how many bytes each file is in memory."""
        return [file.size for file in self._files]
