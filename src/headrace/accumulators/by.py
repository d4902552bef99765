"""One metric for each value of a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.accumulators.base import Metric, codes_of, in_order
from headrace.core.arrow.batch import taken
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.ports import Accumulator
from headrace.errors import ArgumentError, BadInput

_MOST = 10_000
_BARS = 50
_CHARTS = 6


class By(Metric):
    """``metric`` for each value of ``column``: a dict by value. Null and NaN are one value, None.

    ``most`` is how many values there may be, so that a key is not used as a group by accident. Raises
    ``ArgumentError`` for a ``metric`` that is none; ``BadInput`` in a run for more values than ``most``.

    >>> import headrace as hr
    >>> data = hr.from_items([{"shop": "a", "x": 1.0}, {"shop": "b", "x": 2.0}, {"shop": "b", "x": 4.0}])
    >>> data.evaluate(mean=hr.By("shop", hr.Mean("x")))
    {'mean': {'a': 1.0, 'b': 3.0}}
    """

    settings = ("column",)

    def __init__(self, column: str, metric: Accumulator, *, most: int = _MOST) -> None:
        if not is_accumulator(metric):
            raise ArgumentError(
                f"By({column!r}, {metric!r}): the second is not a metric, such as hr.Mean('x')."
            )
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ArgumentError(f"most={most!r} is not a whole number, 1 or more.")
        self.column, self.most = column, most
        self._metric: Accumulator = metric.empty()
        self._begin([column, *metric.columns])

    def update(self, batch: pa.RecordBatch) -> None:
        """Take more rows."""
        if not batch.num_rows:
            return
        values = to_numpy(batch.column(self.column))
        if values.ndim > 1:
            raise BadInput(
                f"{self!r}: column {self.column!r} has an array in each row; a group is one value."
            )
        codes, keys = codes_of(values)
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1)).tolist()
        alone = len(starts) == 1
        ordered = batch if alone else taken(batch, order)
        for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
            self._of(keys[int(codes[order[start]])]).update(ordered.slice(start, stop - start))

    def _of(self, key: Any) -> Accumulator:
        if key not in self._groups:
            if len(self._groups) >= self.most:
                raise BadInput(
                    f"{self!r}: column {self.column!r} has more than {self.most:,} values. If that is meant, "
                    "set most=."
                )
            self._groups[key] = self._metric.empty()
        return self._groups[key]

    def result(self) -> dict[Any, Any]:
        """Return the result of each value."""
        return {key: self._groups[key].result() for key in in_order(self._groups)}

    def chart(self) -> dict[str, Any] | None:
        """Return the charts of the first values, or bars of numbers."""
        keys = in_order(self._groups)
        results = [self._groups[key].result() for key in keys[:_BARS]]
        if results and all(isinstance(each, (int, float)) for each in results):
            labels, values = list(map(str, keys[:_BARS])), [float(each) for each in results]
            return {"kind": "bars", "labels": labels, "values": values, "left_out": len(keys) - len(labels)}
        charts = [(str(key), chart_of(self._groups[key])) for key in keys[:_CHARTS]]
        groups = [{"label": label, "chart": chart} for label, chart in charts if chart is not None]
        return {"kind": "groups", "groups": groups, "left_out": len(keys) - len(groups)} if groups else None

    def note(self) -> str:
        """Say what has to be known beside the results."""
        notes = []
        for key in in_order(self._groups):
            note = note_of(self._groups[key])
            notes += [f"{key!r}: {note}"] if note else []
        more = f"; and {len(notes) - 3} more" if len(notes) > 3 else ""
        return "; ".join(notes[:3]) + more

    def describe(self) -> dict[str, Any]:
        """Return what identifies it."""
        return {"kind": "By", "column": self.column, "metric": description_of(self._metric)}

    def __repr__(self) -> str:
        return f"By({self.column!r}, {self._metric!r})"

    def _clear(self) -> None:
        self._groups: dict[Any, Accumulator] = {}

    def _merge(self, other: By) -> None:
        for key, metric in other._groups.items():
            self._of(key).merge(metric)

    def _state(self) -> Any:
        return [[key, self._groups[key].to_bytes()] for key in in_order(self._groups)]

    def _restore(self, state: Any) -> None:
        self._groups = {key: self._metric.from_bytes(data) for key, data in state}


def is_accumulator(value: Any) -> bool:
    """Say whether a value fills the ``Accumulator`` port."""
    names = ("update", "merge", "result", "to_bytes", "from_bytes", "empty")
    return (
        not isinstance(value, type)
        and hasattr(value, "columns")
        and all(callable(getattr(value, name, None)) for name in names)
    )


def note_of(metric: Accumulator) -> str:
    """Return what has to be known beside a metric's result."""
    note = getattr(metric, "note", None)
    return str(note()) if callable(note) else ""


def chart_of(metric: Accumulator) -> dict[str, Any] | None:
    """Return plain data for drawing a metric, if it has some."""
    chart = getattr(metric, "chart", None)
    found = chart() if callable(chart) else None
    return dict(found) if found else None


def description_of(metric: Accumulator) -> dict[str, Any]:
    """Return the plain values that identify a metric."""
    describe = getattr(metric, "describe", None)
    if callable(describe):
        return dict(describe())
    return {"kind": f"{type(metric).__module__}.{type(metric).__qualname__}", "columns": list(metric.columns)}
