"""Verbs that choose columns, and rows by their number: nothing runs yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.core.arguments import known_arguments
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError
from headrace.plan import ray_unsupported
from headrace.plan.parameters import given_names, given_rows
from headrace.plan.steps.columns import DropColumns, RenameColumns, SelectColumns
from headrace.plan.steps.limit import Limit

if TYPE_CHECKING:
    from typing_extensions import Self


class ColumnVerbs(DatasetBase):
    """Verbs without a function of the user's."""

    __slots__ = ()

    @known_arguments(also=ray_unsupported.COLUMNS)
    def select_columns(self, cols: str | Sequence[str]) -> Self:
        """Keep the columns ``cols``, in this order; others are not even read where the source allows.

        Raises ``ArgumentError`` if ``cols`` is not a name or a list of names; ``UnknownColumn`` comes when the plan
        is checked.

        >>> import headrace as hr
        >>> hr.from_items([{"a": 1, "b": 2}]).select_columns(["b"]).take_all()
        [{'b': 2}]
        """
        return self.with_step(SelectColumns(given_names("select_columns", cols)))

    @known_arguments(also=ray_unsupported.COLUMNS)
    def drop_columns(self, cols: str | Sequence[str]) -> Self:
        """Leave the columns ``cols`` out; an empty list leaves none out.

        Raises ``ArgumentError`` if ``cols`` is not a name or a list of names; ``UnknownColumn`` comes when the plan
        is checked.

        >>> import headrace as hr
        >>> hr.from_items([{"a": 1, "b": 2}]).drop_columns(["b"]).take_all()
        [{'a': 1}]
        """
        names = given_names("drop_columns", cols, allow_none=True)
        return self.with_step(DropColumns(names)) if names else self

    @known_arguments(also=ray_unsupported.COLUMNS)
    def rename_columns(self, names: Mapping[str, str] | Sequence[str]) -> Self:
        """Give columns other names: ``names`` is ``{old: new}``, or a list of new names for all columns in order.

        Raises ``ArgumentError`` for what is no name, or another number of names than columns; ``UnknownColumn`` comes
        when the plan is checked.

        >>> import headrace as hr
        >>> hr.from_items([{"a": 1}]).rename_columns({"a": "b"}).take_all()
        [{'b': 1}]
        """
        if not isinstance(names, Mapping):
            old = self._schema().names
            new = given_names("rename_columns", names)
            if len(old) != len(new):
                raise ArgumentError(
                    f"rename_columns got {len(new)} names for {len(old)} columns ({', '.join(old)})."
                )
            names = dict(zip(old, new, strict=True))
        for name in (*names, *names.values()):
            if not isinstance(name, str) or not name:
                raise ArgumentError(f"rename_columns({dict(names)!r}): column names are non-empty strings.")
        return self.with_step(RenameColumns(tuple(names.items())))

    @known_arguments
    def limit(self, limit: int) -> Self:
        """Let the first ``limit`` rows pass, in input order over the whole dataset.

        Raises ``ArgumentError`` unless ``limit`` is a whole number of rows, 0 or more.

        >>> import headrace as hr
        >>> hr.range(1000).limit(2).take_all()
        [{'id': 0}, {'id': 1}]
        """
        return self.with_step(Limit(given_rows("limit", limit)))
