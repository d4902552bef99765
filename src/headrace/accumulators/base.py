"""What the accumulators here have in common: settings, a state as bytes, reading columns, and data for drawing."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from headrace.core.arguments import known_arguments
from headrace.core.arrow.batch import filtered
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.model_columns import kind_of_column
from headrace.core.human import short_repr
from headrace.errors import ArgumentError, BadInput, nearest

Array = np.ndarray[Any, Any]
Nan = Literal["raise", "count"]
M = TypeVar("M", bound="Metric")


class Metric:
    """Base of the accumulators here.

    A subclass sets its settings in ``__init__`` and calls ``_begin``; ``_clear`` makes the state empty, ``_add``
    takes arrays, ``_state`` and ``_restore`` turn the state into plain values and back. Equal states are equal bytes.
    """

    settings: tuple[str, ...] = ()

    columns: tuple[str, ...] = ()
    nan: Nan = "raise"
    skipped: int = 0

    def __init_subclass__(cls) -> None:
        """Have unknown settings refused with the nearest name."""
        super().__init_subclass__()
        made = cls.__dict__.get("__init__")
        if made is not None and not made.__code__.co_flags & inspect.CO_VARKEYWORDS:  # else it takes any
            setattr(cls, "__init__", known_arguments(made))  # noqa: B010 - as mypy sees it

    def _begin(self, columns: Sequence[str | None], nan: Nan = "raise") -> None:
        if nan not in ("raise", "count"):
            raise ArgumentError(
                f"nan={nan!r}: it is 'raise' or 'count'.{nearest(str(nan), ['raise', 'count'])}"
            )
        for name in columns:
            if name is not None and (not isinstance(name, str) or not name):
                raise ArgumentError(f"{type(self).__name__} takes names of columns, not {name!r}.")
        self.columns = tuple(dict.fromkeys(name for name in columns if name is not None))
        self.nan = nan
        self.skipped = 0
        self._clear()

    # ------------------------------------------------------------ the port

    def empty(self: M) -> M:
        """Return one with the same settings that has seen no row."""
        other: M = object.__new__(type(self))  # which is faster than copy.copy
        other.__dict__.update(self.__dict__)
        other.skipped = 0
        other._clear()
        return other

    def update(self, batch: pa.RecordBatch) -> None:
        """Count more rows, which have at least ``columns``."""
        arrays, kept = self._read(batch)
        if batch.num_rows and (kept is None or kept.any()):
            self._add(arrays)

    def merge(self, other: Any) -> None:
        """Merge another of the same settings."""
        self.skipped += other.skipped
        self._merge(other)

    def result(self) -> Any:
        """Return the number or numbers; None where there is none, and ``note`` has the reason."""
        raise NotImplementedError

    def note(self) -> str:
        """Return what has to be known beside the result; an empty string if nothing."""
        left = f"{self.skipped:,} {'row' if self.skipped == 1 else 'rows'} with null or NaN left out"
        left = left if self.skipped else ""
        return "; ".join(filter(None, [self._reason(), left]))

    def chart(self) -> dict[str, Any] | None:
        """Return plain data for drawing what was counted, with its ``kind``; None if there is nothing to draw."""
        return None

    def to_bytes(self) -> bytes:
        """Return the state; ``from_bytes`` of one with the same settings takes it."""
        return msgspec.msgpack.encode([type(self).__name__, self.skipped, self._state()])

    def from_bytes(self: M, data: bytes) -> M:
        """Return one with these settings and that state."""
        kind, skipped, state = msgspec.msgpack.decode(data)
        if kind != type(self).__name__:
            raise ArgumentError(f"This is the state of {kind}, not of {type(self).__name__}.")
        other = self.empty()
        other.skipped = skipped
        other._restore(state)
        return other

    def describe(self) -> dict[str, Any] | None:
        """Return what identifies its settings: plain values."""
        settings = {name: getattr(self, name) for name in self.settings}
        return {"kind": type(self).__name__, **settings, "nan": self.nan}

    def __repr__(self) -> str:
        settings = ", ".join(
            f"{name}={short_repr(getattr(self, name))}"
            for name in self.settings
            if getattr(self, name) is not None
        )
        return f"{type(self).__name__}({settings})"

    # ------------------------------------------------------------ what a subclass does

    def _clear(self) -> None:
        raise NotImplementedError

    def _add(self, arrays: dict[str, Array]) -> None:
        raise NotImplementedError

    def _merge(self, other: Any) -> None:
        raise NotImplementedError

    def _state(self) -> Any:
        raise NotImplementedError

    def _restore(self, state: Any) -> None:
        raise NotImplementedError

    def _reason(self) -> str:
        return ""

    # ------------------------------------------------------------ reading columns

    def _read(self, batch: pa.RecordBatch) -> tuple[dict[str, Array], Array | None]:
        """Return the columns as arrays, without rows that have a null or NaN in one, and which rows are left.

        The second is None if all are.
        """
        kept = self._without_nulls(batch)
        batch = batch.select(list(self.columns)) if kept is None else filtered(batch, kept)
        arrays = {name: to_numpy(batch.column(name)) for name in self.columns}
        bad = None
        for name, values in arrays.items():
            if values.dtype.kind == "f" and len(values) and math.isnan(float(values.min())):
                holes = np.isnan(values)
                if holes.ndim > 1:
                    holes = holes.any(axis=tuple(range(1, holes.ndim)))
                self._refuse(name, "NaN", int(np.count_nonzero(holes)))
                bad = holes if bad is None else bad | holes
        if bad is not None:
            arrays = {name: values[~bad] for name, values in arrays.items()}
            if kept is None:
                kept = ~bad
            else:
                kept[kept] = ~bad
        if kept is not None:
            self.skipped += len(kept) - int(np.count_nonzero(kept))
        return arrays, kept

    def _without_nulls(self, batch: pa.RecordBatch) -> Array | None:
        valid = None
        for name in self.columns:
            column = batch.column(name)
            if not column.null_count:
                continue
            self._refuse(name, "null", column.null_count)
            there = to_numpy(column.is_valid())
            valid = there.copy() if valid is None else valid & there
        return valid

    def _refuse(self, name: str, what: str, count: int) -> None:
        if self.nan == "raise":
            raise BadInput(
                f"{self!r}: column {name!r} holds {count:,} {what}. Correct or filter such rows before, or set "
                "nan='count': they are left out of the metric and counted apart."
            )

    def _numbers(self, arrays: dict[str, Array], name: str) -> Array:
        """Return a column as contiguous float64."""
        values = arrays[name]
        if values.dtype.kind not in "fiub" or values.ndim != 1:
            raise BadInput(f"{self!r}: column {name!r} holds no numbers, but {kind_of(values)}.")
        return np.ascontiguousarray(values, np.float64)

    def _weights(self, arrays: dict[str, Array], name: str | None) -> Array | None:
        """Return the weights, which are finite and not negative; None without a column of them."""
        if name is None:
            return None
        weights = self._numbers(arrays, name)
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise BadInput(f"{self!r}: weights are finite and not negative, and column {name!r} has others.")
        return weights

    def _weighted(
        self, values: Array, arrays: dict[str, Array], name: str | None
    ) -> tuple[Array, Array | None]:
        """Return the values times their weights, and the weights; None for these without a column of them."""
        weights = self._weights(arrays, name)
        return values if weights is None else np.where(weights > 0, values, 0.0) * weights, weights

    def _binary(self, arrays: dict[str, Array], name: str, positive: Any) -> Array:
        """Return which rows are of the positive class."""
        values = arrays[name]
        if positive is not None:
            return np.asarray(values == positive, np.bool_)
        if values.dtype.kind == "b":
            return values
        if values.dtype.kind in "fiu" and values.ndim == 1:
            labels: Array = values != 0
            if (values[labels] == 1).all():
                return labels
        raise BadInput(
            f"{self!r}: the labels in column {name!r} are not 0 and 1, or true and false, but other "
            f"{kind_of(values)}. Say which value is the positive class: positive=…"
        )


def kind_of(values: Array) -> str:
    """Return what an array holds, without its values.

    >>> kind_of(np.array(["Oslo", None], object)), kind_of(np.array([b"x"], object)), kind_of(np.zeros((2, 3)))
    ('text', 'bytes', 'float64 of shape (3,) per row')
    """
    shape = f" of shape {values.shape[1:]} per row" if values.ndim > 1 else ""
    return f"{kind_of_column(values)}{shape}"


def plain_key(value: Any) -> Any:
    """Return a value as something that sorts, hashes and travels: equal numbers of any type become one."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if value is None or isinstance(value, (int, str, bytes)):
        return value
    return str(value)


