"""Verbs that an engine answers, such as joins, sorts and groups: each is the text of a query and its inputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from headrace.core.arguments import known_arguments
from headrace.core.human import short_repr
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError, nearest
from headrace.plan import ray_arguments
from headrace.plan.parameters import given_names, given_number, given_rows

if TYPE_CHECKING:
    from headrace.annex.queries.grouped import GroupedData


class QueryVerbs(DatasetBase):
    """Verbs whose rows are the result of a query. Nothing runs yet; docs/queries.md says what happens then."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.JOIN)
    def join(
        self,
        ds: Self,
        how: str | None = None,
        num_partitions: int | None = None,
        on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        left_suffix: str | None = None,
        right_suffix: str | None = None,
        *,
        join_type: str | None = None,
    ) -> Self:
        """Put rows of another dataset beside the rows here that have the same keys.

        A null is the same as nothing, NaN the same as NaN. The columns are those here, then those of ``ds`` that are
        no keys. The order of the rows is not specified, and stays what it is for a run.

        Parameters
        ----------
        ds
            The other dataset.
        how
            ``"inner"``; ``"left_outer"``, ``"right_outer"``, ``"full_outer"``: rows without a partner are kept, with
            nulls; ``"left_semi"``, ``"left_anti"``: only rows here that have a partner, or that have none; likewise
            ``"right_semi"`` and ``"right_anti"``. ``"left"``, ``"right"``, ``"outer"``, ``"semi"`` and ``"anti"`` are
            short for these. ``join_type`` is Ray Data's name for it. Default: ``"inner"``.
        on
            The key: a column's name, or a list of them.
        right_on
            What the key is called in ``ds``, if it has other names.
        left_suffix, right_suffix
            Put behind the names of columns that both sides have.
        num_partitions
            Taken for programs of Ray Data; it has no effect.

        Raises
        ------
        ArgumentError
            For an invalid value, keys of different types, or columns of one name. ``UnknownColumn``: there is no such
            key. ``PlanError``, ``MissingLibrary``: as ``hr.sql`` does.

        Examples
        --------
        >>> import headrace as hr
        >>> rides = hr.from_items([{"zone": 1, "fare": 5.0}, {"zone": 9, "fare": 7.5}])
        >>> zones = hr.from_items([{"zone": 1, "name": "Harbour"}])
        >>> rides.join(zones, on="zone", how="left").sort("zone").take_all()
        [{'zone': 1, 'fare': 5.0, 'name': 'Harbour'}, {'zone': 9, 'fare': 7.5, 'name': None}]
        """
        from headrace.annex.queries.texts import join

        if not isinstance(ds, DatasetBase):
            raise ArgumentError(
                f"join({short_repr(ds)}): it takes another dataset, which read_* and from_* make."
            )
        left, right = (self._schema(), left_suffix), (ds._schema(), right_suffix)
        label, text = join(how, join_type, on, right_on, left, right)
        return self._answered(label, text, numbered=False, other=ds)

    @known_arguments(also=ray_arguments.SORT)
    def sort(self, key: str | Sequence[str], descending: bool | Sequence[bool] = False) -> Self:
        """Sort all rows by one or several columns; rows with the same key stay in their order.

        Nulls come last, and NaN just before them, in both directions. Texts are compared by their code points.

        Parameters
        ----------
        key
            A column's name, or a list of them.
        descending
            Whether the biggest come first: for all columns, or a list with one for each.

        Raises
        ------
        ArgumentError
            For an invalid value. ``UnknownColumn``: there is no such column. ``PlanError``, ``MissingLibrary``: as
            ``hr.sql`` does.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.from_items([3, None, 5, 1]).sort("item", descending=True).take_all()
        [{'item': 5}, {'item': 3}, {'item': 1}, {'item': None}]
        """
        keys = given_names("sort", key)
        label = f"sort({list(keys)})"
        from headrace.annex.queries.texts import order_by

        order = order_by(label, self._schema(), keys, descending)
        return self._rows_of_data(label, f"ORDER BY {order}, _row")

    @known_arguments(also=ray_arguments.SHUFFLE)
    def random_shuffle(self, *, seed: int | None = None) -> Self:
        """Put all rows into an order that looks random: that of a hash of their number and ``seed``.

        So a seed means the same order for ever, however the input is cut. None is 0, and not, as in Ray Data, another
        one each time. Raises ``ArgumentError`` for no whole number; ``PlanError`` and ``MissingLibrary`` as
        ``hr.sql`` does.

        >>> import headrace as hr
        >>> hr.range(5).random_shuffle(seed=1).take_all()
        [{'id': 2}, {'id': 1}, {'id': 4}, {'id': 0}, {'id': 3}]
        """
        from headrace.annex.queries.texts import drawn_by

        drawn = drawn_by("random_shuffle", seed)
        return self._rows_of_data(f"random_shuffle(seed={seed or 0})", f"ORDER BY {drawn}, _row")

    @known_arguments
    def groupby(self, key: str | Sequence[str] | None, num_partitions: int | None = None) -> GroupedData:
        """Return the rows in groups: those that have the same ``key``, a column's name or a list of them.

        None makes one group of all. What is counted of the groups, or made of them, is a verb of the result, such as
        ``mean("fare")``, ``aggregate(…)`` or ``map_groups(fn)``. Null is a group, and so is NaN. ``num_partitions``
        is taken for programs of Ray Data, and has no effect. Raises ``ArgumentError`` for what is no name,
        ``UnknownColumn`` for one that is not there.

        >>> import headrace as hr
        >>> fares = {"city": ["b", "a", "b"], "fare": [5.0, 7.5, 6.0]}
        >>> rides = hr.from_items([{"city": c, "fare": f} for c, f in zip(*fares.values())])
        >>> rides.groupby("city").mean("fare").take_all()
        [{'city': 'a', 'mean(fare)': 7.5}, {'city': 'b', 'mean(fare)': 5.5}]
        """
        from headrace.annex.queries.grouped import GroupedData
        from headrace.annex.queries.texts import check_names

        keys = () if key is None else given_names("groupby", key)
        schema = self._schema()
        check_names(f"groupby({list(keys)})", keys, schema)
        return GroupedData(self, keys, schema)  # type: ignore[arg-type]

    @known_arguments
    def aggregate(self, *aggs: Any) -> dict[str, Any]:
        """Return numbers about all rows, by name; ``aggs`` are of ``headrace.aggregate``, such as ``Sum("fare")``.

        Raises ``ArgumentError`` for what is none, or for a column of which there is no such number;
        ``UnknownColumn``; and what a run raises.

        >>> import headrace as hr
        >>> from headrace.aggregate import Max, Quantile
        >>> hr.range(5).aggregate(Max("id"), Quantile("id", q=0.9))
        {'max(id)': 4, 'quantile(id)': 3.6}
        """
        (row,) = self.groupby(None).aggregate(*aggs).take_all()
        return dict(row)

    @known_arguments
    def drop_duplicates(self, key: str | Sequence[str] | None = None, *, keep: str | bool = "first") -> Self:
        """Keep one row of those that have the same ``key``; the rows stay in their order.

        Nulls are the same, and so are NaN.

        Parameters
        ----------
        key
            A column's name, or a list of them. Default: all columns.
        keep
            ``"first"``, ``"last"``, or False for none of several. For the newest row of each key take
            ``top_k(1, by="time", per=key)``.

        Raises
        ------
        ArgumentError
            For an invalid value. ``UnknownColumn``: there is no such column. ``PlanError``, ``MissingLibrary``: as
            ``hr.sql`` does.

        Examples
        --------
        >>> import headrace as hr
        >>> rows = hr.from_items([{"id": 1, "x": "a"}, {"id": 2, "x": "b"}, {"id": 1, "x": "c"}])
        >>> rows.drop_duplicates("id").take_all()
        [{'id': 1, 'x': 'a'}, {'id': 2, 'x': 'b'}]
        """
        if keep not in ("first", "last", False):
            raise ArgumentError(
                f"drop_duplicates: keep={keep!r} is none of 'first', 'last' and False."
                f"{nearest(str(keep), ['first', 'last'])}"
            )
        from headrace.annex.queries.texts import check_names, listed

        schema = self._schema()
        keys = tuple(schema.names) if key is None else given_names("drop_duplicates", key)
        label = f"drop_duplicates({list(keys) if key is not None else ''})"
        check_names(label, keys, schema)
        chosen = "max" if keep == "last" else "min"
        once = "" if keep else " HAVING count(*) = 1"
        rows = f"SELECT {chosen}(_row) FROM data GROUP BY {listed(keys)}{once}"
        return self._rows_of_data(label, f"WHERE _row IN ({rows}) ORDER BY _row")

    @known_arguments
    def top_k(
        self,
        k: int,
        *,
        by: str | Sequence[str],
        per: str | Sequence[str] | None = None,
    ) -> Self:
        """Keep the ``k`` rows with the biggest values, of all or of each group, the biggest first.

        Parameters
        ----------
        k
            How many rows, 1 or more.
        by
            A column's name, or a list of them, by which rows are compared. Nulls and NaN come last, as in ``sort``;
            of equal rows the first is taken.
        per
            The columns of the groups. The result is sorted by them.

        Raises
        ------
        ArgumentError
            For an invalid value. ``UnknownColumn``: there is no such column. ``PlanError``, ``MissingLibrary``: as
            ``hr.sql`` does.

        Examples
        --------
        >>> import headrace as hr
        >>> scores = hr.from_items([{"zone": 1, "p": 0.2}, {"zone": 1, "p": 0.7}, {"zone": 2, "p": 0.4}])
        >>> scores.top_k(1, by="p", per="zone").take_all()
        [{'zone': 1, 'p': 0.7}, {'zone': 2, 'p': 0.4}]
        """
        if given_rows("top_k", "k", k) < 1:
            raise ArgumentError(f"top_k({k!r}): it takes a number of rows, 1 or more.")
        from headrace.annex.queries.texts import best_of_groups, order_by

        columns = given_names("top_k: by", by)
        groups = () if per is None else given_names("top_k: per", per)
        label = f"top_k({k}, by={list(columns)}{f', per={list(groups)}' if groups else ''})"
        if not groups:
            order = order_by(label, self._schema(), columns, True)
            return self._rows_of_data(label, f"ORDER BY {order}, _row LIMIT {k}")
        return self._answered(label, best_of_groups(k, label, self._schema(), columns, groups))

    # ------------------------------------------------------------ splits by number

    @known_arguments
    def split_proportionately(self, proportions: Sequence[float]) -> list[Self]:
        """Divide the rows, in their order, into parts of these ``proportions``, and a last one of the rest; all lazy.

        Each part that runs reads this dataset: ``write_parquet`` it first, and read that, if its steps cost much.
        Raises ``ArgumentError`` unless the shares are above 0 and add up to less than 1; ``PlanError`` and
        ``MissingLibrary`` as ``hr.sql`` does.

        >>> import headrace as hr
        >>> [part.count() for part in hr.range(10).split_proportionately([0.2, 0.5])]
        [2, 5, 3]
        """
        given = proportions if isinstance(proportions, (list, tuple)) else ()
        shares = [given_number("split_proportionately", each) or 0.0 for each in given]
        if not shares or min(shares) <= 0 or sum(shares) >= 1:
            raise ArgumentError(
                f"split_proportionately({short_repr(proportions)}): shares are above 0 and add up to less than 1, "
                "such as [0.7, 0.2]. The rest is the last part."
            )
        ends = [round(end, 12) for end in itertools.accumulate(shares)]
        return self._parts(
            "split_proportionately", [f"floor({end!r} * (SELECT count(*) FROM data))" for end in ends]
        )

    @known_arguments
    def split_at_indices(self, indices: Sequence[int]) -> list[Self]:
        """Divide the rows before each number of ``indices``, which increase; all parts are lazy, as above.

        Raises ``ArgumentError`` for what are no such numbers; ``PlanError`` and ``MissingLibrary`` as ``hr.sql``
        does.

        >>> import headrace as hr
        >>> [part.count() for part in hr.range(10).split_at_indices([3, 9])]
        [3, 6, 1]
        """
        given = indices if isinstance(indices, (list, tuple)) else ()
        numbers = [given_rows("split_at_indices", "indices", each) for each in given]
        if not numbers or numbers != sorted(numbers):
            raise ArgumentError(
                f"split_at_indices({short_repr(indices)}): it takes numbers of rows that increase, such as "
                "[100, 200]."
            )
        return self._parts("split_at_indices", list(map(str, numbers)))

    @known_arguments(also=ray_arguments.SPLIT)
    def split(self, n: int, *, equal: bool = False) -> list[Self]:
        """Divide the rows, in their order, into ``n`` parts of about the same size; all are lazy, as above.

        With ``equal`` they have the very same, and the rows that are left over are left out. Raises ``ArgumentError``
        for no number above 0; ``PlanError`` and ``MissingLibrary`` as ``hr.sql`` does.

        >>> import headrace as hr
        >>> [part.count() for part in hr.range(10).split(3, equal=True)]
        [3, 3, 3]
        """
        if given_rows("split", "n", n) < 1:
            raise ArgumentError(f"split({n!r}): it takes a number of parts, 1 or more.")
        rows = "(SELECT count(*) FROM data)"
        share = f"({rows} // {n})"
        ends = [f"{i} * {share}" if equal else f"{i} * {rows} // {n}" for i in range(1, n + equal)]
        return self._parts("split", ends)[:n]

    def _parts(self, verb: str, ends: list[str]) -> list[Self]:
        starts, stops = ["0", *ends], [*(f" AND _row < {end}" for end in ends), ""]
        return [
            self._rows_of_data(f"{verb}, part {number}", f"WHERE _row >= {start}{stop} ORDER BY _row")
            for number, (start, stop) in enumerate(zip(starts, stops, strict=True), 1)
        ]

    # ------------------------------------------------------------ what they share

    def _rows_of_data(self, label: str, rest: str) -> Self:
        """Return rows of this dataset: which, and in what order, says the rest of the query."""
        return self._answered(label, f"SELECT * EXCLUDE (_row) FROM data {rest}")

    def _answered(
        self,
        label: str,
        text: str,
        *,
        numbered: bool = True,
        packed: tuple[str, ...] | None = None,
        **inputs: Any,
    ) -> Self:
        """Return the dataset of a query of this one, ``data``, whose rows have their number as ``_row``."""
        from headrace.annex.queries.source import queried
        from headrace.annex.queries.texts import check_free

        if numbered:
            check_free(label, self._schema())
        found = queried(
            text,
            {"data": self, **inputs},
            label=label,
            numbered=numbered,
            packed=packed,
        )
        return type(self)(found._plan, self._options)
