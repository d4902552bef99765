"""Base of the sources of files: which files, and what planning learned about them."""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Generic, Self, TypeAlias, TypeGuard, TypeVar

from headrace.core.files.formats import reader_of
from headrace.core.files.input_files import FileState, InputFile, Mark, check_unchanged
from headrace.core.files.storage import Storage, given, signed_alike, storage_at
from headrace.core.source_ports import Bad, Keys, Location, Numbers, Source, file_keys, keyed, row_keys
from headrace.core.stores.addresses import checked, with_anonymous
from headrace.core.stores.objects import contents
from headrace.core.work import Split
from headrace.errors import ArgumentError, NothingMatched, SchemaMismatch, UnreadableFile

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sources.schemas import FolderColumns


PATH = "path"
"""The column with a file's path."""

# ------------------------------------------------------------ path arguments


PathArgument: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


def given_paths(paths: PathArgument) -> list[Storage]:
    """Return what path arguments stand for: full paths, with their patterns as they are, and addresses."""
    listed: list[object] = list(paths) if _is_several(paths) else [paths]
    if not listed:
        raise ArgumentError("The list of input paths is empty; give at least one file, folder or pattern.")
    return [given(_text(path), "The input path") for path in listed]


def _is_several(paths: object) -> TypeGuard[Sequence[object]]:
    return isinstance(paths, Sequence) and not isinstance(paths, (str, bytes))


def _text(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"An input path is a string, an os.PathLike, or a list of these, not {path!r}.")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise ArgumentError(f"An input path is text, not {text!r}; decode it with os.fsdecode first.")
    if not text:
        raise ArgumentError("An input path is empty; use '.' for the current folder.")
    return text


Inspected = TypeVar("Inspected")
_StatesRead: TypeAlias = "OrderedDict[tuple[int, int, int], Sequence[FileState | None]]"

_REMEMBERED = 16  # splits; a worker reads fewer at the same time


