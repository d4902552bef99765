"""Verbs that choose columns, and rows by their number: nothing runs yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millrace import foreign
from millrace.core.arguments import known_arguments
from millrace.errors import ArgumentError
from millrace.parameters import given_names, given_rows
from millrace.plan.logical import Drop, Limit, Rename, Select
from millrace.verbs.described import Described

if TYPE_CHECKING:
    from millrace.dataset import Dataset


class Columns(Described):
    """What is chosen, without a function of the user's."""

    __slots__ = ()

    @known_arguments(also=foreign.COLUMNS)
    def select_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Keep the columns ``cols``, in this order; others are not even read where the source allows.

        Raises ``ArgumentError`` if ``cols`` is not a name or a list of names; ``UnknownColumn`` comes when the plan
        is looked at.

        >>> import millrace as mr
        >>> mr.from_items([{"a": 1, "b": 2}]).select_columns(["b"]).take_all()
        [{'b': 2}]
        """
        return self._then(Select(given_names("select_columns", cols)))

    @known_arguments(also=foreign.COLUMNS)
    def drop_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Leave the columns ``cols`` out.

        Raises ``ArgumentError`` if ``cols`` is not a name or a list of names; ``UnknownColumn`` comes when the plan
        is looked at.

        >>> import millrace as mr
        >>> mr.from_items([{"a": 1, "b": 2}]).drop_columns(["b"]).take_all()
        [{'a': 1}]
        """
        return self._then(Drop(given_names("drop_columns", cols)))

    @known_arguments(also=foreign.COLUMNS)
    def rename_columns(self, names: Mapping[str, str] | Sequence[str]) -> Dataset:
        """Give columns other names: ``names`` is ``{old: new}``, or a list of new names for all columns in order.

        Raises ``ArgumentError`` for what is no name, or another number of names than columns; ``UnknownColumn`` comes
        when the plan is looked at.

        >>> import millrace as mr
        >>> mr.from_items([{"a": 1}]).rename_columns({"a": "b"}).take_all()
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
        return self._then(Rename(tuple(names.items())))

    @known_arguments
    def limit(self, limit: int) -> Dataset:
        """Let the first ``limit`` rows pass, in input order over the whole dataset.

        Raises ``ArgumentError`` unless ``limit`` is a whole number of rows, 0 or more.

        >>> import millrace as mr
        >>> mr.range(1000).limit(2).take_all()
        [{'id': 0}, {'id': 1}]
        """
        return self._then(Limit(given_rows("limit", limit)))