def in_order(keys: Any) -> list[Any]:
    """Sort keys of any types that ``plain_key`` gives: numbers, then text, then None."""
    kinds = set(map(type, keys))
    if kinds in ({int}, {str}):
        return sorted(keys)
    return sorted(keys, key=_rank)


def _rank(key: Any) -> tuple[int, Any]:
    if isinstance(key, tuple):
        return 0, tuple(map(_rank, key))
    if key is None:
        return 4, 0
    return (1, key) if isinstance(key, (int, float)) else (2 if isinstance(key, str) else 3, key)


def codes_of(values: Array) -> tuple[Array, list[Any]]:
    """Return the number of each row's value among the different ones, and these as plain keys."""
    if values.dtype.kind == "b":
        return values.astype(np.int64), [0, 1]
    if values.dtype.kind in "iu" and len(values):
        low, high = int(values.min()), int(values.max())
        if high - low < 4 * len(values) + 1024:
            return values.astype(np.int64) - low, list(range(low, high + 1))
    if values.dtype == object:
        numbers: dict[Any, int] = {}
        codes = np.fromiter(
            (numbers.setdefault(plain_key(v), len(numbers)) for v in values), np.int64, len(values)
        )
        return codes, list(numbers)
    distinct, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), [plain_key(value) for value in distinct]


