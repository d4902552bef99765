"""The Dataset: an immutable, lazy description; every verb returns a new one, and some verbs run it."""

from __future__ import annotations

from typing import Any, NoReturn

from millrace.core.arguments import unframed
from millrace.core.ports import Source
from millrace.errors import ArgumentError, NotASequence, NotOffered, nearest
from millrace.options import RunOptions
from millrace.plan.logical import Plan, step_label
from millrace.screen import one_line
from millrace.verbs.columns import Columns
from millrace.verbs.looks import Looks
from millrace.verbs.maps import Maps
from millrace.verbs.metrics import Measures
from millrace.verbs.predicts import Predicts
from millrace.verbs.reads import Reads
from millrace.verbs.writes import Writes


class Dataset(Maps, Predicts, Columns, Measures, Looks, Reads, Writes):
    """A lazy, immutable description of data and of what is done with it.

    Made by ``read_*`` and ``from_*``; nothing is read before a verb that runs it (``write_*``, ``take``,
    ``show``, ``count``, ``iter_batches``, …). Arrays of shape (n, k…) are n rows with a tensor of shape (k…) each.
    Verbs that other libraries have and this one has not raise ``NotOffered``, which says why.

    >>> import millrace as mr
    >>> mr.range(6).filter(lambda row: row["id"] % 2 == 0).take_all()
    [{'id': 0}, {'id': 2}, {'id': 4}]
    """

    __slots__ = ()

    @classmethod
    def from_source(cls, source: Source) -> Dataset:
        """Make a dataset of ``source``, anything that fills the ``Source`` port.

        Raises ``ArgumentError`` for a ``MILLRACE_*`` variable of the environment that makes no sense.

        >>> from millrace.sources.range import RangeSource
        >>> Dataset.from_source(RangeSource(2)).take_all()
        [{'id': 0}, {'id': 1}]
        """
        return cls(Plan(source), RunOptions.from_environment())

    @unframed
    def with_options(self, **options: Any) -> Dataset:
        """Say how the plan is to be carried out; ``options`` have the names and meanings of ``RunOptions``.

        Raises ``UnknownArgument`` and ``ArgumentError`` for what is no option or no value of it.

        >>> import millrace as mr
        >>> mr.range(3).with_options(engine="inline").count()
        3
        """
        return Dataset(self._plan, self._options.updated(options))

    @unframed
    def __init__(self, plan: Plan | None = None, options: RunOptions | None = None) -> None:
        """Not for users: ``read_*``, ``from_*`` and ``from_source`` make datasets."""
        if not isinstance(plan, Plan):
            given = "" if plan is None else type(plan).__name__
            raise ArgumentError(
                f"Dataset({given}) makes none: read_parquet, read_csv, … take paths, from_pandas a DataFrame, "
                "from_items a list, from_numpy arrays, from_arrow a table."
            )
        super().__init__(plan, RunOptions() if options is None else options)

    @unframed
    def __iter__(self) -> NoReturn:
        """Say what iterates: rows or batches."""
        raise NotASequence(
            "A dataset is not iterated over by itself: iter_rows() yields rows as dicts, iter_batches() batches, and "
            "take(n) gives the first rows as a list."
        )

    @unframed
    def __len__(self) -> int:
        """Say what counts: it may have to read everything, which ``len`` should not."""
        raise NotASequence("A dataset has no length until it is read: count() counts its rows.")

    def __bool__(self) -> bool:
        """Return True: whether there are rows is not known before they are read."""
        return True

    @unframed
    def __getitem__(self, key: object) -> NoReturn:
        """Say what chooses rows and columns."""
        shown = repr(key)
        raise NotASequence(
            f"ds[{shown if len(shown) <= 60 else '…'}] is not how a dataset is asked: select_columns chooses "
            "columns, filter rows, take(n) and limit(n) the first ones."
        )

    def __repr__(self) -> str:
        source = type(self._plan.source).__name__.removesuffix("Source")
        return one_line(" → ".join([f"Dataset({source})", *map(step_label, self._plan.steps)]))

    @unframed
    def __getattr__(self, name: str) -> Any:
        """Say why a verb that somebody may look for is not here."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        from millrace.foreign import FAMILIAR_VERBS, NO_VERBS

        reason = NO_VERBS.get(name) or FAMILIAR_VERBS.get(name)
        if reason:
            raise NotOffered(f"Millrace has no {name}: {reason}")
        verbs = [each for each in dir(type(self)) if not each.startswith("_")]
        raise NotOffered(f"A dataset has no verb {name!r}.{nearest(name, verbs)}")
