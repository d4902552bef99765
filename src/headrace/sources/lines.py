"""Files of lines: each is a row, or a record as in CSV and JSON; and files each of which is a row.

Big plain files of lines are read in byte ranges, small ones together. Arrow is imported where it is used.
"""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.core.files.formats import COMPRESSIONS
from headrace.core.files.input_files import InputFile
from headrace.core.files.storage import storage_at
from headrace.core.source_ports import Bad, Location
from headrace.core.work import Split
from headrace.errors import ArgumentError, UnreadableFile
from headrace.sources.file_source import (
    PATH,
    SPLITS,
    FileSource,
    Inspected,
    PathArgument,
    WholeFileSource,
    batches_of,
    runs,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sources.line_reader import Lines
    from headrace.sources.records import Layout, RecordFormat, RecordReader
    from headrace.sources.schemas import FolderColumns


class BlockSource(FileSource[Inspected]):
    """Reads files of lines, plain or compressed, of which big plain ones are cut into blocks.

    Parameters
    ----------
    block_bytes
        How many bytes a split has at least. None: a 64th of all files together, 128 KiB to 8 MiB.
    """

    reads_objects = True
    objects: ClassVar[bool] = False  # whether each line is one of JSON

    def __init__(
        self, paths: PathArgument, *, include_paths: bool = False, block_bytes: int | None = None
    ) -> None:
        if block_bytes is not None and block_bytes < 1:
            raise ArgumentError(f"block_bytes is at least 1, not {block_bytes}.")
        super().__init__(paths, include_paths=include_paths)
        self._block_bytes = block_bytes

    def likely_rows(self) -> int:
        """Return about how many lines there are."""
        from headrace.sources.text import likely_lines

        return likely_lines(self._files, objects=self.objects)

    def block(self) -> int:
        """Return how many bytes a split has at least: a 64th of all, as far as ``Storage.blocks`` lets."""
        least, most = storage_at(self._files[0].path if self._files else "").blocks
        return self._block_bytes or min(max(sum(file.size for file in self._files) // SPLITS, least), most)


def check_encoding(encoding: object) -> None:
    """Refuse what is no encoding of text."""
    try:
        if isinstance(encoding, str):
            "".encode(encoding)
            codecs.getincrementaldecoder(encoding)
            return
    except LookupError:  # it is unknown, or none of text
        pass
    raise ArgumentError(f"There is no text encoding {encoding!r}; try 'utf-8' or 'latin1'.")


class LineSource(BlockSource["Layout"]):
    """Reads files of records as one table; a split is a range of bytes between two of them, or a compressed file.

    Compression is recognised by the files' first bytes. The types are settled once, from the first megabyte of every
    file: a later value that does not fit is an error, never another type.

    Parameters
    ----------
    partitioning
        As for ``ParquetSource``: ``"hive"`` adds the ``key=value`` folders directly above a file as columns.
    """

    def __init__(
        self,
        paths: PathArgument,
        *,
        partitioning: Literal["hive"] | None = "hive",
        include_paths: bool = False,
        block_bytes: int | None = None,
    ) -> None:
        if partitioning not in ("hive", "text", None):
            raise ArgumentError(f"partitioning is 'hive' or None, not {partitioning!r}.")
        super().__init__(paths, include_paths=include_paths, block_bytes=block_bytes)
        self._partitioning = partitioning

    @abstractmethod
    def format(self) -> RecordFormat:
        """Return how records are found."""

    @abstractmethod
    def reader(self, split: Split, columns: Sequence[str] | None) -> RecordReader:
        """Return what reads a split."""

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given; two of them only if they are not the usual ones, as ever."""
        described: dict[str, Any] = {"kind": self.kind, "paths": list(self.paths), **self.options()}
        if self._include_paths:
            described["include_paths"] = True
        if self._partitioning is None:
            described["partitioning"] = None
        return described

    def forms(self) -> Mapping[str, str]:
        """Return the forms of the columns that hold nulls in what the types are settled from."""
        layout = self.inspected()
        return {**layout.forms, **layout.folders.forms} if layout.folders else layout.forms

    def folder_columns(self) -> FolderColumns | None:
        return self.inspected().folders

    def inspect(self, files: list[InputFile]) -> Layout:
        from headrace.sources import records

        return records.inspect(files, self.format(), hive=self._partitioning)

    def splits(self) -> list[Split]:
        """Cut the files between records."""
        from headrace.sources import records

        layout = self.refreshed()
        return records.cut(self._files, layout, self.format(), self.block())

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split."""
        return self.reader(split, columns).read(batch_rows, bad)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the row in it, counted from 0. Reads the file up to there."""
        path, before = self.file(split.file).path, self.reader(split, None).rows_before()
        if before is None:
            return Location(path, detail=f"row {row} of the part that begins at byte {split.start:,}")
        return Location(path, before + row)


# ------------------------------------------------------------ each line is a row


_PACKED = 4  # text packs about so well


class TextSource(BlockSource["tuple[bool, ...]"]):
    """Reads each line of text files as one row: column ``text``, and ``path`` if asked for.

    A split is a range of bytes between two line ends, or a run of ``-stop`` whole files from ``file`` on.
    """

    kind = "text"

    def __init__(
        self,
        paths: PathArgument,
        *,
        encoding: str = "utf-8",
        drop_empty_lines: bool = False,
        include_paths: bool = False,
        block_bytes: int | None = None,
    ) -> None:
        check_encoding(encoding)
        super().__init__(paths, block_bytes=block_bytes)
        self._encoding = encoding
        self._drop_empty_lines = drop_empty_lines
        self._names_files = include_paths  # by itself: a batch may have lines of several files

    def options(self) -> dict[str, Any]:
        return {
            "encoding": self._encoding,
            "drop_empty_lines": self._drop_empty_lines,
            "include_paths": self._names_files,
        }

    def schema(self) -> pa.Schema:
        """Return the columns; lists the files first."""
        import pyarrow as pa

        self.inspected()
        fields = [pa.field("text", pa.string())]
        if self._names_files:
            fields.append(pa.field(PATH, pa.string()))
        return pa.schema(fields)

    def files_of(self, split: Split) -> range:
        """Return the numbers of the files that a split reads."""
        return range(split.file, split.file + max(1, -split.stop))

    def splits(self) -> list[Split]:
        """Cut big files at line ends, and group neighbours that are smaller than a block, up to 256 of them."""
        return self.splits_from(0)

    def splits_from(self, file: int) -> list[Split]:
        """Cut and group the files from number ``file`` on, as ``splits`` does all."""
        from headrace.sources import line_reader

        cuttable, block = self.refreshed(), self.block()
        files = [*zip(self._files, cuttable, strict=True)][file:]
        sizes = [each.size if plain else _PACKED * each.size for each, plain in files]
        splits: list[Split] = []
        for run, size in runs(sizes, most=block):
            first, (each, plain) = file + run.start, files[run.start]
            if plain and each.size > block:
                splits.extend(line_reader.splits_of(first, each, block))
            else:
                splits.append(Split(first, 0, -len(run), bytes=max(size, 1)))
        return splits

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split."""
        from headrace.sources import line_reader
        from headrace.sources.schemas import select

        target = select(self.schema(), columns)
        files = [self.file(number) for number in self.files_of(split)]
        parts = [(file.path, self._lines(split, file)) for file in files]
        return line_reader.read(parts, target, batch_rows, bad)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the line, counted from 1 as editors do. Reads the file up to there."""
        for number in self.files_of(split):
            file = self.file(number)
            line, row = self._lines(split, file).find(row)
            if line is not None:
                return Location(file.path, line, "line")
        return Location(file.path, detail="at its end")

    def _lines(self, split: Split, file: InputFile) -> Lines:
        from headrace.sources.line_reader import Lines

        return Lines(file.path, split, self._encoding, self._drop_empty_lines)

    def inspect(self, files: list[InputFile]) -> tuple[bool, ...]:
        """Say which files can be cut."""
        from headrace.sources import line_reader

        return line_reader.uncompressed(files, self._encoding)


# ------------------------------------------------------------ whole files


_SMALL = (1 << 31) - 1  # what the offsets of a plain binary column can count


class BinarySource(WholeFileSource[bool]):
    """Reads each file as one row: column ``bytes``, and ``path`` if asked for; a split is a run of small files."""

    kind = "binary"
    reads_objects = True

    def __init__(
        self, paths: PathArgument, *, include_paths: bool = False, compression: Literal["infer"] | None = None
    ) -> None:
        if compression not in ("infer", None):
            raise ArgumentError(f"compression={compression!r}: it is 'infer', or None for bytes as they are.")
        super().__init__(paths, include_paths=include_paths)
        self._unpacks = compression is not None

    def options(self) -> dict[str, Any]:
        return {"unpacks": True} if self._unpacks else {}

    def schema(self) -> pa.Schema:
        """Return the columns; ``bytes`` is ``large_binary`` only if a file has 2 GiB or more."""
        import pyarrow as pa

        large = self.inspected()
        return self.with_places(pa.schema([("bytes", pa.large_binary() if large else pa.binary())]))

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the files of a split; a batch ends early at 64 MiB."""
        from headrace.sources.schemas import select

        target = select(self.schema(), ["bytes"] if columns is None else columns)
        files = [self.file(number) for number in self.files_of(split)]
        return batches_of(
            ((file, file.size) for file in files), lambda some: self._batch(some, target), batch_rows, bad
        )

    def inspect(self, files: list[InputFile]) -> bool:
        """Say whether a file is too large for a plain binary column."""
        return any(file.size > _SMALL for file in files)

    def _batch(self, files: list[InputFile], target: pa.Schema) -> pa.RecordBatch:
        import pyarrow as pa

        from headrace.core.arrow.batch import empty_columns
        from headrace.core.arrow.values import column_from

        if not len(target):
            return empty_columns(len(files))
        column = column_from(_contents(files, unpacks=self._unpacks)).cast(target.field("bytes").type)
        return pa.RecordBatch.from_arrays([column], schema=target)


def _contents(files: list[InputFile], *, unpacks: bool) -> list[bytes | memoryview]:
    from headrace.core.stores.objects import contents

    read: list[bytes | memoryview] = []
    endings = tuple(COMPRESSIONS)
    try:
        for file, data in zip(files, contents([file.path for file in files]), strict=True):
            packed = unpacks and file.path.lower().endswith(endings)
            read.append(_unpacked(file.path, data) if packed else data)
    except OSError as error:
        path = files[len(read)].path
        raise UnreadableFile(f"Cannot read input file {path!r}: {error.strerror}.") from error
    return read


def _unpacked(path: str, data: bytes | memoryview) -> bytes | memoryview:
    """Unpack what is compressed by its first bytes, too: ``.gz`` may hold anything."""
    import pyarrow as pa

    from headrace.sources.text import compression_in

    compression = compression_in(bytes(data[:4]))
    if compression is None:
        return data
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), compression) as stream:
            unpacked: bytes = stream.read()
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(
            f"Cannot unpack {path!r}, which is {compression} by its first bytes: {error}. Restore the file, or read "
            "its bytes as they are with compression=None."
        ) from error
    if len(unpacked) > _SMALL:
        raise UnreadableFile(
            f"{path!r} unpacks to more than 2 GiB, which is more than a value can hold: say compression=None, and "
            "unpack it in a function."
        )
    return unpacked
