"""What every step tells about itself, and how the steps of several datasets are one list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from headrace.core.model_ports import Accumulator, Rates, Shares
from headrace.errors import HeadraceError, unknown_column
from headrace.plan.functions import Function

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.arrow.batch_formats import BatchFormat


V = TypeVar("V")


class Remote(msgspec.Struct, frozen=True):
    """What a cluster is told about each worker of a step, in its own words."""

    args: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(frozenset(self.args))


class Resources(msgspec.Struct, frozen=True):
    """What one worker of a step needs, and how many workers there may be.

    ``num_cpus`` is in cores, ``num_gpus`` in devices, ``memory`` in bytes; ``workers`` is ``(min, max)`` or
    None for as many as the machine has room for. ``remote`` is for a cluster.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    workers: tuple[int, int] | None = None
    remote: Remote | None = None


UNDECLARED = Resources()
"""What a step needs that says nothing."""


class StepFunction(msgspec.Struct, frozen=True):
    """A function of the user's in a step, and how it is called.

    ``label`` is what messages call it, ``identity`` what the identity of a run calls it. ``max_in_flight``: how many
    batches at a time, if the user said so. ``batch_format`` None: it gets one row at a time. ``batch_size`` in rows,
    ``batch_bytes`` in bytes; None: found out by the workers. A function that ``predicts`` reads ``inputs`` only
    (None: all columns).
    """

    function: Function
    label: str
    identity: str
    max_in_flight: int | None = None
    batch_size: int | None = None
    batch_bytes: int | None = None
    batch_format: BatchFormat | None = None
    predicts: bool = False
    inputs: tuple[str, ...] | None = None

    @property
    def loads(self) -> bool:
        """Whether each worker makes or loads something before the first call: a class, or a model."""
        return isinstance(self.function.call, type) or self.function.predictor is not None


