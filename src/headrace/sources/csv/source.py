"""CSV files, plain or compressed; big plain ones are read in byte ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad, Location
from headrace.core.work import Split
from headrace.errors import ArgumentError
from headrace.sources.csv import CsvFormat
from headrace.sources.file_source import FileSource, PathArgument, block_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sources.csv.layout import CsvLayout
    from headrace.sources.schemas import FolderColumns


class CsvSource(FileSource["CsvLayout"]):
    """Reads CSV files as one table; a split is a range of bytes between two records, or a compressed file.

    The types are settled once, from the first megabyte of every file: a later value that does not fit is an
    error, never another type.

    Parameters
    ----------
    paths
        A file, a folder, a glob, or a list of these. Compression is recognised by the files' first bytes.
    column_types
        Types for some columns: an Arrow type, its name (``"float64"``, ``"timestamp[us]"``), or one of
        ``int``, ``float``, ``str``, ``bool``, ``bytes``. The others are inferred.
    column_names
        The names of the columns, of files without a header line; with ``has_header=True``, in place of its names.
    has_header
        Whether each file starts with a line of names. None: yes, unless ``column_names`` is given. Without a
        header and without ``column_names``: ``f0``, ``f1``, …
    delimiter, quote_char, escape_char
        Single ASCII characters; None for no quoting, no escaping. Escapes keep a file in one split.
    newlines_in_values
        False promises that no quoted value holds a newline; planning then need not scan the files.
    encoding
        Other than UTF-8, ASCII, ISO 8859 and Windows code pages, an encoding keeps a file in one split.
    skip_rows
        Lines to skip at the start of each file, before the header.
    null_values, strings_can_be_null, decimal_point, timestamp_parsers
        As in ``pyarrow.csv.ConvertOptions``; None is Arrow's default.
    partitioning
        As for ``ParquetSource``: ``"hive"`` adds the ``key=value`` folders directly above a file as columns.
    include_paths
        Whether to add the string column ``path``: the absolute path.
    block_bytes
        How many bytes a split has at least. None: a 64th of all files together, 128 KiB to 8 MiB.
    """

    suffixes = suffixes_read_by("read_csv")
    reads_objects = True
    has_lines = True

    def __init__(
        self,
        paths: PathArgument,
        *,
        column_types: Mapping[str, Any] | None = None,
        column_names: Sequence[str] | None = None,
        has_header: bool | None = None,
        delimiter: str = ",",
        quote_char: str | None = '"',
        escape_char: str | None = None,
        newlines_in_values: bool = True,
        encoding: str = "utf8",
        skip_rows: int = 0,
        null_values: Sequence[str] | None = None,
        strings_can_be_null: bool = False,
        decimal_point: str = ".",
        timestamp_parsers: Sequence[str] | None = None,
        partitioning: Literal["hive"] | None = "hive",
        include_paths: bool = False,
        block_bytes: int | None = None,
    ) -> None:
        if partitioning not in ("hive", None):
            raise ArgumentError(f"partitioning is 'hive' or None, not {partitioning!r}.")
        for name, mark in (
            ("delimiter", delimiter),
            ("quote_char", quote_char),
            ("escape_char", escape_char),
            ("decimal_point", decimal_point),
        ):
            optional = name in ("quote_char", "escape_char")
            if not (optional and mark is None) and not _is_mark(mark):
                raise ArgumentError(f"{name} is a single ASCII character, not {mark!r}.")
        if block_bytes is not None and block_bytes < 1:
            raise ArgumentError(f"block_bytes is at least 1, not {block_bytes}.")
        super().__init__(paths, include_paths=include_paths)
        self._partitioning = partitioning
        self._format = CsvFormat(
            column_types=dict(column_types or {}),
            column_names=_tuple("column_names", column_names),
            has_header=column_names is None if has_header is None else has_header,
            delimiter=delimiter,
            quote_char=quote_char,
            escape_char=escape_char,
            newlines_in_values=newlines_in_values,
            encoding=encoding,
            skip_rows=skip_rows,
            null_values=_tuple("null_values", null_values),
            strings_can_be_null=strings_can_be_null,
            decimal_point=decimal_point,
            timestamp_parsers=_tuple("timestamp_parsers", timestamp_parsers),
        )
        self._block_bytes = block_bytes

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        options = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self._format).items()
            if name != "column_types"
        }
        types = {name: _type_name(value) for name, value in self._format.column_types.items()}
        added: dict[str, Any] = {"include_paths": True} if self._include_paths else {}
        if self._partitioning is None:  # else as in older outputs
            added["partitioning"] = None
        return {"kind": "csv", "paths": list(self.paths), "column_types": types, **options, **added}

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
        """Cut the files between records; reads big ones once, to find out which newlines are quoted."""
        from headrace.sources.csv import layout as csv_layout

        layout = self.refreshed()
        return csv_layout.cut(self._files, layout, self._format, self._block_bytes or block_of(self._files))

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split."""
        from headrace.sources.csv.reader import CsvReader

        path = self.file(split.file).path
        return CsvReader(path, split, self.inspected(), self._format, columns).read(batch_rows, bad)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the row in it, counted from 0 after the header. Reads the file up to there."""
        from headrace.sources.csv import reader as csv_reader

        path = self.file(split.file).path
        before = csv_reader.rows_before(path, split, self.inspected(), self._format)
        if before is None:
            detail = f"row {row} of the part that begins at byte {split.start:,}"
            return Location(path, detail=detail)
        return Location(path, before + row)

    def inspect(self, files: list[InputFile]) -> CsvLayout:
        from headrace.sources.csv import layout as csv_layout

        layout = csv_layout.inspect(files, self._format)
        if self._partitioning is None:
            return layout
        from headrace.sources.schemas import FolderColumns

        return replace(layout, folders=FolderColumns.of(files, layout.schema))


def _is_mark(mark: object) -> bool:
    return isinstance(mark, str) and len(mark) == 1 and mark.isascii() and mark not in "\r\n"


def _tuple(name: str, values: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(values, str):
        raise ArgumentError(f"{name} is a list of strings; write {name}=[{values!r}].")
    return None if values is None else tuple(values)


def _type_name(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)
