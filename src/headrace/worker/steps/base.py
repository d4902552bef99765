"""What every running step does, and which one runs a step of the plan."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from headrace.core.source_ports import Keys, Numbers, row_keys
from headrace.core.work import Split
from headrace.errors import BadReturn, PlanError, unknown_column
from headrace.plan.functions import Function
from headrace.plan.physical import ErrorPolicy
from headrace.plan.steps.base import DatasetStep, Step, is_of_headrace
from headrace.worker.calls import Caller
from headrace.worker.meter import Meter
from headrace.worker.rows import Rows
from headrace.worker.user_code import UserCode, Where

RowKeys = Callable[[Split, Numbers], Keys]


def no_row_keys(split: Split, numbers: Numbers) -> Keys:
    """Stand in where rows come of no source."""
    return row_keys("", numbers)


S = TypeVar("S", bound=Step)
R = TypeVar("R", bound="type[RunningStep[Any]]")


class StepContext(msgspec.Struct, frozen=True):
    """What a step knows of the attempt that it runs in.

    ``number`` is its own in the worker's steps, by which ``meter`` counts. ``eager``: a batch whose size is ours to
    choose is never waited for. ``unread``: columns that are there by the plan but were not read, as nobody needs
    them. ``budget``: how many rows may pass, for a step with a ``row_limit``. ``limited``: a later step has one.
    ``keys(split, numbers)``: as ``Source.row_keys``. ``paired``: row i stands beside row i of another dataset, so as
    many rows come out as go in, in their order.
    """

    number: int
    meter: Meter
    where: Where
    policy: ErrorPolicy
    eager: bool = False
    unread: frozenset[str] = frozenset()
    budget: int = 0
    limited: bool = False
    keys: RowKeys = no_row_keys
    paired: bool = False

    def count_dropped(self, rows: int) -> None:
        """Count rows that the step left out, as it should."""
        self.meter.steps[self.number].dropped += rows

    def count_added(self, rows: int) -> None:
        """Count rows that the step gave beyond those that it got."""
        self.meter.steps[self.number].added += rows

    def user_code(self, label: str, noun: str, chosen: str = "") -> UserCode:
        """Return what runs the user's code: see ``UserCode``."""
        return UserCode(label, noun, self.where, self.meter, chosen, step=self.number, policy=self.policy)


class RunningStep(Generic[S]):
    """A step in a worker, as long as the worker lives. ``@runs(Kind)`` says which steps a subclass runs."""

    def __init__(self, step: S) -> None:
        self.step = step

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Yield what the step makes of rows. ``callers`` call the step's ``functions()``, in their order.

        A step that drops or adds rows counts them, by ``context.count_dropped`` and ``count_added`` or by
        ``context.user_code``: rows that are missing otherwise end the run.
        """
        raise NotImplementedError

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what becomes of a batch without rows, for its columns; raise if only rows would tell."""
        raise BadReturn("it is known only when rows are processed")


DS = TypeVar("DS", bound=DatasetStep)


class RunningDatasetStep(RunningStep[DS]):
    """Runs the step of some datasets as it runs for all."""

    @cached_property
    def own(self) -> RunningStep[Any]:
        """What runs the step itself."""
        return running(self.step.step)

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Do what the step does."""
        return self.own.run(rows, callers, context)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do what the step does."""
        return self.own.on_no_rows(batch)


_running: dict[type[Step], type[RunningStep[Any]]] = {}


def runs(*kinds: type[Step]) -> Callable[[R], R]:
    """Register the class below as what runs steps of these kinds and of their subclasses."""

    def register(running: R) -> R:
        _running.update(dict.fromkeys(kinds, running))
        return running

    return register


def running(step: Step) -> RunningStep[Any]:
    """Return the running form of a step."""
    return _running_class(type(step))(step)


def _running_class(kind: type[Step]) -> type[RunningStep[Any]]:
    """Return what runs steps of a kind; that of a step of ours is in the file of its name in this folder."""
    for each in kind.__mro__:
        if each not in _running and each.__module__.startswith("headrace.plan.steps."):
            importlib.import_module(f"{__package__}.{each.__module__.rpartition('.')[2]}")
        if each in _running:
            return _running[each]
    name = kind.__name__
    raise PlanError(
        f"{name} has no class that does its work in a worker. Write one with @runs({name}), in the module of {name} "
        "or in one that is imported before the run."
    )


def own_running(steps: Iterable[Step]) -> dict[type[Step], type[RunningStep[Any]]]:
    """Return what runs the steps that are not of Headrace: workers get it with them, wherever it was written."""
    kinds = dict.fromkeys(type(step) for step in steps if not is_of_headrace(type(step)))
    return {kind: _running_class(kind) for kind in kinds}


def register(classes: Mapping[type[Step], type[RunningStep[Any]]]) -> None:
    """Have these classes run the steps of these kinds, where no others do."""
    for kind, running_class in classes.items():
        _running.setdefault(kind, running_class)


def is_plain(function: Function) -> bool:
    """Say whether a function can be called anywhere: nothing is constructed, loaded or awaited."""
    return function.predictor is None and not isinstance(function.call, type) and not function.is_async


def selected(batch: pa.RecordBatch, columns: Sequence[str], label: str) -> pa.RecordBatch:
    """Return these columns of a batch; ``UnknownColumn`` says that ``label`` asks for one that is not there."""
    check(batch, columns, label)
    return batch.select(list(columns))


def check(batch: pa.RecordBatch, columns: Iterable[str], label: str) -> None:
    """Raise ``UnknownColumn`` if one of the columns that ``label`` asks for is not there."""
    names = batch.schema.names
    for name in columns:
        if name not in names:
            raise unknown_column(label, name, names)
