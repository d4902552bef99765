"""Whole files as values: images, sound, documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headrace.core.files.formats import COMPRESSIONS
from headrace.core.files.input_files import InputFile
from headrace.core.ports import Bad
from headrace.core.work import Split
from headrace.errors import ArgumentError, UnreadableFile
from headrace.sources.file_source import WholeFileSource
from headrace.sources.files import PathArgument

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 64 << 20
_SMALL = (1 << 31) - 1  # what the offsets of a plain binary column can count


class BinarySource(WholeFileSource[bool]):
    """Reads each file as one row: column ``bytes``, and ``path`` if asked for; a split is a run of small files.

    Parameters
    ----------
    paths
        A file, a folder, a glob, or a list of these; any suffix.
    include_paths
        Whether to add the column ``path``: the absolute path, a string.
    compression
        ``"infer"``: what is compressed by its name and its first bytes is unpacked. None: nothing is.
    """

    reads_objects = True

    def __init__(
        self, paths: PathArgument, *, include_paths: bool = False, compression: Literal["infer"] | None = None
    ) -> None:
        if compression not in ("infer", None):
            raise ArgumentError(f"compression={compression!r}: it is 'infer', or None for bytes as they are.")
        super().__init__(paths)
        self._include_paths = include_paths
        self._unpacks = compression is not None

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        told = {"kind": "binary", "paths": list(self.paths), "include_paths": self._include_paths}
        return {**told, "unpacks": True} if self._unpacks else told

    def schema(self) -> pa.Schema:
        """Return the columns; ``bytes`` is ``large_binary`` only if a file has 2 GiB or more."""
        import pyarrow as pa

        large = self.inspected()
        fields = [pa.field("bytes", pa.large_binary() if large else pa.binary())]
        if self._include_paths:
            fields.append(pa.field("path", pa.string()))
        return pa.schema(fields)

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the files of a split; a batch ends early at 64 MiB."""
        from headrace.sources.schemas import select

        target = self.schema() if columns is None else select(self.schema(), columns)
        pending: list[InputFile] = []
        size = 0
        for file in map(self.file, self.files_of(split)):
            if pending and (len(pending) >= batch_rows or size + file.size > _BATCH_BYTES):
                yield self._batch(pending, target)
                pending, size = [], 0
            pending.append(file)
            size += file.size
        if pending:
            yield self._batch(pending, target)

    def inspect(self, files: list[InputFile]) -> bool:
        """Say whether a file is too large for a plain binary column."""
        return any(file.size > _SMALL for file in files)

    def _batch(self, files: list[InputFile], target: pa.Schema) -> pa.RecordBatch:
        import pyarrow as pa

        from headrace.core.arrow.batch import empty_columns
        from headrace.core.arrow.values import column_from

        if not len(target):
            return empty_columns(len(files))
        columns = []
        for field in target:
            values = (
                [str(file.path) for file in files]
                if field.name == "path"
                else _contents(files, unpacks=self._unpacks)
            )
            columns.append(column_from(values).cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=target)


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