class FileSource(Source, Generic[Inspected]):
    """A source whose splits lie in files. ``Inspected`` is what planning learns from these; workers get it, too.

    Files are listed when they are first needed, and again by ``splits``, where a run begins.
    """

    kind: ClassVar[str] = ""  # by which a run knows the source, unless ``describe`` is another
    suffixes: ClassVar[tuple[str, ...] | None] = None
    reads_objects: ClassVar[bool] = False  # whether files are opened by ``core.stores.objects`` only

    def __init__(self, paths: PathArgument, *, include_paths: bool = False) -> None:
        """``paths``: a file, a folder, a glob, or a list of these.

        ``include_paths``: the column ``path`` comes behind those of ``read_rows``; then each split lies in one file.
        """
        given = given_paths(paths)
        self.paths, self._storage = tuple(each.path for each in given), signed_alike(given)
        self._include_paths = include_paths
        self._extensions: tuple[str, ...] = ()
        for each in () if self.reads_objects else given:
            each.on_disk(
                f"Cannot read {each.path!r}: {type(self).__name__} reads local files only. A source that opens its "
                "files with headrace.core.stores.objects must set reads_objects = True."
            )
        self._pins: tuple[str, ...] | None = None
        self._files: list[InputFile] = []
        self._marks: Sequence[Mark] = ()
        self._inspected: Inspected | None = None
        self._states_read: _StatesRead = OrderedDict()

    def in_store(self, storage_options: Mapping[str, Any] | None) -> Self:
        """Say what the store needs to know that is no secret; returns the source. Refuses what it cannot use."""
        self._storage = checked(with_anonymous(storage_options) if self._storage else storage_options)
        if self._storage and not any(storage_at(path, self._storage).options for path in self.paths):
            raise ArgumentError(
                "storage_options are for addresses such as s3://bucket/key; all paths are local."
            )
        return self

    @abstractmethod
    def inspect(self, files: list[InputFile]) -> Inspected:
        """Return what planning and reading need to know about the files: once, in the driver."""

    @abstractmethod
    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split, as ``read`` promises; ``read`` has looked whether its files are those of the plan."""

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split, if its files are those of the plan; ``check_unchanged`` checks it again afterwards."""
        self._states_read[split.file, split.start, split.stop] = self._states(split, columns)
        if len(self._states_read) > _REMEMBERED:
            self._states_read.popitem(last=False)
        folders = self.folder_columns()
        added = {*(folders.names if folders else ()), *([PATH] if self._include_paths else ())}
        own = None if columns is None else [name for name in columns if name not in added]
        if not added or (columns is not None and own == [*columns]):
            return self.read_rows(split, columns, batch_rows, bad)
        return self._placed(split, columns, own, batch_rows, bad)

    def schema(self) -> pa.Schema:
        """Return the columns. Default: those of the schema that was inspected, and what says where files lie."""
        inspected: Any = self.inspected()
        return self.with_places(inspected.schema)

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        return {
            "kind": self.kind,
            "paths": list(self.paths),
            "include_paths": self._include_paths,
            **self.options(),
        }

    def options(self) -> dict[str, Any]:
        """Return those of the source's own options that decide which rows there are, as plain values."""
        return {}

    def folder_columns(self) -> FolderColumns | None:
        """Return the columns that come from folders, behind those of ``read_rows``. Default: none."""
        return None

    def with_places(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of what ``read`` gives, if that of ``read_rows`` is this one."""
        if (folders := self.folder_columns()) is not None:
            schema = folders.add_to_schema(schema)
        if not self._include_paths:
            return schema
        if PATH in schema.names:
            raise SchemaMismatch(
                f"include_paths=True adds a column {PATH!r}, and the files have one of that name. Leave that column "
                "out with columns=[…], or read without include_paths."
            )
        import pyarrow as pa

        return schema.append(pa.field(PATH, pa.string()))

    def _placed(
        self,
        split: Split,
        columns: Sequence[str] | None,
        own: Sequence[str] | None,
        batch_rows: int,
        bad: Bad | None,
    ) -> Iterator[pa.RecordBatch]:
        """Read a split with columns that say where its files lie, behind its ``own``."""
        import pyarrow as pa

        from headrace.sources.schemas import beside

        folders, row = self.folder_columns(), 0

        def passed(first: int, count: int, error: Exception) -> None:
            nonlocal row
            row = first + count
            assert bad is not None
            bad(first, count, error)

        for batch in self.read_rows(split, own, batch_rows, None if bad is None else passed):
            stop = row + batch.num_rows
            added = folders.values(self.file(split.file).path, batch.num_rows) if folders else []
            if self._include_paths:
                added.append((pa.field(PATH, pa.string()), self._paths(split, range(row, stop))))
            row = stop
            yield beside(batch, added, columns)

    def _paths(self, split: Split, rows: range) -> pa.Array:
        """Return the paths of the files in which these rows of a split stand."""
        from headrace.sources.schemas import repeated

        return repeated(self.file(split.file).path, len(rows))

    def check_unchanged(self, split: Split) -> None:
        """Raise ``InputChanged`` unless the files of a split are what they were when ``read`` was called."""
        numbers = self.files_of(split)
        states = self._states_read.get((split.file, split.start, split.stop), [None] * len(numbers))
        for number, state in zip(numbers, states, strict=False):
            check_unchanged(self.file(number), state)

    def _states(self, split: Split, columns: Sequence[str] | None) -> Sequence[FileState | None]:
        """Check the files that will be read for a split, and return their states."""
        return [check_unchanged(self.file(number)) for number in self.files_of(split)]

    def refreshed(self) -> Inspected:
        """List the files; inspect them, unless they are those that were inspected before."""
        files = self._listed() if self._pins is None else self._recorded(self._pins)
        if self._inspected is None or files != self._files:
            self._inspected = self.inspect(files)
            self._files, self._marks = files, ()
        return self._inspected

    def only_extensions(self, extensions: tuple[str, ...]) -> None:
        """Read only files whose names end in one of these, in lower case and with the dot."""
        self._extensions = extensions
        self._files, self._marks, self._inspected = [], (), None

    def _listed(self) -> list[InputFile]:
        places = [storage_at(path, self._storage) for path in self.paths]
        files = [file for place in places for file in place.expanded(self._extensions or self.suffixes)]
        if not self._extensions:
            return files
        chosen = [file for file in files if str(file.path).lower().endswith(self._extensions)]
        if files and not chosen:
            raise NothingMatched(
                f"None of the {len(files)} files at {self.paths[0]!r} ends in {', '.join(self._extensions)}."
            )
        return chosen

    def _recorded(self, paths: Sequence[str]) -> list[InputFile]:
        files = [storage_at(path, self._storage) for path in paths]
        if not any(file.latency for file in files):
            return [file.record() for file in files]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(16, thread_name_prefix="objects") as threads:
            return list(threads.map(lambda file: file.record(), files))

    def inspected(self) -> Inspected:
        return self.refreshed() if self._inspected is None else self._inspected

    def file(self, number: int) -> InputFile:
        """Return path, size and time of the file with this number, as they were when the source was planned."""
        self.inspected()
        file = self._files[number]
        return file._replace(mark=self._marks[number]) if self._marks else file

    def note_marks(self, marks: Sequence[Mark]) -> None:
        """Keep the marks of the files."""
        self._marks = tuple(marks)

    def __getstate__(self) -> dict[str, Any]:
        self.inspected()  # workers must not list and inspect files themselves
        # Plain tuples: cloudpickle looks up each object of another class in what it knows of.
        plain = {"_files": [file[:3] for file in self._files], "_marks": tuple(map(tuple, self._marks))}
        return {**self._without_handles(), **plain}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = [InputFile(*file) for file in self._files]
        self._marks = [Mark(*mark) for mark in self._marks]

    def _without_handles(self) -> dict[str, Any]:
        return {**self.__dict__, "_states_read": OrderedDict()}

    def files(self) -> list[tuple[str, int, int]]:
        """Return ``(path, size, mtime_ns)`` of each file; of an object, a number made of its version."""
        self.inspected()
        return [(str(file.path), file.size, file.mtime_ns) for file in self._files]

    def files_of(self, split: Split) -> range:
        """Return the number of the file that a split lies in."""
        return range(split.file, split.file + 1)

    def row_keys(self, split: Split, numbers: Numbers) -> Keys:
        """Return a key for each row, by its file's path and its number there."""
        return row_keys(*keyed(self.file(self.files_of(split)[0]).path, split, numbers))

    def splits(self) -> list[Split]:
        """List the splits in input order. Default: a split for each file."""
        self.refreshed()
        return [
            Split(number, 0, file.size, bytes=max(1, file.size)) for number, file in enumerate(self._files)
        ]

    def splits_from(self, file: int) -> list[Split] | None:
        """List the splits of the files from number ``file`` on; none of them reads a file before."""
        if file >= len(self.files()):
            return []
        return [split for split in self.splits() if split.file >= file]

    def pinned(self, paths: Sequence[str]) -> Self:
        """Return this source with exactly these files, in this order."""
        copy = object.__new__(type(self))
        copy.__dict__ = {
            **self._without_handles(),
            "_pins": tuple(paths),
            "_files": [],
            "_marks": (),
            "_inspected": None,
        }
        return copy


SPLITS = 64  # about so many, where that makes them neither less than a file nor huge
SPLIT_BYTES = 8 << 20
SPLIT_FILES = 256
_READ_AT_ONCE = 64 << 20  # bytes of a file


def runs(sizes: Sequence[int], rows: int = 0, most: int | None = None) -> Iterator[tuple[range, int]]:
    """Group neighbouring files up to ``most`` bytes, and up to 256 files; yield which, and their bytes.

    Without ``most``: up to a 64th of all bytes, or 8 MiB.

    With ``rows``, a group ends at each multiple of so many files, or holds a multiple of them.
    """
    if most is None:
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
    if any(file.in_store for file in files):
        yield from map(io.BytesIO, contents([file.path for file in files]))
    else:
        yield from repeat(None, len(files))


def content(file: InputFile) -> BinaryIO:
    """Return a file's bytes, read at once; a big file stays on disk, and is read as it is decoded."""
    if file.size > _READ_AT_ONCE:
        return open(file.path, "rb")
    with open(file.path, "rb") as data:
        return io.BytesIO(data.read(_READ_AT_ONCE))


# ------------------------------------------------------------ files that a library reads


BATCH_BYTES = 64 << 20
Row = TypeVar("Row")


def batches_of(
    rows: Iterable[tuple[Row, int] | UnreadableFile],
    batch: Callable[[list[Row]], pa.RecordBatch],
    batch_rows: int,
    bad: Bad | None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows, which come with their bytes, as batches; one ends early at 64 MiB, and before a bad row."""
    held: list[Row] = []
    size = 0
    for number, row in enumerate(rows):
        if isinstance(row, UnreadableFile):
            if bad is None:
                raise row
            if held:
                yield batch(held)
            held, size = [], 0
            bad(number, 1, row.with_traceback(None))
            continue
        if held and size + row[1] > BATCH_BYTES:
            yield batch(held)
            held, size = [], 0
        held.append(row[0])
        size += row[1]
        if len(held) >= batch_rows:
            yield batch(held)
            held, size = [], 0
    if held:
        yield batch(held)


def damaged(what: str, error: Exception | str, path: str = "", reader: str = "") -> UnreadableFile:
    """Return the error for a file, or a part of it, that cannot be read, as ``error`` says.

    With ``path`` and ``reader``: the message names the reader that is for a file of this name, if it is another.
    """
    reason = (isinstance(error, OSError) and error.strerror) or str(error).rstrip(".") or type(error).__name__
    made = UnreadableFile(
        f"Cannot read {what}: {reason}. Restore the file or leave it out of the input.{another_reader(path, reader)}"
    )
    made.__cause__ = error if isinstance(error, Exception) else None
    return made


def another_reader(path: str, mine: str) -> str:
    """Return `` By its name, read_csv reads it.``, or an empty string where ``mine`` does or none is known."""
    other = reader_of(path)
    return f" By its name, {other} reads it." if other not in ("", mine) else ""


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

    def _paths(self, split: Split, rows: range) -> pa.Array:
        from headrace.core.arrow.values import column_from

        files = self._files[split.start + rows.start : split.start + rows.stop]
        return column_from([file.path for file in files])

    def _states(self, split: Split, columns: Sequence[str] | None) -> Sequence[FileState | None]:
        """Check the files, unless all that is asked for is their names."""
        opens = columns is None or not set(columns) <= {PATH}
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
