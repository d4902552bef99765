"""Base of the sources of files of records that end with lines, CSV and JSON. Arrow is imported where it is used."""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.core.files.input_files import InputFile
from headrace.core.files.storage import storage_at
from headrace.core.source_ports import Bad, Location
from headrace.core.work import Split
from headrace.errors import ArgumentError
from headrace.sources.file_source import SPLITS, FileSource, Inspected, PathArgument

if TYPE_CHECKING:
    import pyarrow as pa

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
        if partitioning not in ("hive", None):
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

        return records.inspect(files, self.format(), hive=self._partitioning is not None)

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
