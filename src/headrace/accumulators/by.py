"""One metric for each value of a column: plain metrics in arrays, any other as one object for each group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.accumulators.base import Array, Metric, codes_of, in_order, plain_key
from headrace.accumulators.exact import SCALE, ExactSums, add_at, column
from headrace.accumulators.moments import Averaged, Count, MinMax, Sum
from headrace.core.arrow.batch import taken
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.plain import is_encoded, plain
from headrace.core.door import completed, fills
from headrace.core.model_ports import Accumulator, AccumulatorParts
from headrace.errors import ArgumentError, BadInput

# ---------------- many groups at once: they have numbers, from 0, and both kinds give the same to the bit


def many_of(metric: Accumulator) -> Each | Arrays:
    """Return what counts for many groups."""
    own: Any = type(metric)
    for kind, many in _ARRAYS:
        if isinstance(metric, kind) and own.update is kind.update and own._add is kind._add:
            return many(metric)
    return Each(metric)


class Each:
    """A metric for each group. ``metric`` has the settings, and has seen no row."""

    def __init__(self, metric: Any, metrics: list[Any] | None = None) -> None:
        self._metric = metric.empty()
        self._metrics: list[Any] = metrics or []

    def update(self, batch: pa.RecordBatch, codes: Array, groups: Array) -> None:
        """Count the rows of a batch, whose group is ``groups[code]``; no group is there twice."""
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1)).tolist()
        ordered = batch if len(starts) == 1 else taken(batch, order)
        for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
            self._of(int(groups[codes[order[start]]])).update(ordered.slice(start, stop - start))

    def _of(self, group: int) -> Any:
        while len(self._metrics) <= group:
            self._metrics.append(self._metric.empty())
        return self._metrics[group]

    def merge(self, other: Any, groups: Array) -> None:
        """Merge another of this class, whose first group is ``groups[0]`` here."""
        for group, metric in zip(groups.tolist(), other.metrics(len(groups)), strict=True):
            self._of(group).merge(metric)

    def metrics(self, count: int) -> list[Any]:
        """Return the metrics of the first ``count`` groups: the metrics themselves."""
        if count:
            self._of(count - 1)
        return self._metrics[:count]

    def state(self, order: list[int]) -> Any:
        """Return plain values for ``restore``, with the groups in this order."""
        return [self._of(group).to_bytes() for group in order]

    def restore(self, state: Any) -> None:
        """Become what this is the state of."""
        self._metrics = [self._metric.from_bytes(data) for data in state]


class Arrays:
    """What ``Each`` does, in arrays: numbers of rows, which is what ``Count`` needs."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric.empty()
        self._counts: dict[str, Array] = {}
        self._sums: dict[str, ExactSums] = {}
        self._most = 0  # rows of one group in the batch that is being counted

    def update(self, batch: pa.RecordBatch, codes: Array, groups: Array) -> None:
        """Count the rows of a batch."""
        arrays, kept = self._metric._read(batch) if self._metric.columns else ({}, None)
        if kept is not None:
            self._count("skipped", codes[~kept], groups)
            codes = codes[kept]
        if len(codes):
            counts = np.bincount(codes, minlength=len(groups))
            self._most = int(counts.max())
            self._add(arrays, codes, groups)
            add_at(self._counts, "rows", groups, counts)

    def _count(self, what: str, codes: Array, groups: Array) -> None:
        add_at(self._counts, what, groups, np.bincount(codes, minlength=len(groups)))

    def _sum(self, what: str, codes: Array, values: Array, groups: Array) -> None:
        self._sums.setdefault(what, ExactSums()).add(codes, values, groups, self._most)

    def _add(self, arrays: dict[str, Array], codes: Array, groups: Array) -> None:
        """Count more than rows."""

    def merge(self, other: Any, groups: Array) -> None:
        """Merge another."""
        for what, counts in other._counts.items():
            add_at(self._counts, what, groups[: len(counts)], counts[: len(groups)])
        for what, sums in other._sums.items():
            self._sums.setdefault(what, ExactSums()).merge(sums, groups)

    def metrics(self, count: int) -> list[Any]:
        """Return new metrics with what was counted."""
        metrics = [self._metric.empty() for _ in range(count)]
        counts = {what: column(array, count)[:count].tolist() for what, array in self._counts.items()}
        for metric, skipped in zip(metrics, counts.get("skipped", []), strict=False):
            metric.skipped = skipped
        self._give(metrics, counts)
        return metrics

    def _give(self, metrics: list[Any], counts: dict[str, list[int]]) -> None:
        for metric, rows in zip(metrics, counts.get("rows", []), strict=False):
            metric._count = rows

    def state(self, order: list[int]) -> Any:
        """Return the arrays as bytes."""
        at = np.array(order, np.int64)
        counts = {
            what: column(array, len(at))[at].astype("<i8").tobytes()
            for what, array in sorted(self._counts.items())
            if array.any()
        }
        return {"counts": counts, "sums": {what: sums.state(at) for what, sums in sorted(self._sums.items())}}

    def restore(self, state: Any) -> None:
        """Become what this is the state of."""
        self._counts = {
            what: np.frombuffer(data, "<i8").astype(np.int64) for what, data in state["counts"].items()
        }
        for what, sums in state["sums"].items():
            self._sums.setdefault(what, ExactSums()).restore(sums)