class Estimate(float):
    """A number that is known to lie between ``low`` and ``high``."""

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> Estimate:
        result = super().__new__(cls, value)
        result.low, result.high = float(low), float(high)
        return result

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high

    def __repr__(self) -> str:
        return f"{float(self)!r} ({self.low!r} to {self.high!r})"


# ---------------------------------------------------------------- data for drawing, with few points

POINTS = 200  # of a curve
CLASSES = 20  # of a confusion matrix
BINS = 200  # of a histogram


def roc_curve(negative: Array, positive: Array) -> dict[str, Any]:
    """Return the ROC curve of masses by rising score: the share of negative rows (x) and of positive ones (y).

    >>> roc_curve(np.array([1, 1]), np.array([0, 2]))
    {'kind': 'roc', 'x': [0.0, 0.5, 1.0], 'y': [0.0, 1.0, 1.0]}
    """
    x = np.concatenate([[0.0], np.cumsum(negative[::-1].astype(np.float64))])
    y = np.concatenate([[0.0], np.cumsum(positive[::-1].astype(np.float64))])
    x, y = x / x[-1], y / y[-1]
    some = _some(x + y)
    return {"kind": "roc", "x": _plain(x[some]), "y": _plain(y[some])}


def precision_recall_curve(negative: Array, positive: Array) -> dict[str, Any]:
    """Return precision (y) over recall (x) from masses by rising score; ``base`` is the share of positive rows.

    >>> precision_recall_curve(np.array([1, 1]), np.array([0, 2]))
    {'kind': 'precision-recall', 'x': [1.0, 1.0], 'y': [0.66667, 0.5], 'base': 0.5}
    """
    right = np.cumsum(positive[::-1].astype(np.float64))
    wrong = np.cumsum(negative[::-1].astype(np.float64))
    there = right + wrong > 0
    right, wrong = right[there], wrong[there]
    x, y = right / right[-1], right / (right + wrong)
    some = _some(x + np.arange(len(x)) / len(x))
    base = float(right[-1] / (right[-1] + wrong[-1]))
    return {"kind": "precision-recall", "x": _plain(x[some]), "y": _plain(y[some]), "base": round(base, 5)}


def confusion_table(labels: Sequence[Any], matrix: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    """Return the matrix of the most frequent classes; ``left_out`` counts the others.

    >>> confusion_table(["cat", 1], [[1, 0], [2, 3]])
    {'kind': 'confusion', 'labels': ['cat', '1'], 'matrix': [[1, 0], [2, 3]], 'left_out': 0}
    """
    if not labels:
        return None
    mass = [sum(row) + sum(other[i] for other in matrix) for i, row in enumerate(matrix)]
    some = sorted(sorted(range(len(labels)), key=lambda i: -mass[i])[:CLASSES])
    return {
        "kind": "confusion",
        "labels": [str(labels[i]) for i in some],
        "matrix": [[matrix[i][j] for j in some] for i in some],
        "left_out": len(labels) - len(some),
    }


def histogram_bars(
    edges: Sequence[float], counts: Sequence[float], below: float, above: float
) -> dict[str, Any] | None:
    """Return a histogram; where there are many bins, neighbours are joined.

    >>> histogram_bars([0.0, 1.0, 2.0], [4, 5], 0, 1)
    {'kind': 'histogram', 'edges': [0.0, 1.0, 2.0], 'counts': [4, 5], 'below': 0, 'above': 1}
    """
    step = -(-len(counts) // BINS)
    starts = range(0, len(counts), step)
    return {
        "kind": "histogram",
        "edges": [*(edges[i] for i in starts), edges[-1]],
        "counts": [sum(counts[i : i + step]) for i in starts],
        "below": below,
        "above": above,
    }


def _some(along: Array) -> Array:
    """Return the places of some points, evenly along a curve whose lengths up to each point are given."""
    if len(along) <= POINTS:
        return np.arange(len(along))
    wanted = np.linspace(along[0], along[-1], POINTS)
    return np.unique(np.minimum(np.searchsorted(along, wanted), len(along) - 1))


def _plain(values: Array) -> list[float]:
    return [round(float(value), 5) for value in values]
