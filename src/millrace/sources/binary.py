"""Whole files as values: images, sound, documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millrace.core.work import Split
from millrace.errors import UnreadableFile
from millrace.sources.files import InputFile, PathArgument, absolute_paths, check_unchanged, expand

if TYPE_CHECKING:
    import pyarrow as pa

_SPLIT_BYTES = 8 << 20
_SPLIT_FILES = 256
_BATCH_BYTES = 64 << 20
_SMALL = (1 << 31) - 1  # what the offsets of a plain binary column can count


class BinarySource:
    """Reads each file as one row: column ``bytes``, and ``path`` if asked for; a split is a run of small files.

    Parameters
    ----------
    paths:
        A file, a folder, a glob, or a list of these; any suffix.
    include_paths:
        Whether to add the column ``path``: the absolute path, a string.
    """

    def __init__(self, paths: PathArgument, *, include_paths: bool = False) -> None:
        self._paths = absolute_paths(paths)
        self._include_paths = include_paths
        self._files: list[InputFile] = []

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        return {"kind": "binary", "paths": list(self._paths), "include_paths": self._include_paths}

    def schema(self) -> pa.Schema:
        """Return the columns; ``bytes`` is ``large_binary`` only if a file has 2 GiB or more."""
        import pyarrow as pa

        large = any(file.size > _SMALL for file in self._listed())
        fields = [pa.field("bytes", pa.large_binary() if large else pa.binary())]
        if self._include_paths:
            fields.append(pa.field("path", pa.string()))
        return pa.schema(fields)

    def files(self) -> list[tuple[str, int, int]]:
        """Return ``(path, size, mtime_ns)`` of each file."""
        return list(self._listed())

    def splits(self) -> list[Split]:
        """Group neighbouring files up to 8 MiB or 256 files; ``start`` and ``stop`` number files."""
        self._files = expand(self._paths, None)
        splits: list[Split] = []
        start = size = 0
        for number, file in enumerate(self._files):
            if number > start and (size + file.size > _SPLIT_BYTES or number - start >= _SPLIT_FILES):
                splits.append(Split(start, start, number, number - start, size))
                start, size = number, 0
            size += file.size
        if self._files:
            splits.append(Split(start, start, len(self._files), len(self._files) - start, size))
        return splits

    def read(self, split: Split, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the files of a split; a batch ends early at 64 MiB."""
        from millrace.sources.schemas import select

        target = self.schema() if columns is None else select(self.schema(), columns)
        pending: list[InputFile] = []
        size = 0
        for file in self._files[split.start : split.stop]:
            if pending and (len(pending) >= batch_rows or size + file.size > _BATCH_BYTES):
                yield _batch(pending, target)
                pending, size = [], 0
            pending.append(file)
            size += file.size
        if pending:
            yield _batch(pending, target)

    def locate(self, split: Split, row: int) -> str:
        """Name the file."""
        return self._files[split.start + row].path

    def close(self) -> None:
        """Nothing stays open."""

    def _listed(self) -> list[InputFile]:
        if not self._files:
            self._files = expand(self._paths, None)
        return self._files


def _batch(files: list[InputFile], target: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    from millrace.core.batch import column_from, empty_columns

    if not len(target):
        return empty_columns(len(files))
    columns = []
    for field in target:
        values = (
            [file.path for file in files] if field.name == "path" else [_contents(file) for file in files]
        )
        columns.append(column_from(values).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _contents(file: InputFile) -> bytes:
    check_unchanged(file)
    try:
        with open(file.path, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise UnreadableFile(f"Cannot read input file {file.path!r}: {error.strerror}.") from error
