"""The Dataset: an immutable, lazy description; every verb returns a new one, and some verbs run it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self

from headrace.core.arguments import unframed
from headrace.core.door import Table, annex, fills
from headrace.core.files.formats import FORMATS
from headrace.core.source_ports import Source
from headrace.core.target_ports import Sink
from headrace.core.terminal import one_line
from headrace.dataset.columns import ColumnVerbs, CombiningVerbs
from headrace.dataset.consumption import ConsumptionVerbs
from headrace.dataset.inspection import InspectionVerbs
from headrace.dataset.maps import MapVerbs, PredictVerbs
from headrace.dataset.metrics import MetricVerbs
from headrace.dataset.writes import SampleWriteVerbs
from headrace.errors import ArgumentError, HeadraceError, NotASequence, NotOffered, nearest
from headrace.options import RunOptions
from headrace.plan.compile import known_columns
from headrace.plan.logical import Plan
from headrace.plan.verb_options import FolderOptions, OutputOptions

if TYPE_CHECKING:
    from headrace.result import Result


_BEGIN = ("from_", "read_", "range")


if TYPE_CHECKING:
    from headrace.annex.databases.verbs import DatabaseWriteVerbs
    from headrace.annex.formats.verbs import FormatWriteVerbs
    from headrace.annex.lakes.verbs import LakeWriteVerbs
    from headrace.annex.llm.verbs import PromptVerbs
    from headrace.annex.queries.verbs import QueryVerbs

    class AnnexVerbs(QueryVerbs, PromptVerbs, LakeWriteVerbs, DatabaseWriteVerbs, FormatWriteVerbs):
        """Verbs that annexes bring."""

        __slots__ = ()

else:
    _CLASSES = {
        "queries.verbs": "QueryVerbs",
        "llm.verbs": "PromptVerbs",
        "lakes.verbs": "LakeWriteVerbs",
        "databases.verbs": "DatabaseWriteVerbs",
        "formats.verbs": "FormatWriteVerbs",
    }
    _FOUND = [(annex(module), name) for module, name in _CLASSES.items()]
    AnnexVerbs = type(
        "AnnexVerbs",
        tuple(getattr(module, name) for module, name in _FOUND if module is not None),
        {
            "__slots__": (),
            "__doc__": "Verbs that annexes bring; it lacks those of an annex that is not there.",
            "__module__": __name__,
        },
    )


def _functions() -> list[str]:
    names = dir(sys.modules["headrace"])  # which stands above this module
    return [name for name in names if name.startswith(_BEGIN)]


def _function(name: str) -> str:
    """Say that a function of the module makes datasets, if it is one."""
    return f"hr.{name}(…) makes a dataset." if name.startswith(_BEGIN) and name in _functions() else ""


def is_source(value: Any) -> bool:
    """Say whether a value fills the port ``Source``."""
    return not isinstance(value, type) and fills(value, Source)


class Dataset(
    MapVerbs,
    PredictVerbs,
    ColumnVerbs,
    CombiningVerbs,
    MetricVerbs,
    InspectionVerbs,
    ConsumptionVerbs,
    SampleWriteVerbs,
    AnnexVerbs,
):
    """A lazy, immutable description of data and of what is done with it.

    Made by ``read_*`` and ``from_*``; nothing is read before a verb that runs it (``write_*``, ``take``,
    ``show``, ``count``, ``iter_batches``, …). Arrays of shape (n, k…) are n rows with a tensor of shape (k…) each.
    Verbs that other libraries have and this one has not raise ``NotOffered``, which says why.

    >>> import headrace as hr
    >>> hr.range(6).filter(lambda row: row["id"] % 2 == 0).take_all()
    [{'id': 0}, {'id': 2}, {'id': 4}]
    """

    __slots__ = ()

    @classmethod
    def from_source(cls, source: Source) -> Dataset:
        """Make a dataset of ``source``, a subclass of the port ``Source``.

        Raises ``ArgumentError`` for what is no source, and for a ``HEADRACE_*`` variable of the environment with an
        invalid value.

        >>> from headrace.sources.range import RangeSource
        >>> Dataset.from_source(RangeSource(2)).take_all()
        [{'id': 0}, {'id': 1}]
        """
        if not is_source(source):
            raise ArgumentError(
                f"from_source({source!r}): it takes an instance of a subclass of "
                "headrace.core.source_ports.Source, or of headrace.sources.file_source.FileSource. "
                "read_parquet, read_csv, … take paths."
            )
        return cls(Plan(source), RunOptions.from_environment())

    @unframed
    def with_options(self, **options: Any) -> Self:
        """Say how the plan is to be carried out; ``options`` have the names and meanings of ``RunOptions``.

        Raises ``UnknownArgument`` and ``ArgumentError`` for what is no option or no value of it.

        >>> import headrace as hr
        >>> hr.range(3).with_options(engine="inline").count()
        3
        """
        return type(self)(self._plan, self._options.updated(options))

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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as dicts, as ``iter_rows`` does."""
        return iter(self.iter_rows())

    @unframed
    def __len__(self) -> int:
        """Return how many rows there are, where that is known without reading them."""
        rows = self._known_rows()
        if rows is None:
            raise NotASequence(
                "How many rows this dataset has is not known until they are read: count() counts them."
            )
        return rows

    def __bool__(self) -> bool:
        """Return True: whether there are rows is not known before they are read."""
        return True

    @unframed
    def __getitem__(self, key: object) -> NoReturn:
        """Say what chooses rows and columns."""
        shown = repr(key)
        raise NotASequence(
            f"ds[{shown if len(shown) <= 60 else '…'}] does not work for a dataset: select_columns chooses columns, "
            "filter chooses rows, take(n) and limit(n) give the first rows."
        )

    def _repr_html_(self) -> str:
        """Show in a notebook what is read, the steps, and the columns as far as the plan tells; nothing is run."""
        from headrace.dataset.inspection import dataset_html

        return dataset_html(self._plan)

    def __repr__(self) -> str:
        source = type(self._plan.source).__name__.removesuffix("Source")
        return one_line(" → ".join([f"Dataset({source})", *(step.label() for step in self._plan.steps)]))

    def __str__(self) -> str:
        """Name the columns with their types, as far as the plan tells: no function of the user's is called."""
        try:
            columns, adds = known_columns(self._plan.steps, self._plan.source.known_schema())
        except HeadraceError as error:
            return f"{self!r}\n  columns are not known: {one_line(str(error))}"
        from headrace.core.tables import columns_table

        lines = [f"  {line}" for line in columns_table(columns).text().splitlines()]
        if adds is not None:
            beside = "and what" if columns else "what"
            lines.append(f"  {beside} {one_line(adds)} makes: schema() runs a few rows to find out")
        return "\n".join([repr(self), *lines])

    @unframed
    def __getattr__(self, name: str) -> Any:
        """Return a verb that an installed package brings, or say why one that somebody may look for is not here."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        target = name.removeprefix("write_")
        if target != name and (make := TARGETS.get(target)) is not None:
            return self._write_verb(target, make)
        if target != name and (found := FORMATS.get(target)) is not None and found.writer:
            return self._format_verb(target)
        from headrace.plan.ray_unsupported import FAMILIAR_VERBS, NO_VERBS

        reason = NO_VERBS.get(name) or FAMILIAR_VERBS.get(name)
        if reason:
            raise NotOffered(f"Headrace has no {name}: {reason}")
        if made := _function(name):
            raise NotOffered(f"A dataset has no verb {name!r}: {made}")
        verbs = [each for each in dir(self) if not each.startswith("_")]
        raise NotOffered(f"A dataset has no verb {name!r}.{nearest(name, verbs)}")

    def _write_verb(self, target: str, make: Callable[..., Any]) -> Callable[..., Result]:
        """Return the verb that writes to what a function of an installed package makes."""

        @functools.wraps(make, updated=())
        def write(*args: Any, **kwargs: Any) -> Result:
            options = {each: kwargs.pop(each) for each in OutputOptions.__annotations__ if each in kwargs}
            sink = make(*args, **kwargs)
            if isinstance(sink, type) or not fills(sink, Sink):
                raise TARGETS.refuse(target, sink, "a FileSink")
            return self.write_to(sink, **options)

        return write

    def _format_verb(self, name: str) -> Callable[..., Result]:
        """Return the verb that writes files in a format of an installed package."""

        def write(path: Any, **given: Any) -> Result:
            options = {each: given.pop(each) for each in FolderOptions.__annotations__ if each in given}
            return self._write_files(name, path, options, **given)

        return write

    def __dir__(self) -> list[str]:
        """Return the verbs, with those that installed packages bring."""
        return [*super().__dir__(), *(f"write_{name}" for name in TARGETS.brought)]


TARGETS: Table[Callable[..., Any]] = Table(
    "targets",
    {
        verb.removeprefix("write_"): getattr(Dataset, verb)
        for verb in dir(Dataset)
        if verb.startswith("write_")
    },
)
"""What ``ds.write_<name>`` writes to: verbs of ours, and functions of packages that return a ``Sink``."""