class NeededColumns(msgspec.Struct, frozen=True):
    """Columns that are needed: ``only`` these (None: all there are), ``without`` those."""

    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Say whether a column is needed."""
        return (self.only is None or name in self.only) and name not in self.without

    def plus(self, names: Iterable[str]) -> NeededColumns:
        """Return these columns and others."""
        added = frozenset(names)
        return NeededColumns(self.only | added if self.only is not None else None, self.without - added)


ALL_COLUMNS = NeededColumns()
NO_COLUMNS = NeededColumns(frozenset())


class Step:
    """One verb of the user's: batches in, batches out. A frozen value that travels to the workers by pickle.

    A new verb is three files: a subclass here, its running form in ``worker/steps``, and the verb in ``dataset``.
    The planner, the checks, the messages and the identity of a run ask the step alone, by the methods below; their
    defaults are those of a step that calls no code of the user's, keeps the columns, and may drop rows.
    """

    __slots__ = ()

    verb: ClassVar[str]
    """The name of the method of ``Dataset`` that made this step, or of the argument of a verb that writes."""

    one_to_one: ClassVar[bool] = False
    """Each row that comes in gives one row; or none, if it is rejected. So rows behind it need not be counted."""

    makes_rows: ClassVar[bool] = False
    """Rows may come out that did not come in, so no metric may stand before this step."""

    changes_row_count: ClassVar[bool] = False
    """Nobody knows how many rows come out, so that batches of the steps behind cannot be planned."""

    passes_values: ClassVar[bool] = False
    """Columns in ``carried`` have the very values that went in, so they may be copied past the step."""

    row_by_row: ClassVar[bool] = False
    """The step looks at one row after the other, not at batches."""

    keeps_answers: ClassVar[bool] = False
    """What rows cost is kept beside the output, so that shards need not be committed by time, and may be big."""

    # ------------------------------------------------------------ the user's code, and what it needs

    def functions(self) -> tuple[StepFunction, ...]:
        """Return the user's code in this step."""
        return ()

    def needs(self) -> tuple[Resources, ...]:
        """Return what the parts of this step need of a worker."""
        return ()

    def without_remote(self) -> Step:
        """Return this step without what only a cluster is told about its workers."""
        return self

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the batch sizes that the user gave, in rows."""
        return tuple(each.batch_size for each in self.functions() if each.batch_size)

    @property
    def metrics(self) -> tuple[tuple[str, Accumulator], ...]:
        """The metrics that see the columns as they are here, with their names."""
        return ()

    # ------------------------------------------------------------ columns

    def reads(self) -> tuple[str, ...]:
        """Return the columns that the step asks for by name."""
        return ()

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise ``UnknownColumn`` or ``ColumnExists`` if the step cannot work on these columns."""
        for name in self.reads():
            if name not in names:
                raise unknown_column(self.label(), name, names)

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return the columns that come out of this step; None where only running it tells."""
        return names

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return what is known of the columns that come out as they went in, by their names afterwards."""
        return types if type(self).columns_after is Step.columns_after else {}

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return the columns that the step has to get, so that those ``needed`` after it can be there."""
        return needed.plus(self.reads())

    def values_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return the columns of which values are looked at, here or, if ``needed``, after this step.

        The others have to be there, but may hold anything. Default: all that it has to get.
        """
        return self.needed_before(needed, schema)

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return which of the columns that were not read are still there by the plan after this step."""
        return unread

    def check_cluster(self, workers: int, folder: str) -> None:
        """Raise ``PlanError`` if so many workers on several machines cannot do the step.

        ``folder`` is where models keep what outlives a worker; "": nowhere.
        """

    def check_output(self, folder: str) -> None:
        """Raise ``PlanError`` if an output cannot have the step; ``folder`` is as in ``check_cluster``."""

    def sharing(self, rates: Rates, shares: Shares | None) -> Step:
        """Return the step as many machines have it, whose models keep rates and a budget together.

        Without ``shares``, ``check_cluster`` has refused budgets. Raises ``PlanError`` where they cannot.
        """
        return self

    # ------------------------------------------------------------ rows

    @property
    def row_limit(self) -> int | None:
        """How many rows of the whole dataset may pass, if that is what the step is for."""
        return None

    def rows_after(self, rows: int) -> int | None:
        """Return how many rows come out if none is rejected; None where only running the step tells."""
        return rows if self.one_to_one else None

    # ------------------------------------------------------------ steps that are joined or separated

    def joined(self, other: Step) -> Step | None:
        """Return the one step that does what this and then ``other`` does, if there is one."""
        return None

    def separated(self) -> list[Step]:
        """Return the steps that do the same one after another, where parts of this one need different workers."""
        return [self]

    def rejoined(self, part: Step) -> Step:
        """Return the one step of which this and ``part`` are neighbours as ``separated`` made them."""
        raise NotImplementedError

    # ------------------------------------------------------------ messages and identity

    def label(self) -> str:
        """Return what messages call this step: ``map_batches(clean)``."""
        raise NotImplementedError

    def shape(self) -> dict[str, Any]:
        """Return what must match for two runs to be the same, besides the code: plain JSON values."""
        return {"verb": self.verb}


# ---------------------------------------------------------------- steps of some datasets of a union


@dataclass(frozen=True, slots=True)
class OnBranch(Step):
    """A step that only rows of some neighbouring datasets go through: from number ``first`` to before ``stop``.

    All else is as its ``step`` says. What it does with columns, only that tells: each dataset has others.
    """

    step: Step
    first: int
    stop: int
    verb = "union"

    @property
    def of(self) -> str:
        """Which datasets it is of: ``dataset 2``."""
        first, last = self.first + 1, self.stop
        return f"dataset {last}" if first == last else f"datasets {first} to {last}"

    def shape(self) -> dict[str, Any]:
        """Return that of the step, and of which datasets it is."""
        return {**self.step.shape(), "datasets": [self.first, self.stop]}

    @property
    def one_to_one(self) -> bool:  # type: ignore[override]
        """As the step's."""
        return self.step.one_to_one

    @property
    def makes_rows(self) -> bool:  # type: ignore[override]
        """As the step's."""
        return self.step.makes_rows

    @property
    def changes_row_count(self) -> bool:  # type: ignore[override]
        """As the step's."""
        return self.step.changes_row_count

    @property
    def row_by_row(self) -> bool:  # type: ignore[override]
        """As the step's."""
        return self.step.row_by_row

    @property
    def keeps_answers(self) -> bool:  # type: ignore[override]
        """As the step's."""
        return self.step.keeps_answers

    def functions(self) -> tuple[StepFunction, ...]:
        """Return the user's code in the step; the identity of a run calls it by its datasets, too."""
        return tuple(
            msgspec.structs.replace(each, identity=f"{each.identity} of {self.of}")
            for each in self.step.functions()
        )

    def needs(self) -> tuple[Resources, ...]:
        """Return what the step needs."""
        return self.step.needs()

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the batch sizes of the step."""
        return self.step.batch_sizes()

    def check_cluster(self, workers: int, folder: str) -> None:
        """Ask the step."""
        self.step.check_cluster(workers, folder)

    def check_output(self, folder: str) -> None:
        """Raise ``PlanError`` if an output cannot have the step."""
        self.step.check_output(folder)

    def sharing(self, rates: Rates, shares: Shares | None) -> Step:
        """Return the step as many machines have it."""
        step = self.step.sharing(rates, shares)
        return self if step is self.step else replace(self, step=step)

    def without_remote(self) -> Step:
        """Return this without what only a cluster is told."""
        return replace(self, step=self.step.without_remote())

    def separated(self) -> list[Step]:
        """Return the parts of the step, for the same rows."""
        return [replace(self, step=part) for part in self.step.separated()]

    def rejoined(self, part: Step) -> Step:
        """Return the step of which this and ``part`` are parts, for the same rows."""
        assert isinstance(part, OnBranch)
        return replace(self, step=self.step.rejoined(part.step))

    def label(self) -> str:
        """Return ``filter(g) of dataset 2``."""
        return f"{self.step.label()} of {self.of}"


def innermost(step: Step) -> Step:
    """Return the step itself, of whichever datasets it is."""
    return step.step if isinstance(step, OnBranch) else step


def is_of_headrace(kind: type[Step]) -> bool:
    """Say whether a class of steps is one of Headrace's own."""
    return kind.__module__.partition(".")[0] == "headrace"


