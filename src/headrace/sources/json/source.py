"""JSON lines and arrays, plain or compressed; big plain files of lines are read in byte ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad, Location
from headrace.core.work import Split
from headrace.errors import ArgumentError
from headrace.sources.file_source import FileSource, PathArgument, block_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sources.json.layout import JsonLayout
    from headrace.sources.schemas import FolderColumns


class JsonSource(FileSource["JsonLayout"]):
    """Reads files of one JSON object per line as one table; a split is a range of lines, or a compressed file.

    A file that begins with ``[`` is one array of objects: it is one split, which is in memory while it is read.

    The schema is settled once. Without ``schema`` it is inferred from the first megabyte of every file, and a
    field that turns up later is an error; with it, other fields are passed over. A field that a line lacks is
    null.

    Parameters
    ----------
    paths
        A file, a folder, a glob, or a list of these. Compression is recognised by the files' first bytes.
    schema
        A ``pyarrow.Schema``, or None.
    partitioning
        As for ``ParquetSource``: ``"hive"`` adds the ``key=value`` folders directly above a file as columns.
    include_paths
        Whether to add the string column ``path``: the absolute path.
    block_bytes
        How many bytes a split has at least. None: a 64th of all files together, 128 KiB to 8 MiB.
    """

    suffixes = suffixes_read_by("read_json")
    reads_objects = True
    has_lines = True

    def __init__(
        self,
        paths: PathArgument,
        *,
        schema: pa.Schema | None = None,
        partitioning: Literal["hive"] | None = "hive",
        include_paths: bool = False,
        block_bytes: int | None = None,
    ) -> None:
        if partitioning not in ("hive", None):
            raise ArgumentError(f"partitioning is 'hive' or None, not {partitioning!r}.")
        if block_bytes is not None and block_bytes < 1:
            raise ArgumentError(f"block_bytes is at least 1, not {block_bytes}.")
        if schema is not None and not (hasattr(schema, "names") and hasattr(schema, "serialize")):
            raise ArgumentError(f"schema is a pyarrow.Schema, not {type(schema).__name__}.")
        super().__init__(paths, include_paths=include_paths)
        self._partitioning = partitioning
        self._given = schema
        self._block_bytes = block_bytes

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        given = None if self._given is None else {f.name: str(f.type) for f in self._given}
        added: dict[str, Any] = {"include_paths": True} if self._include_paths else {}
        if self._partitioning is None:  # else as in older outputs
            added["partitioning"] = None
        return {"kind": "json", "paths": list(self.paths), "schema": given, **added}

    def schema(self) -> pa.Schema:
        """Return the schema of all files together; reads their starts the first time."""
        return self.with_places(self.inspected().schema)

    def forms(self) -> Mapping[str, str]:
        """Return the forms of the columns that hold nulls in what the types are settled from."""
        layout = self.inspected()
        return {**layout.forms, **layout.folders.forms} if layout.folders else layout.forms

    def folder_columns(self) -> FolderColumns | None:
        return self.inspected().folders

    def splits(self) -> list[Split]:
        """Cut the files at line ends."""
        from headrace.sources.json import layout as json_layout

        layout = self.refreshed()
        return json_layout.cut(layout, self._files, self._block_bytes or block_of(self._files))

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split."""
        from headrace.sources.json import reader as json_reader

        file = self.file(split.file)
        return json_reader.read(file.path, split, self.inspected(), columns, batch_rows, bad)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the row in it, counted from 0 without blank lines. Reads the file up to there."""
        from headrace.sources.json import reader as json_reader

        path = self.file(split.file).path
        return Location(path, json_reader.rows_before(path, split, self.inspected()) + row)

    def inspect(self, files: list[InputFile]) -> JsonLayout:
        from headrace.sources.json import layout as json_layout

        layout = json_layout.inspect(files, self._given)
        if self._partitioning is None:
            return layout
        from headrace.sources.schemas import FolderColumns

        return replace(layout, folders=FolderColumns.of(files, layout.schema))
