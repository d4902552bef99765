"""What ``Dataset.sum``, ``min``, ``max``, ``mean`` and ``std`` count: nulls are left out, NaN is a value."""

from __future__ import annotations

import decimal
import math
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.accumulators.base import Metric
from headrace.accumulators.exact import from_state, to_state, whole
from headrace.core.arrow.batch_formats import to_numpy
from headrace.errors import ArgumentError

N = TypeVar("N", bound="ColumnNumber")

_DECIMAL_DIGITS = 76
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


class ColumnNumber(Metric):
    """Base of a number about ``column``: None if there is no value, or if there is a null and nulls count.

    A subclass has the verb for messages, and counts in the methods that ``_add_values`` comes first of.
    """

    settings: tuple[str, ...] = ("column", "ignore_nulls")
    verb: ClassVar[str]
    _count = 0

    def __init__(self, column: str, *, ignore_nulls: bool = True) -> None:
        self.column, self.ignore_nulls = column, ignore_nulls
        self._begin([column], "count")

    def empty(self: N) -> N:
        """Return one with the same settings that has seen no row."""
        other = super().empty()
        other._count = 0
        return other

    def update(self, batch: pa.RecordBatch) -> None:
        """Count the values of a batch. Raises ``ArgumentError`` for a type that has no such number."""
        column = batch.column(self.column)
        try:
            self._add_values(column)
        except (pa.ArrowException, TypeError) as error:
            raise ArgumentError(
                f"{self.verb}({self.column!r}): there is no such number for a column of type {column.type}."
            ) from error
        self.skipped += column.null_count
        self._count += len(column) - column.null_count

    def result(self) -> Any:
        """Return the number."""
        return None if not self._count or (self.skipped and not self.ignore_nulls) else self._number()

    def _merge(self, other: ColumnNumber) -> None:
        self._merge_values(other)
        self._count += other._count

    def _state(self) -> Any:
        return [self._count, self._values_state()]

    def _restore(self, state: Any) -> None:
        self._count, values = state
        self._restore_values(values)

    def _add_values(self, column: pa.Array) -> None:
        """Count a column; ``_count`` is still what it was before."""
        raise NotImplementedError

    def _merge_values(self, other: Any) -> None:
        raise NotImplementedError

    def _values_state(self) -> Any:
        raise NotImplementedError

    def _restore_values(self, state: Any) -> None:
        raise NotImplementedError

    def _number(self) -> Any:
        """Return the number, where there is a value."""
        raise NotImplementedError


class ColumnSum(ColumnNumber):
    """The sum of numbers, booleans or decimals; exact, unless they are floats."""

    verb = "sum"

    def _clear(self) -> None:
        self._whole = 0
        self._float: float | None = None
        self._scale: int | None = None  # of decimals, whose unscaled values ``_whole`` adds up

    def _add_values(self, column: pa.Array) -> None:
        kind = column.type
        pc.sum(column.slice(0, 0))  # raises for a type without a sum
        if column.null_count == len(column):
            return
        if pt.is_floating(kind):
            self._float = (self._float or 0.0) + pc.sum(column).as_py()
        elif pt.is_decimal(kind):
            total = pc.sum(column.cast(pa.decimal256(_DECIMAL_DIGITS, kind.scale))).as_py()
            self._whole += int(_EXACT.scaleb(total, kind.scale))
            self._scale = kind.scale
        else:
            values = to_numpy(column.drop_null() if column.null_count else column)
            self._whole += whole(values.view(np.uint8) if values.dtype.kind == "b" else values)

    def _merge_values(self, other: ColumnSum) -> None:
        self._whole += other._whole
        if other._float is not None:
            self._float = (self._float or 0.0) + other._float
        self._scale = other._scale if self._scale is None else self._scale

    def _values_state(self) -> Any:
        return [to_state(self._whole), self._float, self._scale]

    def _restore_values(self, state: Any) -> None:
        total, self._float, self._scale = state
        self._whole = from_state(total)

    def _number(self) -> Any:
        if self._scale is None:
            return self._whole if self._float is None else self._float + self._whole
        return _EXACT.scaleb(decimal.Decimal(self._whole), -self._scale)


