"""Verbs that put datasets together: nothing runs yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.arguments import known_arguments
from headrace.core.ports import Source
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError
from headrace.plan.logical import Plan

if TYPE_CHECKING:
    from typing_extensions import Self


class CombiningVerbs(DatasetBase):
    """Verbs that make one dataset of several."""

    __slots__ = ()

    @known_arguments
    def union(self, *other: Self) -> Self:
        """Put the rows of other datasets behind those of this one, in this order.

        A column that one of them lacks is null there; types are widened where no value changes. Steps come behind the
        union: each dataset is as ``read_*``, ``from_*`` or ``materialize`` made it.

        Parameters
        ----------
        other
            The other datasets; this one's ``with_options`` hold.

        Raises
        ------
        ArgumentError
            One of them has steps, or is no dataset. ``SchemaMismatch``: two types of a column do not unify.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(2).union(hr.from_items([{"id": 7, "name": "x"}])).take_all()
        [{'id': 0, 'name': None}, {'id': 1, 'name': None}, {'id': 7, 'name': 'x'}]
        """
        from headrace.sources.union import UnionSource

        source = UnionSource(self._sources_with("union", other))
        source.schema()  # what does not fit is refused here
        return type(self)(Plan(source), self._options)

    @known_arguments
    def zip(self, *other: Self) -> Self:
        """Put the columns of other datasets beside those of this one: row i beside row i.

        A column whose name is there already gets ``_1`` behind its name, or ``_2``, …. Steps come behind: each
        dataset is as ``read_parquet``, ``range``, ``from_*`` or ``materialize`` made it.

        Parameters
        ----------
        other
            The other datasets; this one's ``with_options`` hold.

        Raises
        ------
        ArgumentError
            They differ in their numbers of rows, or one does not know it before it is read, as text files do; one has
            steps, or is no dataset.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(2).zip(hr.range(2), hr.from_items([{"name": "a"}, {"name": "b"}])).take_all()
        [{'id': 0, 'id_1': 0, 'name': 'a'}, {'id': 1, 'id_1': 1, 'name': 'b'}]
        """
        from headrace.sources.zipped import ZipSource

        source = ZipSource(self._sources_with("zip", other))
        source.rows()  # what does not fit is refused here
        return type(self)(Plan(source), self._options)

    def _sources_with(self, verb: str, others: Sequence[Any]) -> list[Source]:
        """Return the sources of this dataset and of others; none may have steps."""
        if not others:
            raise ArgumentError(f"{verb}() needs another dataset: a.{verb}(b).")
        for number, each in enumerate((self, *others), 1):
            if not isinstance(each, DatasetBase):
                raise ArgumentError(
                    f"{verb}: {type(each).__name__} is no dataset; read_* and from_* make some."
                )
            if each._plan.steps:
                raise ArgumentError(
                    f"{verb}: dataset {number} has steps ({each._plan.steps[0].label()}, …), whose rows nobody knows "
                    f"before they ran. Put the steps behind {verb}, or .materialize() behind that dataset if it fits "
                    "into memory."
                )
        return [each._plan.source for each in (self, *others)]
