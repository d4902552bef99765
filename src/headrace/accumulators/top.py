"""The rows with the biggest values."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.accumulators.base import Array, Metric, Nan, kind_of, plain_key
from headrace.core.arrow.batch import filtered, taken
from headrace.core.arrow.batch_formats import to_numpy
from headrace.errors import ArgumentError, BadInput


class TopK(Metric):
    """The ``k`` rows with the biggest values of ``column``, the biggest first.

    They are dicts of ``column`` and the columns ``keep``. With ``smallest=True`` those with the smallest. Among
    equal values, those go first whose kept columns sort first as text, so that the order of rows makes no
    difference. ``nan="count"`` leaves rows with null or NaN in ``column`` out. Raises ``ArgumentError`` for a ``k``
    that is not from 1 to 100,000; ``BadInput`` in a run for a column that holds no numbers.

    >>> import headrace as hr
    >>> data = hr.from_items([{"id": "a", "loss": 0.1}, {"id": "b", "loss": 2.5}])
    >>> data.evaluate(worst=hr.TopK("loss", k=1, keep=["id"]))
    {'worst': [{'loss': 2.5, 'id': 'b'}]}
    """

    settings = ("column", "k", "keep", "smallest")

    def __init__(
        self,
        column: str,
        k: int = 10,
        *,
        keep: str | Sequence[str] = (),
        smallest: bool = False,
        nan: Nan = "raise",
    ) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= 100_000:
            raise ArgumentError(f"k={k!r} is not a whole number from 1 to 100,000.")
        self.column, self.k, self.smallest = column, k, bool(smallest)
        self.keep = [keep] if isinstance(keep, str) else list(keep)
        self._begin([column, *self.keep], nan)

    _rows: list[tuple[Any, ...]]

    def update(self, batch: pa.RecordBatch) -> None:
        """Take more rows."""
        values = batch.column(self.column)
        if values.null_count:
            self._refuse(self.column, "null", values.null_count)
            self.skipped += values.null_count
            batch = filtered(batch, to_numpy(values.is_valid()))
        numbers = to_numpy(batch.column(self.column))
        if numbers.dtype.kind not in "fiub" or numbers.ndim != 1:
            raise BadInput(f"{self!r}: column {self.column!r} holds no numbers, but {kind_of(numbers)}.")
        chosen = np.arange(len(numbers))
        if numbers.dtype.kind == "f" and np.isnan(numbers).any():
            chosen = np.flatnonzero(~np.isnan(numbers))
            self._refuse(self.column, "NaN", len(numbers) - len(chosen))
            self.skipped += len(numbers) - len(chosen)
        chosen = self._candidates(numbers, chosen)
        if len(chosen):
            found = taken(batch, chosen)
            columns = [found.column(name).to_pylist() for name in (self.column, *self.keep)]
            self._keep(zip(*(map(plain_key, column) for column in columns), strict=True))

    def _candidates(self, numbers: Array, chosen: Array) -> Array:
        """Return which rows may be among the first: ties with the last of them included."""
        if len(chosen) <= self.k:
            return chosen
        values = numbers[chosen]
        at = self.k - 1 if self.smallest else len(values) - self.k
        edge = np.partition(values, at)[at]
        return np.asarray(chosen[values <= edge] if self.smallest else chosen[values >= edge])

    def _keep(self, rows: Any) -> None:
        self._rows = heapq.nsmallest(self.k, [*self._rows, *map(tuple, rows)], key=self._rank)

    def _rank(self, row: tuple[Any, ...]) -> Any:
        return row[0] if self.smallest else -row[0], tuple(map(repr, row[1:]))

    def result(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return [dict(zip((self.column, *self.keep), row, strict=True)) for row in self._rows]

    def _clear(self) -> None:
        self._rows = []

    def _merge(self, other: TopK) -> None:
        self._keep(other._rows)

    def _state(self) -> Any:
        return self._rows

    def _restore(self, state: Any) -> None:
        self._rows = [tuple(row) for row in state]
