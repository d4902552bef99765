"""Files of an output, read again: their bytes, the rows in them, and the columns that metrics read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.files import safe_files, tars
from headrace.core.files.formats import COMPRESSIONS

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1 << 20


def bytes_of(path: Path) -> tuple[int, int]:
    """Return a file's size and CRC-32, by reading all of it."""
    import zlib

    size = crc = 0
    with safe_files.file(path) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return size, crc


def rows_of(path: Path, name: str, sink: dict[str, Any]) -> int | None:
    """Count the rows of a file that is whole: by its own metadata, or by its lines; None for an unknown format."""
    import pyarrow as pa

    if name.endswith(".arrow"):
        with pa.BufferReader(safe_files.mapped(path)) as file:
            reader = pa.ipc.open_file(file)
            return int(sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches)))
    kind = str(sink.get("kind")).lower()
    if kind == "parquet":
        import pyarrow.parquet as pq

        with safe_files.file(path) as file:
            return int(pq.read_metadata(file).num_rows)
    if kind == "json":
        return sum(chunk.count(b"\n") for chunk in _unpacked(path, name))
    if kind == "csv":
        return csv_rows(_unpacked(path, name)) - bool(sink.get("header", True))
    if kind == "webdataset":
        with safe_files.file(path) as file, tars.opened(file) as tar:
            return sum(1 for _ in tars.keys(tar))
    if kind == "images":
        return 1
    if kind == "numpy":
        return _array_rows(path)
    return None


def _array_rows(path: Path) -> int:
    """Return how long an array is, by its header; of several, which are of one length, the first."""
    import zipfile

    import numpy as np

    with safe_files.file(path) as file:
        if path.suffix == ".npz":
            with zipfile.ZipFile(file) as archive, archive.open(archive.namelist()[0]) as first:
                np.lib.format.read_magic(first)
                return int(np.lib.format.read_array_header_1_0(first)[0][0])
        np.lib.format.read_magic(file)
        return int(np.lib.format.read_array_header_1_0(file)[0][0])


def csv_rows(chunks: Iterator[bytes]) -> int:
    """Count the ends of lines that no quotes are around.

    >>> csv_rows(iter([b'"a","b"\\n1,"x\\n', b'""y"\\n']))
    2
    """
    rows, quoted = 0, False
    for chunk in chunks:
        for i, piece in enumerate(chunk.split(b'"')):
            quoted ^= i > 0
            if not quoted:
                rows += piece.count(b"\n")
    return rows


def batches_of(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a Parquet file."""
    import pyarrow.parquet as pq

    with safe_files.file(path) as opened, pq.ParquetFile(opened) as file:
        yield from file.iter_batches(columns=list(columns), use_threads=False)


def _unpacked(path: Path, name: str) -> Iterator[bytes]:
    import pyarrow as pa

    packing = COMPRESSIONS.get(Path(name).suffix)
    with safe_files.file(path) as opened, pa.input_stream(opened, compression=packing) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