class _Means(Arrays):
    """The sums of what averages."""

    def _add(self, arrays: dict[str, Array], codes: Array, groups: Array) -> None:
        values, weights = self._metric._weighted(self._metric._values(arrays), arrays, self._metric.weight)
        if weights is not None:
            self._sum("mass", codes, weights, groups)
        self._sum("sum", codes, values, groups)

    def _give(self, metrics: list[Any], counts: dict[str, list[int]]) -> None:
        if "sum" in self._sums:
            weights = self._sums.get("mass")
            masses = weights.totals(len(metrics)) if weights else [rows << SCALE for rows in counts["rows"]]
            for metric, total, mass in zip(
                metrics, self._sums["sum"].sums(len(metrics)), masses, strict=False
            ):
                metric._sum, metric._mass = total, mass


class _Totals(Arrays):
    """The sums of ``Sum``."""

    def _add(self, arrays: dict[str, Array], codes: Array, groups: Array) -> None:
        values = arrays[self._metric.column]
        if self._metric.weight is not None or values.dtype.kind not in "iub" or values.ndim > 1:
            numbers = self._metric._numbers(arrays, self._metric.column)
            values, _ = self._metric._weighted(numbers, arrays, self._metric.weight)
            self._count("floats", codes, groups)
        elif (
            not -(2**53) <= int(values.min()) <= int(values.max()) <= 2**53
        ):  # float64 holds them in two parts
            self._sum("sum", codes, (values >> 32).astype(np.float64) * 2.0**32, groups)
            values = values & 0xFFFFFFFF
        self._sum("sum", codes, values.astype(np.float64), groups)

    def _give(self, metrics: list[Any], counts: dict[str, list[int]]) -> None:
        if "sum" in self._sums:
            floats = counts.get("floats", [0] * len(metrics))
            for metric, total, there in zip(
                metrics, self._sums["sum"].sums(len(metrics)), floats, strict=False
            ):
                metric._sum, metric._floats = total, there > 0


class _Ends(Arrays):
    """The ends of ``MinMax``, for each dtype that there was."""

    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self._ends: dict[str, tuple[Array, Array]] = {}

    def _add(self, arrays: dict[str, Array], codes: Array, groups: Array) -> None:
        values = self._metric._as_they_are(arrays)
        values = values + 0.0 if values.dtype.kind == "f" else values  # there is one zero
        self._widen(values.dtype.str, groups[codes], values, values)

    def _widen(self, dtype: str, groups: Array, low: Array, high: Array) -> None:
        size = int(groups.max()) + 1 if len(groups) else 0
        before = self._ends.get(dtype, (None, None))
        ends = [column(end, size, dtype, fill) for end, fill in zip(before, _span(dtype), strict=True)]
        np.minimum.at(ends[0], groups, low)
        np.maximum.at(ends[1], groups, high)
        self._ends[dtype] = ends[0], ends[1]

    def merge(self, other: Any, groups: Array) -> None:
        """Merge another."""
        super().merge(other, groups)
        for dtype, (low, high) in other._ends.items():
            there = groups[: len(low)]
            self._widen(dtype, there, low[: len(there)], high[: len(there)])

    def _give(self, metrics: list[Any], counts: dict[str, list[int]]) -> None:
        for _, (lows, highs) in sorted(self._ends.items()):
            for metric, low, high in zip(metrics, lows.tolist(), highs.tolist(), strict=False):
                if low <= high:  # else the group has none of them
                    metric._widen(low, high)

    def state(self, order: list[int]) -> Any:
        """Return the arrays as bytes."""
        ends = {
            dtype: [
                column(end, len(order), dtype, fill)[order].tobytes()
                for end, fill in zip(both, _span(dtype), strict=True)
            ]
            for dtype, both in sorted(self._ends.items())
        }
        return {**super().state(order), "ends": ends}

    def restore(self, state: Any) -> None:
        """Become what this is the state of."""
        super().restore(state)
        self._ends = {
            dtype: (np.frombuffer(low, dtype).copy(), np.frombuffer(high, dtype).copy())
            for dtype, (low, high) in state["ends"].items()
        }


