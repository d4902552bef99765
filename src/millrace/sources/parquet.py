"""Parquet files, read row group by row group.

Nothing here imports pyarrow before it is needed: a driver starts its workers first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from millrace.core.work import Split
from millrace.errors import ArgumentError
from millrace.sources.files import InputFile, PathArgument, absolute_paths, check_unchanged, expand

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.sources.parquet_files import Footer, OpenFile

SUFFIXES = (".parquet", ".pq", ".parq")
MERGE_BELOW = 1 << 20  # neighbouring row groups are read as one split up to so many decoded bytes
_KEEP_OPEN = 4


class ParquetSource:
    """Reads Parquet files as one table; a split is a range of row groups of one file.

    Parameters
    ----------
    paths:
        A file, a folder, a glob, or a list of these.
    columns:
        Names of the columns to read, in this order; None reads all. Top-level names only: a nested column
        comes whole.
    partitioning:
        ``"hive"`` adds the ``key=value`` folders directly above a file as columns after the file's own: int64
        where every value is an integer, else string. A file's own column of that name wins. None: no columns
        from folders.
    """

    def __init__(
        self,
        paths: PathArgument,
        *,
        columns: Sequence[str] | None = None,
        partitioning: Literal["hive"] | None = "hive",
    ) -> None:
        if partitioning not in ("hive", None):
            raise ArgumentError(f"partitioning is 'hive' or None, not {partitioning!r}.")
        if isinstance(columns, str):
            raise ArgumentError(f"columns is a list of names; write columns=[{columns!r}].")
        self._paths = absolute_paths(paths)
        self._columns = None if columns is None else tuple(columns)
        self._partitioning = partitioning
        self._files: list[InputFile] = []
        self._schema: pa.Schema | None = None
        self._footers: list[Footer] | None = None
        self._open: dict[int, OpenFile] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_footers": None, "_open": {}}

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        return {
            "kind": "parquet",
            "paths": list(self._paths),
            "columns": None if self._columns is None else list(self._columns),
            "partitioning": self._partitioning,
        }

    def schema(self) -> pa.Schema:
        """Return the schema of all files together; opens their footers the first time."""
        if self._schema is None:
            self._look()
        return self._schema

    def files(self) -> list[tuple[str, int, int]]:
        """Return ``(path, size, mtime_ns)`` of each file."""
        if not self._files:
            self._look()
        return list(self._files)

    def splits(self) -> list[Split]:
        """List the row-group ranges, file by file."""
        return [
            split
            for number, footer in enumerate(self._look())
            for split in footer.splits(number, MERGE_BELOW)
        ]

    def read(self, split: Split, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read a range of row groups."""
        return self._opened(split.file).read(split.start, split.stop, columns, batch_rows)

    def locate(self, split: Split, row: int) -> str:
        """Name the file and the row in it, counted from 0."""
        return f"{self._files[split.file].path}, row {split.first + row}"

    def close(self) -> None:
        """Close the files kept open between splits."""
        while self._open:
            self._open.popitem()[1].close()

    def _look(self) -> list[Footer]:
        """List the files and read what footers are not known yet."""
        from millrace.sources import parquet_files

        files = expand(self._paths, SUFFIXES)
        if self._footers is None or files != self._files:
            self._footers = parquet_files.read_footers(files, self._columns)
            self._schema = parquet_files.unified(
                files, self._footers, self._columns, hive=self._partitioning == "hive"
            )
            self._files = files
        return self._footers

    def _opened(self, number: int) -> OpenFile:
        opened = self._open.pop(number, None)
        if opened is None:
            from millrace.sources.parquet_files import OpenFile

            file = self._files[number]
            check_unchanged(file)
            opened = OpenFile(file.path, self.schema(), hive=self._partitioning == "hive")
            if len(self._open) >= _KEEP_OPEN:
                # Dropped, not closed: an iterator over an earlier split may still read from it.
                del self._open[next(iter(self._open))]
        self._open[number] = opened
        return opened
