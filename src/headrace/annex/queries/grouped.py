"""Rows in groups: numbers about each of them, or a function of the user's for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow.types as pt

from headrace.annex.queries.aggregates import (
    AGGREGATES,
    Aggregate,
    Count,
    Max,
    Mean,
    Min,
    Quantile,
    Std,
    Sum,
    given_aggregates,
)
from headrace.annex.queries.duckdb import plain, quoted
from headrace.annex.queries.engines import engine_named
from headrace.core.arguments import known_arguments
from headrace.core.tables import type_text
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments
from headrace.plan.parameters import given_batch_format, given_function, given_names, given_resources
from headrace.plan.verb_options import StepOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.arrow.batch_formats import BatchFormat
    from headrace.dataset.dataset import Dataset


class GroupedData:
    """The rows of a dataset in groups, made by ``Dataset.groupby``. Each verb returns a dataset, and nothing runs.

    A dataset of numbers has a row for each group, sorted by the keys, with nulls last: first the keys, then columns
    such as ``mean(fare)``. Nulls are left out of what is counted, unless ``ignore_nulls=False``: then one makes the
    result null. NaN is a value, as in ``Dataset.sum``.

    >>> import headrace as hr
    >>> rides = hr.from_items([{"city": "a", "fare": 5.0}, {"city": "a", "fare": 7.0}, {"city": None, "fare": 1.0}])
    >>> rides.groupby("city").count().take_all()
    [{'city': 'a', 'count()': 2}, {'city': None, 'count()': 1}]
    """

    def __init__(self, dataset: Dataset, keys: tuple[str, ...], schema: pa.Schema) -> None:
        """Not for users: ``Dataset.groupby`` makes it."""
        self._dataset, self._keys, self._schema = dataset, keys, schema

    def __repr__(self) -> str:
        key = self._keys[0] if len(self._keys) == 1 else list(self._keys) or None
        return f"GroupedData(dataset={self._dataset!r}, key={key!r})"

    @known_arguments
    def count(self) -> Dataset:
        """Count the rows of each group.

        >>> import headrace as hr
        >>> hr.from_items(["b", "a", "b"]).groupby("item").count().take_all()
        [{'item': 'a', 'count()': 1}, {'item': 'b', 'count()': 2}]
        """
        return self._counted("count", [Count()])

    @known_arguments
    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        """Add up columns: integers and decimals exactly, as int64, uint64 or decimal; floats as float64.

        ``on`` is a column's name, or a list of them; None: all that are no keys. Raises ``ArgumentError`` for a
        column of which there is no such number, ``UnknownColumn`` for one that is not there.

        >>> import headrace as hr
        >>> hr.from_items([{"a": 1, "b": 2}, {"a": 1, "b": 3}]).groupby("a").sum("b").take_all()
        [{'a': 1, 'sum(b)': 5}]
        """
        return self._on("sum", on, lambda name: Sum(name, ignore_nulls))

    @known_arguments
    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        """Return the smallest values of columns; ``on`` and what is raised as in ``sum``.

        >>> import headrace as hr
        >>> hr.range(4).groupby(None).min().take_all()
        [{'min(id)': 0}]
        """
        return self._on("min", on, lambda name: Min(name, ignore_nulls))

    @known_arguments
    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        """Return the biggest values of columns; ``on`` and what is raised as in ``sum``.

        >>> import headrace as hr
        >>> hr.range(4).groupby(None).max().take_all()
        [{'max(id)': 3}]
        """
        return self._on("max", on, lambda name: Max(name, ignore_nulls))

    @known_arguments
    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        """Return the means of columns, float64; ``on`` and what is raised as in ``sum``.

        >>> import headrace as hr
        >>> hr.range(4).groupby(None).mean("id").take_all()
        [{'mean(id)': 1.5}]
        """
        return self._on("mean", on, lambda name: Mean(name, ignore_nulls))

    @known_arguments
    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> Dataset:
        """Return the standard deviations of columns, float64; NaN where a value is infinite.

        ``ddof`` is taken from the number of values to divide by; the result is null if nothing is left. ``on`` and
        what is raised as in ``sum``.

        >>> import headrace as hr
        >>> hr.range(3).groupby(None).std("id").take_all()
        [{'std(id)': 1.0}]
        """
        return self._on("std", on, lambda name: Std(name, ddof, ignore_nulls))

    @known_arguments
    def quantile(
        self, on: str | Sequence[str] | None = None, q: float = 0.5, ignore_nulls: bool = True
    ) -> Dataset:
        """Return quantiles of columns, float64; between two values they lie on the line that joins them.

        ``on`` and what is raised as in ``sum``.

        >>> import headrace as hr
        >>> hr.range(4).groupby(None).quantile("id", q=0.5).take_all()
        [{'quantile(id)': 1.5}]
        """
        return self._on("quantile", on, lambda name: Quantile(name, q, ignore_nulls))

    @known_arguments
    def aggregate(self, *aggs: Any) -> Dataset:
        """Return several numbers about each group: ``aggs`` are of ``headrace.aggregate``, such as ``Sum("fare")``.

        Raises ``ArgumentError`` for what is none, or for a column of which there is no such number;
        ``UnknownColumn``.

        >>> import headrace as hr
        >>> from headrace.aggregate import Count, Max
        >>> hr.from_items([{"a": 1, "b": 2}, {"a": 1, "b": 3}]).groupby("a").aggregate(Count(), Max("b")).take_all()
        [{'a': 1, 'count()': 2, 'max(b)': 3}]
        """
        return self._counted("aggregate", given_aggregates("aggregate", aggs))

    @known_arguments(also=ray_arguments.STEPS, options=StepOptions)
    def map_groups(
        self,
        fn: Callable[..., Any],
        *,
        batch_format: BatchFormat | str | None = "numpy",
        zero_copy_batch: bool = True,
        **options: Unpack[StepOptions],
    ) -> Dataset:
        """Replace each group by what ``fn`` returns for all its rows, which are one batch, in their order.

        Groups come in the order of their keys. A group has to fit into the memory of a worker, several times over: it
        is read, converted and given to ``fn`` as a whole. A group is one row of the counts, and of ``rejected``,
        where it has a list for each column.

        Parameters
        ----------
        fn
            A function, callable object or class, as in ``map_batches``.
        batch_format
            ``"numpy"``, ``"pandas"`` or ``"pyarrow"``, as in ``map_batches``.
        zero_copy_batch
            False: arrays and DataFrames are copies, and ``fn`` may write to them.
        fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, compute, concurrency, num_cpus, num_gpus,
        memory, ray_remote_args, version
            As in ``map_batches``.

        Raises
        ------
        ArgumentError
            For an invalid value, or a key that holds more than one value. What ``fn`` raises comes as ``StepError``
            when the plan runs.

        Examples
        --------
        >>> import headrace as hr
        >>> rows = [{"city": "b", "fare": 5.0}, {"city": "a", "fare": 7.5}, {"city": "b", "fare": 6.0}]
        >>> def most(group):
        ...     return {"city": group["city"][:1], "most": [group["fare"].max()]}
        >>> hr.from_items(rows).groupby("city").map_groups(most).take_all()
        [{'city': 'a', 'most': 7.5}, {'city': 'b', 'most': 6.0}]
        """
        from headrace.annex.queries.map_groups import MapGroups

        function = given_function("map_groups", fn, options)
        for key in self._keys:
            if pt.is_nested(plain(self._schema.field(key).type)):
                raise ArgumentError(
                    f"map_groups: the key {key!r} is {type_text(self._schema.field(key).type)}, and a key is one "
                    "value in each row."
                )
        order = ", ".join([*(f"{quoted(key)} NULLS LAST" for key in self._keys), "_row"])
        text = f"SELECT * EXCLUDE (_row) FROM data ORDER BY {order}"
        groups = self._dataset._answered(f"groupby({list(self._keys)}).map_groups", text, packed=self._keys)
        how, resources = given_batch_format(batch_format), given_resources(options)
        return groups.with_step(
            MapGroups(function, 1, how, None, resources, writable=not zero_copy_batch, schema=self._schema)
        )

    def _on(
        self, verb: str, on: str | Sequence[str] | None, aggregate: Callable[[str], Aggregate]
    ) -> Dataset:
        others = [name for name in self._schema.names if name not in self._keys]
        if on is None and not others:
            raise ArgumentError(f"{verb}: all columns are keys, so that there is none to count.")
        names = others if on is None else given_names(verb, on)
        return self._counted(verb, [aggregate(name) for name in names])

    def _counted(self, verb: str, aggregates: Sequence[Aggregate]) -> Dataset:
        keys = [quoted(key) for key in self._keys]
        named = zip(aggregates, distinct_names(self._keys, aggregates), strict=True)
        columns = [*keys, *(f"{each.text(self._schema)} AS {quoted(name)}" for each, name in named)]
        text = f"SELECT {', '.join(columns)} FROM data"
        if keys:
            order = ", ".join(f"{key} NULLS LAST" for key in keys)
            text += f" GROUP BY {', '.join(keys)} ORDER BY {order}"
        label = f"groupby({list(self._keys)}).{verb}" if keys else verb
        dataset = self._dataset
        used = [*self._keys, *(each.on for each in aggregates if each.on)]
        refused = engine_named("duckdb").refusal
        if used and any(refused(each.type) for each in self._schema if each.name not in used):
            dataset = dataset.select_columns(list(dict.fromkeys(used)))
        numbered = any(type(each) is AGGREGATES["AsList"] for each in aggregates)
        return dataset._answered(label, text, numbered=numbered)


def distinct_names(keys: Sequence[str], aggregates: Sequence[Any]) -> list[str]:
    """Return what columns of aggregates are called: ``sum(a)``, and ``sum(a)_2`` where that is taken."""
    taken = dict.fromkeys(keys)
    for each in aggregates:
        name, number = each.name, 2
        while name in taken:
            name, number = f"{each.name}_{number}", number + 1
        taken[name] = None
    return [*taken][len(keys) :]
