"""Integers, and tensors of them, made on the spot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.source_ports import Bad, Location, Source
from headrace.core.work import Split
from headrace.errors import ArgumentError

if TYPE_CHECKING:
    import pyarrow as pa


SPLITS = 64  # about so many, where that makes them neither tiny nor huge
LEAST_ROWS = 1_024
MOST_ROWS = 65_536
SPLIT_BYTES = 1 << 20


class RangeSource(Source):
    """Gives the integers from 0 to ``n`` − 1 as an int64 column ``id``; a split is a range of them."""

    def __init__(self, n: int, *, rows_per_split: int | None = None) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ArgumentError(f"A range has a number of rows, 0 or more, not {n!r}.")
        if rows_per_split is not None and rows_per_split < 1:
            raise ArgumentError(f"rows_per_split is at least 1, not {rows_per_split}.")
        self._n = n
        self._rows_per_split = rows_per_split

    def describe(self) -> dict[str, Any]:
        """Return the number of rows."""
        return {"kind": "range", "rows": self._n}

    def schema(self) -> pa.Schema:
        """Return the one column ``id``."""
        import pyarrow as pa

        return pa.schema([pa.field("id", pa.int64())])

    def splits(self) -> list[Split]:
        """Cut the range into about 64 ranges, of 1,024 to 65,536 rows."""
        return row_ranges(self._n, self._rows_per_split or rows_of_a_split(self._n), 8)

    def splits_in_batches(self, rows: int) -> list[Split]:
        """Cut the range into as many ranges, of multiples of ``rows`` rows; few rows may make small ones."""
        return row_ranges(self._n, self._rows_per_split or rows_of_a_split(self._n, rows), 8)

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Make the numbers of a range."""
        import numpy as np
        import pyarrow as pa

        from headrace.core.arrow.batch import empty_columns
        from headrace.sources.schemas import select

        target = select(self.schema(), columns)
        for start in range(split.start, split.stop, batch_rows):
            stop = min(start + batch_rows, split.stop)
            if not len(target):
                yield empty_columns(stop - start)
                continue
            numbers = np.arange(start, stop, dtype=np.int64)
            column = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
            yield pa.RecordBatch.from_arrays([column], schema=target)

    def locate(self, split: Split, row: int) -> Location:
        """Name the row, counted from 0."""
        return Location("range", split.first + row)


class RangeTensorSource(RangeSource):
    """Gives ``n`` int64 tensors of shape ``shape`` as a column ``data``; tensor i is full of i."""

    def __init__(self, n: int, shape: Sequence[int], *, rows_per_split: int | None = None) -> None:
        super().__init__(n, rows_per_split=rows_per_split)
        sizes = tuple(shape) if isinstance(shape, (list, tuple)) else ()
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise ArgumentError(
                f"The shape of a row's tensor is a tuple of numbers above zero such as (2, 2), not {shape!r}."
            )
        self._shape = sizes

    def describe(self) -> dict[str, Any]:
        """Return the number of rows, and the shape of each."""
        return {"kind": "range_tensor", "rows": self._n, "shape": list(self._shape)}

    def schema(self) -> pa.Schema:
        """Return the one column ``data``."""
        import pyarrow as pa

        type_ = pa.int64()
        for size in reversed(self._shape):
            type_ = pa.list_(type_, size)
        return pa.schema([pa.field("data", type_)])

    def splits(self) -> list[Split]:
        """Cut the range as ``RangeSource`` does, but into pieces of about a megabyte at most."""
        return self.splits_in_batches(0)

    def splits_in_batches(self, rows: int) -> list[Split]:
        """Cut the range into multiples of ``rows`` rows, if they are not too big."""
        row_bytes = 8 * math.prod(self._shape)
        most = max(1, SPLIT_BYTES // row_bytes)
        step = self._rows_per_split or in_batches(min(rows_of_a_split(self._n, rows), most), rows, most)
        return row_ranges(self._n, step, row_bytes)

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Make the tensors of a range."""
        import numpy as np
        import pyarrow as pa

        from headrace.core.arrow.batch import empty_columns

        for start in range(split.start, split.stop, batch_rows):
            rows = min(batch_rows, split.stop - start)
            if columns is not None and not columns:
                yield empty_columns(rows)
                continue
            numbers = np.repeat(np.arange(start, start + rows, dtype=np.int64), math.prod(self._shape))
            column = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
            for size in reversed(self._shape):
                column = pa.FixedSizeListArray.from_arrays(column, size)
            yield pa.RecordBatch.from_arrays([column], schema=self.schema())


def rows_of_a_split(rows: int, batch: int = 0) -> int:
    """Return how many of ``rows`` rows make a split: a 64th, so that little data still occupies many workers.

    With ``batch``, it is a multiple of that, if it is not too big.
    """
    usual = min(max(rows // SPLITS, min(LEAST_ROWS, batch or LEAST_ROWS)), MOST_ROWS)
    return in_batches(usual, batch, MOST_ROWS)


def in_batches(rows: int, batch: int, most: int) -> int:
    """Return about ``rows`` rows, as a multiple of ``batch`` or a part of it if that may be.

    >>> in_batches(1_000, 64, 4_000), in_batches(4, 10, 4), in_batches(4, 11, 4)
    (960, 2, 4)
    """
    if 0 < batch <= most:
        return max(rows // batch, 1) * batch
    return next((part for part in range(rows, rows // 2 - 1, -1) if part and batch % part == 0), rows)


def row_ranges(rows: int, step: int, row_bytes: int) -> list[Split]:
    """Cut ``rows`` rows into ranges of ``step`` rows."""
    splits = []
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        splits.append(Split(0, start, stop, stop - start, (stop - start) * row_bytes, start))
    return splits
