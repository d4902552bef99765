"""What every source of files has in common: which files, and what was found out about them at planning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from millrace.core.input_files import FileState, InputFile, check_unchanged
from millrace.core.ports import Bad
from millrace.core.work import Split
from millrace.sources.files import PathArgument, absolute_paths, expand, record

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

Found = TypeVar("Found")
_Begun: TypeAlias = "OrderedDict[tuple[int, int, int], Sequence[FileState | None]]"

_REMEMBERED = 16  # splits; those that a worker reads by turns are fewer

BLOCKS = 64  # about so many, where that makes them neither tiny nor huge
LEAST_BLOCK = 128 << 10
MOST_BLOCK = 8 << 20


def block_of(files: Sequence[InputFile]) -> int:
    """Return how many bytes a split of text files has at least: a 64th of all, 128 KiB to 8 MiB."""
    return min(max(sum(file.size for file in files) // BLOCKS, LEAST_BLOCK), MOST_BLOCK)


class FileSource(ABC, Generic[Found]):
    """A source whose splits lie in files; ``Found`` is what planning learns from them, and it travels along.

    Files are listed when they are first needed, and again by ``splits``, where a run begins.
    """

    suffixes: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, paths: PathArgument) -> None:
        self._paths = absolute_paths(paths)
        self._pins: tuple[str, ...] | None = None
        self._files: list[InputFile] = []
        self._found: Found | None = None
        self._begun: _Begun = OrderedDict()

    @abstractmethod
    def _study(self, files: list[InputFile]) -> Found:
        """Find out what planning and reading need to know about the files."""

    @abstractmethod
    def _rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split, as ``read`` promises."""

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split, if its files are those of the plan; ``check_unchanged`` tells whether they stayed so."""
        self._begun[split.file, split.start, split.stop] = self._states(split, columns)
        if len(self._begun) > _REMEMBERED:
            self._begun.popitem(last=False)
        return self._rows(split, columns, batch_rows, bad)

    def check_unchanged(self, split: Split) -> None:
        """Raise ``InputChanged`` unless the files of a split are what they were when ``read`` was called."""
        numbers = self.files_of(split)
        states = self._begun.get((split.file, split.start, split.stop), [None] * len(numbers))
        for number, state in zip(numbers, states, strict=False):
            check_unchanged(self._file(number), state)

    def _states(self, split: Split, columns: Sequence[str] | None) -> Sequence[FileState | None]:
        """Check the files that will be read for a split, and return their states."""
        return [check_unchanged(self._file(number)) for number in self.files_of(split)]

    def _look(self) -> Found:
        """List the files; study them unless they are those that were studied before."""
        files = expand(self._paths, self.suffixes) if self._pins is None else [*map(record, self._pins)]
        if self._found is None or files != self._files:
            self._found = self._study(files)
            self._files = files
        return self._found

    def _known(self) -> Found:
        return self._look() if self._found is None else self._found

    def _file(self, number: int) -> InputFile:
        self._known()
        return self._files[number]

    def __getstate__(self) -> dict[str, Any]:
        self._known()  # workers must not look for themselves
        return self._without_handles()

    def _without_handles(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": OrderedDict()}

    def files(self) -> list[tuple[str, int, int]]:
        """Return ``(path, size, mtime_ns)`` of each file."""
        self._known()
        return list(self._files)

    def files_of(self, split: Split) -> range:
        """Return the number of the file that a split lies in."""
        return range(split.file, split.file + 1)

    @abstractmethod
    def splits(self) -> list[Split]:
        """List the splits in input order."""

    def splits_from(self, first: int) -> list[Split]:
        """List the splits of the files from number ``first`` on; none of them reads a file before."""
        return [split for split in self.splits() if split.file >= first]

    def pinned(self, paths: Sequence[str]) -> Self:
        """Return this source with exactly these files, in this order."""
        copy = object.__new__(type(self))
        copy.__dict__ = {**self._without_handles(), "_pins": tuple(paths), "_files": [], "_found": None}
        return copy

    def close(self) -> None:
        """Nothing stays open between splits, unless a source says otherwise."""
