"""What every running step does, and which one runs a step of the plan."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from headrace.core.row_keys import Keys, Numbers, row_keys
from headrace.core.work import Split
from headrace.errors import BadReturn
from headrace.plan.functions import Function
from headrace.plan.physical import ErrorPolicy
from headrace.plan.steps.base import Step
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.user_code import Meter, UserCode, Where

RowKeys = Callable[[Split, Numbers], Keys]


def no_row_keys(split: Split, numbers: Numbers) -> Keys:
    """Stand in where rows come of no source."""
    return row_keys("", numbers)


S = TypeVar("S", bound=Step)
R = TypeVar("R", bound="type[RunningStep[Any]]")


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step knows of the attempt that it runs in.

    ``number`` is its own in the worker's steps, by which ``meter`` counts. ``eager``: a batch whose size is ours to
    choose is never waited for. ``unread``: columns that are there by the plan but were not read, as nobody needs
    them. ``budget``: how many rows may pass, for a step with a ``row_limit``. ``keys(split, numbers)``: as
    ``Source.row_keys``.
    """

    number: int
    meter: Meter
    where: Where
    policy: ErrorPolicy
    eager: bool = False
    unread: frozenset[str] = frozenset()
    budget: int = 0
    keys: RowKeys = no_row_keys

    def user_code(self, label: str, noun: str, chosen: str = "") -> UserCode:
        """Return what runs the user's code: see ``UserCode``."""
        return UserCode(label, noun, self.where, self.meter, chosen, step=self.number, policy=self.policy)


class RunningStep(Generic[S]):
    """A step in a worker, as long as the worker lives. ``@runs(Kind)`` says which steps a subclass runs."""

    def __init__(self, step: S) -> None:
        self.step = step

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Yield what the step makes of rows. ``callers`` call the step's ``functions()``, in their order.

        A step that drops or adds rows counts them by ``context.user_code``, or in ``context.meter.steps``: rows
        that are missing otherwise end the run.
        """
        raise NotImplementedError

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what becomes of a batch without rows, for its columns; raise if only rows would tell."""
        raise BadReturn("only rows would tell")


_running: dict[type[Step], type[RunningStep[Any]]] = {}


def runs(*kinds: type[Step]) -> Callable[[R], R]:
    """Register the class below as what runs steps of these kinds and of their subclasses."""

    def register(running: R) -> R:
        _running.update(dict.fromkeys(kinds, running))
        return running

    return register


def running(step: Step) -> RunningStep[Any]:
    """Return the running form of a step; the file of its name in this folder is imported when it is first needed."""
    found = _found(type(step))
    if found is None:
        importlib.import_module(f"{__package__}.{type(step).__module__.rpartition('.')[2]}")
        found = _found(type(step))
    if found is None:
        raise LookupError(f"No running form of {type(step).__name__} is in {__package__}.")
    return found(step)


def _found(kind: type[Step]) -> type[RunningStep[Any]] | None:
    return next((_running[each] for each in kind.__mro__ if each in _running), None)


def is_plain(function: Function) -> bool:
    """Say whether a function can be called anywhere: nothing is constructed, loaded or awaited."""
    return function.predictor is None and not isinstance(function.call, type) and not function.is_async
