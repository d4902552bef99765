"""What ``groupby`` and ``aggregate`` count, as the text of a query; the names are those of Ray Data.

Nulls are left out, unless ``ignore_nulls=False``: then one null makes the result null. NaN is a value, as it is for
``Dataset.sum``: it makes sums, means and quantiles NaN, and is the smallest or biggest value only beside no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.queries.duckdb import plain, quoted
from headrace.core.tables import type_text
from headrace.errors import ArgumentError, nearest, unknown_column


class Aggregate:
    """Base of a number about the column ``on`` of each group; ``alias_name`` is the column that it becomes.

    The default name is, for example, ``sum(fare)``. Raises ``ArgumentError`` for what is no name.
    """

    verb: ClassVar[str]
    takes: ClassVar[str] = "numbers"

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        for name in (on, alias_name):
            if name is not None and (not isinstance(name, str) or not name):
                raise ArgumentError(f"{type(self).__name__} takes the name of a column, not {name!r}.")
        if on is None and type(self) is not Count:
            raise ArgumentError(
                f"{type(self).__name__} needs the name of a column: {type(self).__name__}('fare')."
            )
        self.on, self.ignore_nulls = on, bool(ignore_nulls)
        self.name = alias_name or f"{self.verb}({on or ''})"

    def text(self, schema: pa.Schema) -> str:
        """Return the expression. Raises ``ArgumentError`` for a type of which there is no such number."""
        if self.on is None:
            return self.of("", pa.null())
        if self.on not in schema.names:
            raise unknown_column(self.name, self.on, schema.names)
        kind = plain(schema.field(self.on).type)
        if not self.accepts(kind):
            raise ArgumentError(
                f"{self.name}: it takes {self.takes}, and column {self.on!r} is {type_text(kind)}. Name "
                "the columns to count, as in sum(['fare', 'tip'])."
            )
        column = quoted(self.on)
        found = self.of(column, kind)
        return found if self.ignore_nulls else f"CASE WHEN count(*) = count({column}) THEN {found} END"

    def accepts(self, kind: pa.DataType) -> bool:
        """Say whether there is such a number for a type."""
        return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_boolean(kind))

    def of(self, column: str, kind: pa.DataType) -> str:
        """Return the expression for a column, whose nulls are left out."""
        raise NotImplementedError


class OfValues(Aggregate):
    """Base of what any values have."""

    def accepts(self, kind: pa.DataType) -> bool:
        return True


class _Values(OfValues):
    def __init__(
        self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None
    ) -> None:
        super().__init__(on, True, alias_name)
        self.keeps_nulls = not ignore_nulls

    def _only(self, column: str) -> str:
        return "" if self.keeps_nulls else f" FILTER ({column} IS NOT NULL)"


class Count(_Values):
    """The number of rows; with ``on``, and ``ignore_nulls``, of those in which it is not null.

    >>> Count().name, Count("fare", ignore_nulls=True).name
    ('count()', 'count(fare)')
    """

    verb = "count"

    def of(self, column: str, kind: pa.DataType) -> str:
        return "count(*)" if self.keeps_nulls or not column else f"count({column})"


class Sum(Aggregate):
    """The sum: of integers an int64 (or uint64), of decimals a decimal, both exact; of floats a float64.

    A sum that does not fit ends the run.

    >>> Sum("fare", alias_name="fares").name
    'fares'
    """

    verb = "sum"

    def of(self, column: str, kind: pa.DataType) -> str:
        if pt.is_floating(kind):
            return f"sum({column}::DOUBLE)"
        if pt.is_decimal(kind):
            return f"sum({column})"
        to = "UBIGINT" if pt.is_unsigned_integer(kind) else "BIGINT"
        return f"sum({column}::{to})::{to}"


class Mean(Aggregate):
    """The mean, a float64.

    >>> Mean("fare").name
    'mean(fare)'
    """

    verb = "mean"

    def of(self, column: str, kind: pa.DataType) -> str:
        return f"avg({column}::INTEGER)" if pt.is_boolean(kind) else f"avg({column})"


class _End(Aggregate):
    takes = "values that have an order"

    def accepts(self, kind: pa.DataType) -> bool:
        return not (pt.is_nested(kind) or pt.is_null(kind))

    def of(self, column: str, kind: pa.DataType) -> str:
        # NaN is the last value to be taken
        if not pt.is_floating(kind):
            return f"{self.verb}({column})"
        return f"coalesce({self.verb}({column}) FILTER (NOT isnan({column})), {self.verb}({column}))"


class Min(_End):
    """The smallest value, of the column's type.

    >>> Min("fare").name
    'min(fare)'
    """

    verb = "min"


class Max(_End):
    """The biggest value, of the column's type.

    >>> Max("fare").name
    'max(fare)'
    """

    verb = "max"


class AbsMax(Aggregate):
    """The biggest absolute value.

    >>> AbsMax("change").name
    'abs_max(change)'
    """

    verb = "abs_max"

    def accepts(self, kind: pa.DataType) -> bool:
        return super().accepts(kind) and not pt.is_boolean(kind)

    def of(self, column: str, kind: pa.DataType) -> str:
        most = f"max(abs({column}))"
        return f"coalesce({most} FILTER (NOT isnan({column})), {most})" if pt.is_floating(kind) else most


class _Finite(Aggregate):
    def of(self, column: str, kind: pa.DataType) -> str:
        # NaN where a value is NaN or infinite
        value = f"{column}::INTEGER::DOUBLE" if pt.is_boolean(kind) else f"{column}::DOUBLE"
        if not pt.is_floating(kind):
            return self.of_finite(value, "")
        finite = self.of_finite(value, f" FILTER (isfinite({column}))")
        return f"CASE WHEN bool_or(NOT isfinite({column})) THEN 'NaN'::DOUBLE ELSE {finite} END"

    def of_finite(self, value: str, only: str) -> str:
        """Return the expression for a float64, of which only some count."""
        raise NotImplementedError


class Std(_Finite):
    """The standard deviation, a float64; ``ddof`` is taken from the number of values. Null if nothing is left.

    >>> Std("fare").name
    'std(fare)'
    """

    verb = "std"

    def __init__(
        self,
        on: str | None = None,
        ddof: int = 1,
        ignore_nulls: bool = True,
        alias_name: str | None = None,
    ) -> None:
        if isinstance(ddof, bool) or not isinstance(ddof, int) or ddof < 0:
            raise ArgumentError(f"Std: ddof={ddof!r} is not a whole number, 0 or more.")
        self.ddof = ddof
        super().__init__(on, ignore_nulls, alias_name)

    def of_finite(self, value: str, only: str) -> str:
        if self.ddof < 2:
            return f"{('stddev_pop', 'stddev_samp')[self.ddof]}({value}){only}"
        count = f"count({value}){only}"
        return (
            f"CASE WHEN {count} > {self.ddof} THEN "
            f"stddev_pop({value}){only} * sqrt({count} / ({count} - {self.ddof})) END"
        )


class Quantile(_Finite):
    """The quantile ``q``, from 0 to 1, a float64: between two values it lies on the line that joins them.

    >>> Quantile("fare", q=0.9).name
    'quantile(fare)'
    """

    verb = "quantile"

    def __init__(
        self,
        on: str | None = None,
        q: float = 0.5,
        ignore_nulls: bool = True,
        alias_name: str | None = None,
    ) -> None:
        if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 <= q <= 1:
            raise ArgumentError(f"Quantile: q={q!r} is not a number from 0 to 1.")
        self.q = float(q)
        super().__init__(on, ignore_nulls, alias_name)

    def of_finite(self, value: str, only: str) -> str:
        return f"quantile_cont({value}, {self.q!r}){only}"


class Unique(_Values):
    """The different values, a list in their order; null is one of them, and the last, unless ``ignore_nulls``.

    >>> Unique("city").name
    'unique(city)'
    """

    verb = "unique"

    def of(self, column: str, kind: pa.DataType) -> str:
        return f"list_sort(list(DISTINCT {column}){self._only(column)}, 'ASC', 'NULLS LAST')"


class CountDistinct(_Values):
    """The number of different values; null is one of them, unless ``ignore_nulls``.

    >>> CountDistinct("city").name
    'count_distinct(city)'
    """

    verb = "count_distinct"

    def of(self, column: str, kind: pa.DataType) -> str:
        more = f" + CASE WHEN count(*) > count({column}) THEN 1 ELSE 0 END" if self.keeps_nulls else ""
        return f"count(DISTINCT {column}){more}"


class AsList(_Values):
    """All values, a list in the order of the rows; nulls among them, unless ``ignore_nulls``.

    >>> AsList("city").name
    'list(city)'
    """

    verb = "list"

    def of(self, column: str, kind: pa.DataType) -> str:
        return f"list({column} ORDER BY _row){self._only(column)}"


AGGREGATES: dict[str, type[Aggregate]] = {
    each.__name__: each
    for each in (AbsMax, AsList, Count, CountDistinct, Max, Mean, Min, Quantile, Std, Sum, Unique)
}


def given_aggregates(label: str, given: Sequence[Any]) -> list[Aggregate]:
    """Check what somebody wants to know of each group."""
    if not given:
        raise ArgumentError(f"{label}: name what to count, such as headrace.aggregate.Sum('fare').")
    for each in given:
        if not isinstance(each, Aggregate):
            name, known = getattr(each, "__name__", str(each)), sorted(AGGREGATES)
            raise ArgumentError(
                f"{label}: {each!r} is none of {', '.join(known)} of headrace.aggregate, such as Sum('fare')."
                f"{nearest(name.partition('(')[0].title(), known)}"
            )
    return list(given)
