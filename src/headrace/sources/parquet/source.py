"""Parquet files, read row group by row group, or in pieces of row groups where there are few.

Nothing here imports pyarrow before it is needed: a driver starts its workers first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.hive import hive_values
from headrace.core.files.input_files import FileState, InputFile
from headrace.core.source_ports import Bad, Keys, Location, Numbers, PlainFile, row_keys
from headrace.core.work import Split
from headrace.errors import ArgumentError
from headrace.sources.file_source import FileSource, PathArgument

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.parquet.chunks import ChunkFile
    from headrace.sources.parquet.files import Grain, ParquetLayout
    from headrace.sources.parquet.reader import OpenFile, Selections
    from headrace.sources.parquet.together import SmallFiles

MERGE_BELOW = 1 << 20  # neighbouring row groups are read as one split up to so many decoded bytes
_KEEP_OPEN = 4
_KEEP_CHUNKS = 16


class ParquetSource(FileSource["ParquetLayout"]):
    """Reads Parquet files as one table.

    A split is a range of row groups of one file, or a piece of one, or ``-stop`` small files from ``file`` on.
    """

    suffixes = suffixes_read_by("read_parquet")
    has_chunks = True
    worker_imports: ClassVar[tuple[str, ...]] = (
        "headrace.sources.parquet.source",
        "headrace.sources.parquet.together",
    )
    reads_objects = True

    def __init__(
        self,
        paths: PathArgument,
        *,
        columns: Sequence[str] | None = None,
        partitioning: Literal["hive"] | None = "hive",
        schema: pa.Schema | None = None,
        include_paths: bool = False,
    ) -> None:
        if partitioning not in ("hive", "text", None):
            raise ArgumentError(f"partitioning is 'hive' or None, not {partitioning!r}.")
        if isinstance(columns, str):
            raise ArgumentError(f"columns is a list of names; write columns=[{columns!r}].")
        if schema is not None and not (hasattr(schema, "names") and hasattr(schema, "serialize")):
            raise ArgumentError(f"schema is a pyarrow.Schema, not {type(schema).__name__}.")
        super().__init__(paths, include_paths=include_paths)
        self._given = schema
        self._columns = None if columns is None else tuple(columns)
        self._partitioning = partitioning
        self._open: dict[int, OpenFile] = {}
        self._schemas: Selections | None = None
        self._grain_of: tuple[ParquetLayout, Grain] | None = None  # of these files
        self._chunks: dict[int, tuple[ChunkFile, frozenset[str]]] = {}
        self._seen: dict[int, FileState | None] = {}  # of the files that are open

    def _without_handles(self) -> dict[str, Any]:
        dropped: dict[str, Any] = {
            "_open": {},
            "_seen": {},
            "_chunks": {},
            "_schemas": None,
            "_grain_of": None,
        }
        return {**super()._without_handles(), **dropped}

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        return {
            "kind": "parquet",
            "paths": list(self.paths),
            "columns": None if self._columns is None else list(self._columns),
            "partitioning": "hive" if self._partitioning else None,
            **({"schema": {f.name: str(f.type) for f in self._given}} if self._given is not None else {}),
            **({"include_paths": True} if self._include_paths else {}),
        }

    def forms(self) -> Mapping[str, str]:
        """Return the forms of the columns that may hold nulls: by the statistics of all files, or their schemas."""
        return self.inspected().forms

    def splits(self) -> list[Split]:
        """List the row-group ranges, file by file; of a few row groups, pieces; of many small files, some together.

        A piece has fewer rows than its row group; ``first`` is the row where it begins.
        """
        return self._splits_from(0)

    def splits_from(self, file: int) -> list[Split] | None:
        """List the splits of the files from number ``file`` on."""
        return self._splits_from(file)

    def _splits_from(self, file: int) -> list[Split]:
        from headrace.sources.parquet.together import splits_of

        footers = self.refreshed().footers
        grain = self._grain()
        if not self._include_paths:
            return splits_of(self._files, footers, grain, file)
        numbers = range(file, len(footers))
        return [split for number in numbers for split in footers[number].splits(number, grain)]

    def splits_alone(self, file: int) -> list[Split] | None:
        """List the splits of one file, which may be one of the small ones that are read together."""
        return list(self.inspected().footers[file].splits(file, self._grain()))

    def _grain(self) -> Grain:
        from headrace.sources.parquet.files import Grain

        layout = self.inspected()
        if self._grain_of is None or self._grain_of[0] is not layout:
            remote = any(file.in_store for file in self._files)
            self._grain_of = layout, Grain.of(layout.footers, MERGE_BELOW, objects=remote)
        return self._grain_of[1]

    def files_of(self, split: Split) -> range:
        """Return the numbers of the files that a split reads: one, or ``-stop`` small ones."""
        return range(split.file, split.file + max(1, -split.stop))

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a range of row groups, or a piece of one; or small files."""
        if split.stop < 0:
            return self._small_files(split, columns).read(batch_rows, bad)
        return self._opened(split.file).rows(split, columns, batch_rows, bad)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the row in it, counted from 0."""
        if split.stop < 0:
            counts = self.inspected().counts
            for number in self.files_of(split):
                if row < counts[number] or number == self.files_of(split)[-1]:
                    return Location(self.file(number).path, row)
                row -= counts[number]
        return Location(self.file(split.file).path, split.first + row)

    def row_keys(self, split: Split, numbers: Numbers) -> Keys:
        """Return a key for each row, by its file's path and its number there."""
        if split.stop >= 0:
            return super().row_keys(split, numbers)
        import numpy as np

        files, counts = self.files_of(split), self.inspected().counts
        starts = np.cumsum([0, *(counts[number] for number in files)])
        places = np.searchsorted(starts, numbers, side="right") - 1
        keys = np.empty(len(numbers), np.uint64)
        for place in np.unique(places).tolist():
            mine = places == place
            keys[mine] = row_keys(self.file(files[place]).path, numbers[mine] - starts[place])
        return keys

    def plain_files(self) -> Sequence[PlainFile]:
        """Return the files, if all have the same columns, with the types in which they are read."""
        layout = self.inspected()
        own = layout.footers[0].schema if layout.footers else layout.schema
        lacking = [name for name in layout.schema.names if name not in own.names]
        kept = [field for field in layout.schema if field.name not in lacking]
        if (
            self._include_paths
            or len(set(own.names)) < len(own.names)
            or any(own.field(field.name).type != field.type for field in kept)
            or any(file.in_store for file in self._files)
            or not all(footer.schema is own or footer.schema.equals(own) for footer in layout.footers)
        ):
            return ()
        return [
            PlainFile(
                file.path, footer.rows, {name: self._folders_of(file.path).get(name) for name in lacking}
            )
            for file, footer in zip(self._files, layout.footers, strict=True)
        ]

    def close(self) -> None:
        """Close the files kept open between splits."""
        self._chunks.clear()
        while self._open:
            self._open.popitem()[1].close()

    def chunk_file(self, split: Split) -> tuple[ChunkFile, frozenset[str]]:
        """Return the file that a split lies in, and the columns that are read from it as they are there."""
        from headrace.core.parquet.chunks import MOST_FOOTERS, ChunkFile, ChunkObject
        from headrace.core.parquet.compact import NotUnderstood
        from headrace.sources.file_source import PATH

        if split.stop < 0:
            raise NotUnderstood("its row groups are small, and are put together")
        known = self._chunks.pop(split.file, None)
        if known is None:
            input_file = self.file(split.file)
            file = (ChunkObject if input_file.in_store else ChunkFile)(input_file)
            opened = self._opened(split.file)
            if [group.rows for group in file.footer.groups] != opened.group_rows():
                raise NotUnderstood("Arrow reads its row groups in another way")
            names = opened.unchanged_columns() - ({PATH} if self._include_paths else set())
            known = file, names
            room = MOST_FOOTERS - file.footer_size
            while self._chunks and (
                len(self._chunks) >= _KEEP_CHUNKS
                or sum(other.footer_size for other, _ in self._chunks.values()) > room
            ):
                del self._chunks[next(iter(self._chunks))]
        self._chunks[split.file] = known
        return known

    def _states(self, split: Split, columns: Sequence[str] | None) -> Sequence[FileState | None]:
        """Check the file where it is opened; one that stays open has the state of then. Small ones: see below."""
        if split.stop < 0:
            return [None] * -split.stop  # each is checked when it is read
        if split.file not in self._open:
            (self._seen[split.file],) = super()._states(split, columns)
        return [self._seen.get(split.file)]

    def inspect(self, files: list[InputFile]) -> ParquetLayout:
        from headrace.sources.parquet import files as parquet_files

        self._open.clear()
        self._chunks.clear()
        return parquet_files.inspect(files, self._columns, hive=self._partitioning, given=self._given)

    def _small_files(self, split: Split, columns: Sequence[str] | None) -> SmallFiles:
        from headrace.sources.parquet.together import SmallFiles

        layout, numbers = self.inspected(), self.files_of(split)
        states = self._states_read[split.file, split.start, split.stop]
        assert isinstance(states, list)
        files = [(number, self.file(number), layout.counts[number]) for number in numbers]
        return SmallFiles(files, self._selections().of(columns), columns, self._opened, states)

    def _selections(self) -> Selections:
        from headrace.sources.parquet.reader import Selections

        schema = self.inspected().schema
        if self._schemas is None or self._schemas.every is not schema:
            self._schemas = Selections(schema)
        return self._schemas

    def _folders_of(self, path: str) -> Mapping[str, str | None]:
        """Return the values of the columns that a file lacks, where they are known."""
        return hive_values(path) if self._partitioning else {}

    def _opened(self, number: int) -> OpenFile:
        opened = self._open.pop(number, None)
        if opened is None:
            from headrace.sources.parquet.reader import OpenFile

            file = self.file(number)
            opened = OpenFile(file, self._selections(), self._folders_of(file.path))
            if len(self._open) >= _KEEP_OPEN:
                # Dropped, not closed: an iterator over an earlier split may still read from it.
                oldest = next(iter(self._open))
                del self._open[oldest]
                self._seen.pop(oldest, None)
        self._open[number] = opened
        return opened