class ColumnMean(ColumnSum):
    """The sum, divided by the number of values."""

    verb = "mean"

    def _number(self) -> Any:
        return super()._number() / self._count


class _ColumnEnds(ColumnNumber):
    """The smallest and the biggest value of any type that Arrow orders; NaN only if there is nothing else."""

    end: ClassVar[int]

    def _clear(self) -> None:
        self._ends: pa.StructArray | None = None

    def _add_values(self, column: pa.Array) -> None:
        ends = pc.min_max(column)  # raises for a type without an order
        if column.null_count < len(column):
            self._widen(pa.repeat(ends, 1))  # which does not import pandas, as pa.array does

    def _widen(self, ends: pa.StructArray) -> None:
        if self._ends is not None:
            both = map(pa.concat_arrays, zip(self._ends.flatten(), ends.flatten(), strict=True))
            fields = [pa.repeat(pc.min_max(each), 1).field(end) for end, each in enumerate(both)]
            ends = pa.StructArray.from_arrays(fields, ["min", "max"])
        self._ends = ends

    def _merge_values(self, other: _ColumnEnds) -> None:
        if other._ends is not None:
            self._widen(other._ends)

    def _values_state(self) -> Any:
        if self._ends is None:
            return None
        sink = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_struct_array(self._ends)
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    def _restore_values(self, state: Any) -> None:
        self._ends = None
        if state is not None:
            with pa.ipc.open_stream(pa.py_buffer(state)) as reader:
                self._ends = reader.read_next_batch().to_struct_array()

    def _number(self) -> Any:
        return None if self._ends is None else self._ends.field(self.end)[0].as_py()


class ColumnMin(_ColumnEnds):
    """The smallest value."""

    verb = "min"
    end = 0


class ColumnMax(_ColumnEnds):
    """The biggest value."""

    verb = "max"
    end = 1


class ColumnStd(ColumnNumber):
    """The standard deviation of the values as float64, merged as Chan, Golub and LeVeque (1979) do."""

    settings = ("column", "ignore_nulls", "ddof")
    verb = "std"

    def __init__(self, column: str, *, ignore_nulls: bool = True, ddof: int = 1) -> None:
        self.ddof = ddof
        super().__init__(column, ignore_nulls=ignore_nulls)

    def _clear(self) -> None:
        self._mean = self._squares = 0.0  # of the distances from the mean

    def _add_values(self, column: pa.Array) -> None:
        values = np.asarray(to_numpy(column.cast(pa.float64()).drop_null()))
        if len(values):
            with np.errstate(over="ignore", invalid="ignore"):
                mean = float(values.mean())
                self._combine(self._count, len(values), mean, float(((values - mean) ** 2).sum()))

    def _combine(self, count: int, more: int, mean: float, squares: float) -> None:
        """Add ``more`` values to the first ``count``."""
        distance = mean - self._mean
        self._squares += squares + distance * distance * count * more / (count + more)
        self._mean += distance * more / (count + more)

    def _merge_values(self, other: ColumnStd) -> None:
        if other._count:
            self._combine(self._count, other._count, other._mean, other._squares)

    def _values_state(self) -> Any:
        return [self._mean, self._squares]

    def _restore_values(self, state: Any) -> None:
        self._mean, self._squares = state

    def _number(self) -> Any:
        left = self._count - self.ddof
        return math.sqrt(self._squares / left) if left > 0 else None


NUMBERS: dict[str, type[ColumnNumber]] = {
    each.verb: each for each in (ColumnSum, ColumnMin, ColumnMax, ColumnMean, ColumnStd)
}
"""The metric for each verb of ``Dataset``."""
