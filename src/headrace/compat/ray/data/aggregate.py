"""Ray's ``ray.data.aggregate``: what is counted of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow.types as pt

from headrace.aggregate import AbsMax as AbsMax
from headrace.aggregate import AsList as AsList
from headrace.aggregate import Count as Count
from headrace.aggregate import CountDistinct as CountDistinct
from headrace.aggregate import Max as Max
from headrace.aggregate import Mean as Mean
from headrace.aggregate import Min as Min
from headrace.aggregate import Quantile as Quantile
from headrace.aggregate import Std as Std
from headrace.aggregate import Sum as Sum
from headrace.aggregate import Unique as Unique
from headrace.annex.queries import grouped
from headrace.annex.queries.aggregates import Aggregate, OfValues
from headrace.compat.ray.data.block import is_null
from headrace.errors import ArgumentError


class MissingValuePercentage(OfValues):
    """Of 100 values of the column, how many are null or NaN."""

    verb = "missing_pct"

    def of(self, column: str, kind: Any) -> str:
        nan = f" OR isnan({column})" if pt.is_floating(kind) else ""
        return f"count(*) FILTER ({column} IS NULL{nan}) / count(*) * 100.0"


class ZeroPercentage(Aggregate):
    """Of 100 values of the column that are not null, how many are zero."""

    verb = "zero_pct"

    def of(self, column: str, kind: Any) -> str:
        return f"count(*) FILTER ({column} = 0) / nullif(count({column}), 0) * 100.0"


class ValueCounter(OfValues):
    """How often each value is there: ``{"values": […], "counts": […]}``, in the order of the values."""

    verb = "value_counter"

    def of(self, column: str, kind: Any) -> str:
        found = f"histogram({column})"
        return f"struct_pack(values := map_keys({found}), counts := map_values({found})::BIGINT[])"


class ApproximateQuantile(OfValues):
    """The values below which such shares of the others lie: a list, one for each of ``quantiles``; exact here."""

    verb = "approx_quantile"

    def __init__(
        self,
        on: str,
        quantiles: Sequence[float],
        quantile_precision: int = 800,
        alias_name: str | None = None,
    ) -> None:
        super().__init__(on, True, alias_name)
        self._quantiles = [float(each) for each in quantiles]

    def of(self, column: str, kind: Any) -> str:
        return f"quantile_disc({column}::DOUBLE, {self._quantiles})"


class ApproximateTopK(OfValues):
    """The ``k`` values that are there most often, ``[{"city": "Rome", "count": 3}, …]``; exact here."""

    verb = "approx_topk"

    def __init__(self, on: str, k: int, log_capacity: int = 15, alias_name: str | None = None) -> None:
        super().__init__(on, True, alias_name)
        self._k = int(k)

    def of(self, column: str, kind: Any) -> str:
        counted = f"map_entries(histogram({column}))"
        ranked = f"list_sort(list_transform({counted}, lambda e: row(-e.value::BIGINT, e.key)))[1:{self._k}]"
        return f"list_transform({ranked}, lambda e: struct_pack({column} := e[2], count := -e[1]))"


class AggregateFn:
    """An aggregation of your own, by functions; all rows of a dataset, or each group, are folded one after the other.

    ``accumulate_row(state, row)`` gets rows as dicts, ``accumulate_block(state, table)`` Arrow tables. ``init(key)``
    returns the first state.

    >>> from headrace.compat import ray
    >>> total = AggregateFn(lambda key: 0, max, "total", accumulate_row=lambda state, row: state + row["id"])
    >>> ray.data.range(4).aggregate(total)
    {'total': 6}
    """

    def __init__(
        self,
        init: Callable[[Any], Any],
        merge: Callable[[Any, Any], Any],
        name: str,
        accumulate_row: Callable[[Any, Any], Any] | None = None,
        accumulate_block: Callable[[Any, Any], Any] | None = None,
        finalize: Callable[[Any], Any] | None = None,
    ) -> None:
        if (accumulate_row is None) == (accumulate_block is None):
            raise ArgumentError(f"AggregateFn {name!r} takes one of accumulate_row and accumulate_block.")
        self.name, self.init, self.merge, self.finalize = name, init, merge, finalize or (lambda state: state)
        self._row, self._block = accumulate_row, accumulate_block

    def of(self, key: Any, tables: Iterable[Any]) -> Any:
        """Return the result for tables of one group."""
        state = self.init(key)
        for table in tables:
            state = self._folded(state, table)
        return self.finalize(state)

    def _folded(self, state: Any, table: Any) -> Any:
        if self._block is not None:
            return self._block(state, table)
        assert self._row is not None
        for row in table.to_pylist():
            state = self._row(state, row)
        return state


class AggregateFnV2(AggregateFn):
    """Base of classes of your own: ``aggregate_block(table)``, ``combine(state, other)`` and ``finalize(state)``.

    A state that is None is of a table without values: with ``ignore_nulls`` it counts for nothing, else it is the
    result.
    """

    def __init__(
        self, name: str, zero_factory: Callable[[], Any], *, on: str | None = None, ignore_nulls: bool = True
    ) -> None:
        first = None if ignore_nulls else zero_factory
        end = getattr(self, "_finalize", self.finalize)  # its name before Ray 2.50
        super().__init__(lambda key: first and first(), self.combine, name, None, self._folded, end)
        self._target_col_name, self._ignore_nulls = on, ignore_nulls

    def of(self, key: Any, tables: Iterable[Any]) -> Any:
        """Return the result for tables of one group."""
        state = self.init(key)
        for table in tables:
            state = self._folded(state, table)
        return None if is_null(state) else self.finalize(state)

    def aggregate_block(self, block: Any) -> Any:
        """Return the state of a table."""
        raise NotImplementedError

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        """Return the state of both."""
        raise NotImplementedError

    def finalize(self, accumulator: Any) -> Any:
        """Return the result."""
        return accumulator

    def get_target_column(self) -> str | None:
        """Return the column that it reads."""
        return self._target_col_name

    def _folded(self, state: Any, table: Any) -> Any:
        new = self.aggregate_block(table)
        if is_null(new):
            return state if self._ignore_nulls else new
        if is_null(state):
            return new if self._ignore_nulls else state
        return self.combine(state, new)


class GroupedData(grouped.GroupedData):
    """Groups that take ``AggregateFn``, too, and expressions; functions get DataFrames, unless told otherwise."""

    def aggregate(self, *aggs: Any) -> Any:
        """Return a row for each group: its keys, and what each of ``aggs`` gives; all of Ray's, or all your own."""
        if not are_own(aggs):
            return super().aggregate(*aggs)
        keys, names = self._keys, grouped.distinct_names(self._keys, aggs)

        def counted(group: Any) -> dict[str, list[Any]]:
            values = {name: [group.column(name)[0].as_py()] for name in keys}
            key = tuple(value for (value,) in values.values()) or (None,)
            made = [[each.of(key if len(keys) > 1 else key[0], [group])] for each in aggs]
            return values | dict(zip(names, made, strict=True))

        return self.map_groups(counted, batch_format="pyarrow")

    def map_groups(self, fn: Any, *, batch_format: Any = "default", **options: Any) -> Any:
        """Replace each group by what ``fn`` returns; it gets a DataFrame, unless ``batch_format`` says otherwise."""
        how = "pandas" if batch_format == "default" else batch_format
        return super().map_groups(fn, batch_format=how, **options)

    def with_column(self, column_name: str, expr: Any, **options: Any) -> Any:
        """Add a column to the rows of each group; a ``udf`` gets the values of one group at a time.

        >>> import pytest
        >>> _ = pytest.importorskip("duckdb")
        >>> from headrace.compat import ray
        >>> groups = ray.data.from_items([{"a": 2, "b": 3}, {"a": 1, "b": 4}]).groupby("a")
        >>> groups.with_column("c", ray.data.expressions.col("b") * 2).take_all()
        [{'a': 1, 'b': 4, 'c': 8}, {'a': 2, 'b': 3, 'c': 6}]
        """
        if not callable(expr):
            rows = self.map_groups(lambda group: group, batch_format="pyarrow", **options)
            return rows.with_column(column_name, expr)

        def added(group: Any) -> Any:
            return group.append_column(column_name, expr(group))

        return self.map_groups(added, batch_format="pyarrow", **options)


def are_own(aggs: Any) -> bool:
    """Say whether aggregations are the user's own; raise if only some are."""
    own = [isinstance(each, AggregateFn) for each in aggs]
    if any(own) and not all(own):
        raise ArgumentError("aggregate takes AggregateFns or others, not both: call it twice.")
    return any(own)
