"""One metric for each value of a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.accumulators.base import Array, Metric, codes_of, in_order, plain_key
from headrace.accumulators.many import Each, many_of
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.ports import Accumulator, AccumulatorParts, completed, fills
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
    _seen: tuple[pa.Array | None, Array]

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

    def prepare(self, dataset: Any) -> Any:
        """Return the dataset with the columns that the metric reads."""
        return completed(self._metric, AccumulatorParts).prepare(dataset)

    def update(self, batch: pa.RecordBatch) -> None:
        """Take more rows."""
        if not batch.num_rows:
            return
        self._many.update(batch, *self._numbered(batch.column(self.column)))

    def _numbered(self, column: pa.Array) -> tuple[Array, Array]:
        """Return a code for each row, and for each code the number of a group; none is there twice."""
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        try:
            if isinstance(column.type, pa.BaseExtensionType):
                raise pa.ArrowNotImplementedError
            encoded = pc.dictionary_encode(column, null_encoding="encode")
            codes, groups = to_numpy(encoded.indices), self._known(encoded.dictionary)
        except pa.ArrowNotImplementedError:
            values = to_numpy(column)
            if values.ndim > 1:
                raise BadInput(
                    f"{self!r}: column {self.column!r} has an array in each row; a group is one value."
                ) from None
            codes, keys = codes_of(values)
            used, codes = np.unique(codes, return_inverse=True)
            groups = np.array([self._group(keys[code]) for code in used.tolist()], np.int64)
        if len(groups) > 1 and np.bincount(groups).max() > 1:  # 0.0 and -0.0, null and NaN
            groups, codes = np.unique(groups[codes], return_inverse=True)
        return codes, groups

    def _known(self, values: pa.Array) -> Array:
        """Return the numbers of different values, most of which were there before."""
        seen, groups = self._seen
        if seen is None or seen.type != values.type:
            seen, groups = values.slice(0, 0), np.empty(0, np.int64)
        at = pc.index_in(values, seen)
        if at.null_count:
            new = values.filter(at.is_null())
            plain = to_numpy(new.drop_null())
            keys = iter(plain.tolist() if plain.dtype.kind in "iu" else map(plain_key, plain))
            more = [self._group(next(keys) if there else None) for there in new.is_valid().to_pylist()]
            seen, groups = pa.concat_arrays([seen, new]), np.append(groups, more).astype(np.int64)
            self._seen = (seen, groups)
            at = pc.index_in(values, seen)
        found: Array = groups[to_numpy(at)]
        return found

    def _group(self, key: Any) -> int:
        if key not in self._places:
            if len(self._places) >= self.most:
                raise BadInput(
                    f"{self!r}: column {self.column!r} has more than {self.most:,} values. If that is meant, "
                    "set most=."
                )
            self._places[key] = len(self._places)
        return self._places[key]

    @property
    def _groups(self) -> dict[Any, Accumulator]:
        """The metric of each value."""
        return dict(zip(self._places, self._many.metrics(len(self._places)), strict=True))

    def result(self) -> dict[Any, Any]:
        """Return the result of each value."""
        groups = self._groups
        return {key: groups[key].result() for key in in_order(groups)}

    def chart(self) -> dict[str, Any] | None:
        """Return the charts of the first values, or bars of numbers."""
        groups = self._groups
        keys = in_order(groups)
        results = [groups[key].result() for key in keys[:_BARS]]
        if results and all(isinstance(each, (int, float)) for each in results):
            labels, values = list(map(str, keys[:_BARS])), [float(each) for each in results]
            return {"kind": "bars", "labels": labels, "values": values, "left_out": len(keys) - len(labels)}
        charts = [(str(key), chart_of(groups[key])) for key in keys[:_CHARTS]]
        drawn = [{"label": label, "chart": chart} for label, chart in charts if chart is not None]
        return {"kind": "groups", "groups": drawn, "left_out": len(keys) - len(drawn)} if drawn else None

    def note(self) -> str:
        """Say what has to be known beside the results."""
        notes = []
        groups = self._groups
        for key in in_order(groups):
            note = note_of(groups[key])
            notes += [f"{key!r}: {note}"] if note else []
        more = f"; and {len(notes) - 3} more" if len(notes) > 3 else ""
        return "; ".join(notes[:3]) + more

    def describe(self) -> dict[str, Any]:
        """Return what identifies it."""
        return {"kind": "By", "column": self.column, "metric": description_of(self._metric)}

    def __repr__(self) -> str:
        return f"By({self.column!r}, {self._metric!r})"

    def _clear(self) -> None:
        self._places: dict[Any, int] = {}  # of groups, by value
        self._many = many_of(self._metric)
        self._seen = None, np.empty(0, np.int64)

    def _merge(self, other: By) -> None:
        places = self._places
        groups = np.array(
            [places[key] if key in places else self._group(key) for key in other._places], np.int64
        )
        if type(self._many) is not type(other._many):  # one is from before there were arrays
            self._many, other._many = self._each(), other._each()
        self._many.merge(other._many, groups)

    def _each(self) -> Each:
        return Each(self._metric, self._many.metrics(len(self._places)))

    def _state(self) -> Any:
        keys = in_order(self._places)
        state = self._many.state([self._places[key] for key in keys])
        return (
            [list(each) for each in zip(keys, state, strict=True)]
            if isinstance(state, list)
            else [keys, state]
        )

    def _restore(self, state: Any) -> None:
        keys, arrays = (
            state if len(state) == 2 and isinstance(state[1], dict) else ([key for key, _ in state], None)
        )
        self._places = {key: number for number, key in enumerate(keys)}
        self._many = many_of(self._metric) if arrays is not None else Each(self._metric)
        self._many.restore(arrays if arrays is not None else [data for _, data in state])


def is_accumulator(value: Any) -> bool:
    """Say whether a value fills the ``Accumulator`` port."""
    return not isinstance(value, type) and fills(value, Accumulator)


def note_of(metric: Accumulator) -> str:
    """Return what has to be known beside a metric's result."""
    return str(completed(metric, AccumulatorParts).note())


def chart_of(metric: Accumulator) -> dict[str, Any] | None:
    """Return plain data for drawing a metric, if it has some."""
    found = completed(metric, AccumulatorParts).chart()
    return dict(found) if found else None


def description_of(metric: Accumulator) -> dict[str, Any]:
    """Return the plain values that identify a metric."""
    described = completed(metric, AccumulatorParts).describe()
    if described is not None:
        return dict(described)
    return {"kind": f"{type(metric).__module__}.{type(metric).__qualname__}", "columns": list(metric.columns)}