def _span(dtype: str) -> tuple[Any, Any]:
    """Return what every value of a dtype is at most, and at least."""
    kind = np.dtype(dtype)
    if kind.kind in "fb":
        return (np.inf, -np.inf) if kind.kind == "f" else (True, False)
    return np.iinfo(kind).max, np.iinfo(kind).min


_ARRAYS: tuple[tuple[type[Metric], type[Arrays]], ...] = (
    (Count, Arrays),
    (Sum, _Totals),
    (Averaged, _Means),
    (MinMax, _Ends),
)


_MOST = 10_000
_SLOTS = 1 << 17  # of a table of integers, a power of two
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
    _slots: tuple[Array, Array]
    _made: dict[Any, Accumulator] | None

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
        self._made = None
        self._many.update(batch, *self._numbered(batch.column(self.column)))

    def _numbered(self, column: pa.Array) -> tuple[Array, Array]:
        """Return a code for each row, and for each code the number of a group; none is there twice."""
        if is_encoded(column.type):
            column = plain(column)
        if pa.types.is_integer(column.type) and not column.null_count:
            hashed = self._hashed(to_numpy(column))
            if hashed is not None:
                return hashed, np.arange(len(self._places))
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

    def _hashed(self, values: Array) -> Array | None:
        """Return the group of each integer, by a table of hashes; None if too many have the same one.

        A batch that is small beside the groups is counted faster by its own values.
        """
        if values.dtype == np.uint64 or len(values) < len(self._places) // 4:
            return None
        if not len(self._slots[0]):  # each slot begins with a value of another one
            self._slots = np.arange(_SLOTS) ^ 1, np.full(_SLOTS, -1)
        values, (keys, groups) = values.astype(np.int64, copy=False), self._slots
        at = values >> _SLOTS.bit_length() - 1
        at += values  # numbers that follow each other have a slot each
        at &= _SLOTS - 1
        missed = np.flatnonzero(keys.take(at) != values)
        new = missed[groups[at[missed]] < 0]
        if len(missed) - len(new) > len(values) // 16:
            return None
        if len(new):
            last = np.full(_SLOTS, -1)  # a row of each slot
            last[at[new]] = new
            rows = last[last >= 0]
            groups[at[rows]] = list(map(self._group, values[rows].tolist()))
            keys[at[rows]] = values[rows]
            missed = missed[keys[at[missed]] != values[missed]]
        found: Array = groups.take(at)
        others, inverse = np.unique(values[missed], return_inverse=True)
        found[missed] = np.array([self._group(value) for value in others.tolist()], np.int64)[inverse]
        return found

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
        """The metric of each value; what asks for results, notes and charts has them made once."""
        if self._made is None:
            self._made = dict(zip(self._places, self._many.metrics(len(self._places)), strict=True))
        return self._made

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

    def describe(self) -> dict[str, Any] | None:
        """Return what identifies it; None where its metric is told from others by its code and attributes."""
        described = completed(self._metric, AccumulatorParts).describe()
        return None if described is None else {"kind": "By", "column": self.column, "metric": dict(described)}

    def __repr__(self) -> str:
        return f"By({self.column!r}, {self._metric!r})"

    def _clear(self) -> None:
        self._made = None
        self._places: dict[Any, int] = {}  # of groups, by value
        self._many = many_of(self._metric)
        self._seen = None, np.empty(0, np.int64)
        self._slots = np.empty(0, np.int64), np.empty(0, np.int64)  # integers, and their groups or -1

    def _merge(self, other: By) -> None:
        places, self._made = self._places, None
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
