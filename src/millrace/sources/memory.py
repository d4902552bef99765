"""Data that is already in this process, and numbers made on the spot."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from millrace.core.work import Split
from millrace.errors import ArgumentError
from millrace.sources.schemas import conform, select

_HASHED_ROWS = 65_536
_SPLIT_ROWS = 65_536
_SPLIT_BYTES = 1 << 20


class MemorySource:
    """Reads a table in memory; a split is a range of rows.

    It travels to the workers with its buffers out of band (pickle protocol 5), so an engine can hand them all
    one copy.
    """

    def __init__(self, table: pa.Table, kind: str, *, rows_per_split: int | None = None) -> None:
        if rows_per_split is not None and rows_per_split < 1:
            raise ArgumentError(f"rows_per_split is at least 1, not {rows_per_split}.")
        self._table = table.replace_schema_metadata(None)
        self._kind = kind
        self._rows_per_split = rows_per_split

    def __getstate__(self) -> dict[str, Any]:
        table = self._table
        if table.get_total_buffer_size() > table.nbytes + table.nbytes // 8 + _SPLIT_BYTES:
            # A slice would take its whole parent along; a round trip through the IPC format cuts it out.
            table = pa.ipc.open_stream(_ipc(table)).read_all()
        return {**self.__dict__, "_table": table}

    def describe(self) -> dict[str, Any]:
        """Return what the data is, by a hash of its contents; costs about a second per gigabyte."""
        digest = hashlib.blake2b(digest_size=16)
        for start in range(0, self._table.num_rows, _HASHED_ROWS):
            # Copied out in pieces of fixed size: the hash must depend on neither chunks nor offsets.
            piece = self._table.slice(start, _HASHED_ROWS)
            digest.update(_ipc(pa.concat_tables([piece.slice(0, 0), piece]).combine_chunks()))
        return {
            "kind": self._kind,
            "rows": self._table.num_rows,
            "columns": {field.name: str(field.type) for field in self._table.schema},
            "content": digest.hexdigest(),
        }

    def schema(self) -> pa.Schema:
        """Return the table's schema."""
        return self._table.schema

    def files(self) -> list[tuple[str, int, int]]:
        """Return no files."""
        return []

    def splits(self) -> list[Split]:
        """Cut the rows into ranges of at least a megabyte, or of 65,536 rows."""
        rows = self._table.num_rows
        row_bytes = max(1, -(-self._table.nbytes // max(1, rows)))
        step = self._rows_per_split or max(1, min(_SPLIT_ROWS, -(-_SPLIT_BYTES // row_bytes)))
        return _ranges(rows, step, row_bytes)

    def read(self, split: Split, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read a range of rows; the batches view the table."""
        target = self.schema() if columns is None else select(self.schema(), columns)
        rows = self._table.slice(split.start, split.stop - split.start)
        if columns is None or not columns:
            chosen = rows
        else:
            chosen = rows.select(list(columns))
        for batch in chosen.to_batches(max_chunksize=batch_rows):
            yield batch if batch.schema.equals(target) else conform(batch, target, self._kind, _no_constant)

    def locate(self, split: Split, row: int) -> str:
        """Name the row, counted from 0."""
        return f"{self._kind}, row {split.first + row}"

    def close(self) -> None:
        """Nothing is open."""


class RangeSource:
    """Gives the integers from 0 to ``n`` − 1 as an int64 column ``id``; a split is a range of them."""

    def __init__(self, n: int, *, rows_per_split: int = 1 << 18) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ArgumentError(f"A range has a number of rows, 0 or more, not {n!r}.")
        if rows_per_split < 1:
            raise ArgumentError(f"rows_per_split is at least 1, not {rows_per_split}.")
        self._n = n
        self._rows_per_split = rows_per_split

    def describe(self) -> dict[str, Any]:
        """Return the number of rows."""
        return {"kind": "range", "rows": self._n}

    def schema(self) -> pa.Schema:
        """Return the one column ``id``."""
        return pa.schema([pa.field("id", pa.int64())])

    def files(self) -> list[tuple[str, int, int]]:
        """Return no files."""
        return []

    def splits(self) -> list[Split]:
        """Cut the range into ranges."""
        return _ranges(self._n, self._rows_per_split, 8)

    def read(self, split: Split, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Make the numbers of a range."""
        import numpy as np

        target = self.schema() if columns is None else select(self.schema(), columns)
        for start in range(split.start, split.stop, batch_rows):
            numbers = np.arange(start, min(start + batch_rows, split.stop), dtype=np.int64)
            column = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
            batch = pa.RecordBatch.from_arrays([column], names=["id"])
            yield batch if len(target) else conform(batch, target, "range", _no_constant)

    def locate(self, split: Split, row: int) -> str:
        """Name the row, counted from 0."""
        return f"range, row {split.first + row}"

    def close(self) -> None:
        """Nothing is open."""


def _ranges(rows: int, step: int, row_bytes: int) -> list[Split]:
    return [
        Split(0, start, stop, stop - start, (stop - start) * row_bytes, start)
        for start in range(0, rows, step)
        for stop in (min(start + step, rows),)
    ]


def _ipc(table: pa.Table) -> pa.Buffer:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _no_constant(name: str, rows: int) -> None:
    return None
