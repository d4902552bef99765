"""Ray's ``ray.data.block``: tables by the names that custom datasources and datasinks use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Block = Any  # a table of Arrow or a DataFrame
AggType = AggOutputType = KeyType = T = U = DataBatch = Any  # words of Ray's annotations


@dataclass
class BlockMetadata:
    """What is known of a block before it is read."""

    num_rows: int | None = None
    size_bytes: int | None = None
    input_files: list[str] | None = None
    exec_stats: Any = None
    schema: Any = None
    task_exec_stats: Any = None


class BlockAccessor:
    """A table, with Ray's methods.

    >>> import pyarrow as pa
    >>> BlockAccessor.for_block(pa.table({"x": [1, 2]})).num_rows()
    2
    """

    def __init__(self, block: Any) -> None:
        self._table = block

    @classmethod
    def for_block(cls, block: Any) -> BlockAccessor:
        """Return the methods of a table."""
        return block if isinstance(block, BlockAccessor) else cls(block)

    def num_rows(self) -> int:
        """How many rows it has."""
        return len(self._table)

    def size_bytes(self) -> int:
        """How many bytes it takes."""
        return int(self.to_arrow().nbytes)

    def to_arrow(self) -> Any:
        """Return it as a table of Arrow."""
        import pyarrow as pa

        return pa.Table.from_pandas(self._table) if hasattr(self._table, "iloc") else self._table

    def to_pandas(self) -> Any:
        """Return it as a DataFrame."""
        return self._table if hasattr(self._table, "iloc") else self._table.to_pandas()

    def to_numpy(self, columns: Any = None) -> Any:
        """Return its columns as arrays; that of ``columns`` alone, if it is one name."""
        arrays = {
            name: rows_of_column(column)
            for name, column in zip(self.column_names(), self.to_arrow(), strict=True)
        }
        return (
            arrays
            if columns is None
            else arrays[columns]
            if isinstance(columns, str)
            else {c: arrays[c] for c in columns}
        )

    to_batch_format = to_block = to_arrow

    def column_names(self) -> list[str]:
        """Return the names of its columns."""
        return list(self.to_arrow().column_names)

    def schema(self) -> Any:
        """Return the schema."""
        return self.to_arrow().schema

    def count(self, on: str, ignore_nulls: bool = False) -> int | None:
        """Return how many values a column has; nulls and NaN are left out with ``ignore_nulls``."""
        values = self._values(on) if ignore_nulls else self.to_arrow().column(on)
        return len(values)

    def sum(self, on: str, ignore_nulls: bool = True) -> Any:
        """Return the sum of a column, None for none, or for a null that counts."""
        return self._computed("sum", on, ignore_nulls)

    def min(self, on: str, ignore_nulls: bool = True) -> Any:
        """Return the smallest value; None as ``sum`` does."""
        return self._computed("min", on, ignore_nulls)

    def max(self, on: str, ignore_nulls: bool = True) -> Any:
        """Return the biggest value; None as ``sum`` does."""
        return self._computed("max", on, ignore_nulls)

    def mean(self, on: str, ignore_nulls: bool = True) -> Any:
        """Return the mean; None as ``sum`` does."""
        return self._computed("mean", on, ignore_nulls)

    def _values(self, on: str) -> Any:
        import pyarrow.compute as pc

        column = self.to_arrow().column(on)
        return column.filter(pc.invert(column.is_null(nan_is_null=True)))

    def _computed(self, name: str, on: str, ignore_nulls: bool) -> Any:
        import pyarrow.compute as pc

        values = self._values(on) if ignore_nulls else self.to_arrow().column(on)
        return getattr(pc, name)(values, skip_nulls=False).as_py() if len(values) else None

    def iter_rows(self, public_row_format: bool = True) -> Any:
        """Yield rows as dicts."""
        from headrace.core.arrow.batch import one_batch
        from headrace.core.arrow.batch_formats import rows_of

        return iter(rows_of(one_batch(self.to_arrow())))


def rows_of_column(column: Any) -> Any:
    """Return a column of Arrow as an array."""
    from headrace.core.arrow.batch_formats import to_numpy

    return to_numpy(column.combine_chunks() if hasattr(column, "combine_chunks") else column)


@dataclass
class TaskContext:
    """What a datasink is told of the task that calls it."""

    task_idx: int = 0
    op_name: str = "Write"
    kwargs: dict[str, Any] = field(default_factory=dict)


class DelegatingBlockBuilder:
    """Collects rows, and makes a table of them.

    >>> builder = DelegatingBlockBuilder()
    >>> builder.add({"x": 1})
    >>> builder.build().num_rows
    1
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, item: dict[str, Any]) -> None:
        """Take a row."""
        self._rows.append(item)

    def build(self) -> Any:
        """Return the rows as a table."""
        import numpy as np
        import pyarrow as pa

        from headrace.core.arrow.values import column_from

        names = list(self._rows[0]) if self._rows else []
        columns = []
        for name in names:
            values: Any = [row.get(name) for row in self._rows]
            if all(isinstance(value, np.ndarray) for value in values) and len({v.shape for v in values}) == 1:
                values = np.stack(values)
            columns.append(column_from(values))
        return pa.Table.from_arrays(columns, names)

    def num_rows(self) -> int:
        """How many rows it has."""
        return len(self._rows)