_RUNNING = {
    **dict.fromkeys(("MapRows", "FlatMap", "Filter"), "steps.rows"),
    **dict.fromkeys(("Predict", "Prompt"), "steps.predict"),
    "MapBatches": "steps.map_batches",
}


def running_module(kind: type[Step]) -> str:
    """Return the module in which steps of a kind of ours run in a worker; plans import those that they need."""
    return f"headrace.worker.{_RUNNING.get(kind.__name__, 'steps.columns')}"


# ------------------------------------------------------------ datasets that have steps, as one


Columns = tuple[tuple[str, "pa.DataType | None"], ...]


@dataclass(frozen=True, slots=True)
class Conform(Step):
    """Give the rows of one dataset the columns that those of all have, in one order.

    ``columns`` with their types, None where only running tells; None for all if nobody knows which there are: rows
    go on as they are. ``forms`` are those of columns that may hold nulls, see ``core.arrow.forms``.
    """

    columns: Columns | None = None
    forms: tuple[tuple[str, str], ...] = ()
    verb = "union"
    one_to_one = True

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return the columns of all, if they are known."""
        return names if self.columns is None else [name for name, _ in self.columns]

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return the same: those that are added have no values."""
        return types if self.columns is None else {n: types[n] for n, _ in self.columns if n in types}

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return the same columns."""
        return unread

    def types_after(self, types: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Return the types of columns afterwards, as far as they are known."""
        if self.columns is None:
            return types
        known = {name: types.get(name) if type_ is None else type_ for name, type_ in self.columns}
        return {name: type_ for name, type_ in known.items() if type_ is not None}

    def label(self) -> str:
        """Return ``union``."""
        return self.verb


@dataclass(frozen=True, slots=True)
class Union(Conform):
    """Where datasets become one: all steps before belong to one of them, or some. ``schemas`` are their sources'."""

    schemas: tuple[pa.Schema, ...] = ()

    @property
    def settled(self) -> bool:
        """True if all columns and their types are known before anything runs."""
        return self.columns is not None and all(type_ is not None for _, type_ in self.columns)

    def shape(self) -> dict[str, Any]:
        """Return how many datasets there are."""
        return {"verb": self.verb, "datasets": len(self.schemas)}


Path = list[tuple[int, Step]]
"""The steps that rows of one dataset go through, each with its index in the plan."""


def union_in(steps: Sequence[Step]) -> Union | None:
    """Return where datasets with steps of their own become one; None in a plan where there are none."""
    return next((step for step in reversed(steps) if isinstance(step, Union)), None)


def paths_of(steps: Sequence[Step]) -> list[tuple[pa.Schema, Path]]:
    """Return, for each dataset of a union, the schema of its source and its rows' way; [] where there is no union."""
    whole = union_in(steps)
    if whole is None:
        return []
    return [(schema, _path(steps, number)) for number, schema in enumerate(whole.schemas)]


def _path(steps: Sequence[Step], number: int) -> Path:
    path: Path = []
    for i, step in enumerate(steps):
        if goes_through(step, number):
            inner = innermost(step)
            path.append((i, Conform(inner.columns, inner.forms) if isinstance(inner, Conform) else inner))
    return path


def goes_through(step: Step, number: int) -> bool:
    """Say whether rows of a dataset go through a step."""
    return not isinstance(step, OnBranch) or step.first <= number < step.stop


def shifted(step: Step, first: int, count: int) -> OnBranch:
    """Return a step of a dataset, or of a union of ``count``, as a step of a union where these begin at ``first``."""
    if isinstance(step, OnBranch):
        return OnBranch(step.step, first + step.first, first + step.stop)
    return OnBranch(step, first, first + count)


def in_dataset(number: int, error: HeadraceError) -> HeadraceError:
    """Return an error that says which dataset of a union it is about."""
    return type(error)(f"Dataset {number + 1} of the union: {error}")
