"""Numbers about columns, from one pass over batches in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.batch import to_numpy
from millrace.errors import ArgumentError


@dataclass(slots=True)
class _Column:
    """What is known of a column so far. ``spread`` is the sum of the squared distances from the mean."""

    values: int = 0
    nulls: int = 0
    total: Any = None
    least: Any = None
    most: Any = None
    mean: float = 0.0
    spread: float = 0.0

    def add(self, what: str, column: pa.Array) -> None:
        """Take a batch's values into account."""
        self.nulls += column.null_count
        present = len(column) - column.null_count
        if not present:
            _asked_of(what, column)
            return
        if what in ("sum", "mean"):
            part = pc.sum(column).as_py()
            self.total = part if self.total is None else self.total + part
        elif what in ("min", "max"):
            part = pc.min_max(column).as_py()
            self.least = _better(min, self.least, part["min"])
            self.most = _better(max, self.most, part["max"])
        else:
            self._spread(np.asarray(to_numpy(column.cast(pa.float64()).drop_null())), present)
        self.values += present

    def _spread(self, values: np.ndarray[Any, Any], present: int) -> None:
        mean = float(values.mean())
        apart = mean - self.mean
        together = self.values + present
        self.spread += float(((values - mean) ** 2).sum()) + apart**2 * self.values * present / together
        self.mean += apart * present / together

    def result(self, what: str, ddof: int) -> Any:
        """Return the number, or None if no value tells."""
        if not self.values:
            return None
        if what == "std":
            return math.sqrt(self.spread / (self.values - ddof)) if self.values > ddof else None
        return {
            "sum": self.total,
            "min": self.least,
            "max": self.most,
            "mean": self.total / self.values if what == "mean" else None,
        }[what]


def _better(choose: Callable[[Any, Any], Any], known: Any, new: Any) -> Any:
    """Choose between two values; one that is not there, or not a number, is no choice."""
    if known is None or known != known:
        return new
    return known if new != new else choose(known, new)


def _asked_of(what: str, column: pa.Array) -> None:
    """Raise for a type that has no such number, even where there is no value."""
    if what == "std":
        column.slice(0, 0).cast(pa.float64())
    elif what in ("sum", "mean"):
        pc.sum(column.slice(0, 0))
    else:
        pc.min_max(column.slice(0, 0))


def numbers(
    what: str, batches: Iterable[pa.RecordBatch], names: Sequence[str], ignore_nulls: bool, ddof: int = 0
) -> list[Any]:
    """Return a number for each of the columns: their ``"sum"``, ``"min"``, ``"max"``, ``"mean"`` or ``"std"``.

    >>> batches = [pa.record_batch({"x": [1, 2]}), pa.record_batch({"x": [None, 6]})]
    >>> numbers("mean", batches, ["x"], True), numbers("mean", batches, ["x"], False)
    ([3.0], [None])
    """
    columns = [_Column() for _ in names]
    for batch in batches:
        for name, column, state in zip(names, batch.columns, columns, strict=True):
            try:
                state.add(what, column)
            except (pa.ArrowException, TypeError) as error:
                reason = str(error).partition("\n")[0]
                raise ArgumentError(
                    f"{what}({name!r}): there is no such number for a column of type {column.type} ({reason})."
                ) from error
    return [None if each.nulls and not ignore_nulls else each.result(what, ddof) for each in columns]


def different(columns: Iterable[pa.Array], name: str, ignore_nulls: bool) -> list[Any]:
    """Return the values that differ, in the order in which they first appear.

    >>> different([pa.array([2, None, 1]), pa.array([1, 2, 3])], "x", ignore_nulls=False)
    [2, None, 1, 3]
    """
    seen: dict[Any, Any] = {}
    for column in columns:
        try:
            for value in pc.unique(column).to_pylist():
                seen.setdefault("nan" if value != value else (type(value), value), value)
        except (pa.ArrowException, TypeError) as error:
            raise ArgumentError(
                f"unique({name!r}): values of type {column.type} cannot be compared."
            ) from error
    return [value for value in seen.values() if value is not None or not ignore_nulls]
