"""Ray's builder of blocks, which its guide to custom datasources uses."""

from __future__ import annotations

from typing import Any


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
