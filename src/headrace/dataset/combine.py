"""Verbs that put datasets together: nothing runs yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from headrace.core.arguments import known_arguments
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError


class CombiningVerbs(DatasetBase):
    """Verbs that make one dataset of several."""

    __slots__ = ()

    @known_arguments
    def union(self, *other: Self) -> Self:
        """Put the rows of other datasets behind those of this one, in this order.

        Each dataset's steps, those before the union, get its own rows only; steps behind it get all. A column that
        one dataset lacks is null in its rows; types are widened where no value changes. Where a function makes the
        columns of a dataset, nobody knows them before it runs: then steps behind the union get each row with the
        columns of its own dataset, and the output has those of all.

        Parameters
        ----------
        other
            The other datasets; this one's ``with_options`` hold.

        Raises
        ------
        ArgumentError
            One of them is no dataset, or has ``limit`` or ``accumulate``, which are about all rows: they come behind
            the union. ``SchemaMismatch``: two types of a column do not unify; raised when it is known.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(2).union(hr.from_items([{"id": 7, "name": "x"}])).take_all()
        [{'id': 0, 'name': None}, {'id': 1, 'name': None}, {'id': 7, 'name': 'x'}]
        >>> old, new = hr.range(3).filter(lambda row: row["id"] > 0), hr.range(2).map(lambda row: {"id": -1})
        >>> old.union(new).map(lambda row: {"id": row["id"] * 10}).take_all()
        [{'id': 10}, {'id': 20}, {'id': -10}, {'id': -10}]
        """
        from headrace.session.combined import united

        return type(self)(united([each._plan for each in self._datasets_with("union", other)]), self._options)

    @known_arguments
    def zip(self, *other: Self) -> Self:
        """Put the columns of other datasets beside those of this one: row i beside row i.

        A column whose name is there already gets ``_1`` behind its name, or ``_2``, …. Each dataset's steps, those
        before the zip, see its own columns only; steps behind it see all. A step before the zip gives row i for row
        i: ``map``, ``predict``, ``with_column``, those that choose or rename columns, and ``map_batches`` whose
        function returns as many rows as it gets, which is looked at in each batch. Where a row of one dataset is
        rejected, the rows beside it are, too.

        Parameters
        ----------
        other
            The other datasets; this one's ``with_options`` hold.

        Raises
        ------
        ArgumentError
            They differ in their numbers of rows, or one does not know it before it is read, as text files do. One has
            a step that may change which rows there are, such as ``filter``, ``flat_map`` or ``limit``, or
            ``accumulate``; or it is no dataset. ``StepError``, when the step runs: a function of ``map_batches``
            returned another number of rows.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(2).zip(hr.range(2), hr.from_items([{"name": "a"}, {"name": "b"}])).take_all()
        [{'id': 0, 'id_1': 0, 'name': 'a'}, {'id': 1, 'id_1': 1, 'name': 'b'}]
        >>> halves = hr.range(2).map_batches(lambda batch: {"half": batch["id"] / 2})
        >>> hr.range(2).zip(halves).map(lambda row: {"sum": row["id"] + row["half"]}).take_all()
        [{'sum': 0.0}, {'sum': 1.5}]
        """
        from headrace.session.combined import zipped

        return type(self)(zipped([each._plan for each in self._datasets_with("zip", other)]), self._options)

    def _datasets_with(self, verb: str, others: Sequence[Any]) -> list[DatasetBase]:
        """Return this dataset and others."""
        if not others:
            raise ArgumentError(f"{verb}() needs another dataset: a.{verb}(b).")
        for each in others:
            if not isinstance(each, DatasetBase):
                raise ArgumentError(
                    f"{verb}: {type(each).__name__} is not a dataset; read_* and from_* make datasets."
                )
        for each in (self, *others):
            each._check_unrequired(verb)
        return [self, *others]
