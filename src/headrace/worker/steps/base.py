"""What every running step does, which one runs a step of the plan, and how they follow one another."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from headrace.core.arrow.batch import empty_batch
from headrace.core.arrow.values import a
from headrace.core.failures import first_line, is_interrupt, name_of, without_message, words
from headrace.core.process import ending_forks
from headrace.core.source_ports import Keys, Numbers, row_keys
from headrace.core.work import Split
from headrace.errors import (
    ArgumentError,
    BadReturn,
    HeadraceError,
    ModelError,
    PlanError,
    StepError,
    UnknownColumn,
    unknown_column,
)
from headrace.plan.functions import Built, Function
from headrace.plan.physical import ColumnsRead, ErrorPolicy
from headrace.plan.steps.base import (
    OnBranch,
    Step,
    goes_through,
    innermost,
    is_of_headrace,
    running_module,
    union_in,
)
from headrace.worker.calls import Caller, EventLoop, make_caller
from headrace.worker.meter import Meter, StepCounts
from headrace.worker.rows import Rows
from headrace.worker.user_code import UserCode, Where, passes, wait_for_retry

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
    ``keys(split, numbers)``: as ``Source.row_keys``.
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


class RowChoice(RunningStep[S]):
    """A step that leaves columns as they are."""

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch."""
        return batch


_running: dict[type[Step], type[RunningStep[Any]]] = {}


def runs(*kinds: type[Step]) -> Callable[[R], R]:
    """Register the class below as what runs steps of these kinds and of their subclasses."""

    def register(running: R) -> R:
        _running.update(dict.fromkeys(kinds, running))
        return running

    return register


def running(step: Step) -> RunningStep[Any]:
    """Return the running form of a step."""
    step = innermost(step)
    return _running_class(type(step))(step)


def _running_class(kind: type[Step]) -> type[RunningStep[Any]]:
    """Return what runs steps of a kind."""
    for each in kind.__mro__:
        if each not in _running and is_of_headrace(each):
            importlib.import_module(running_module(each))
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


# ---------------------------------------------------------------- steps one after the other

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class StepChain:
    """The steps of a plan, with the user's classes constructed, ready for any number of attempts."""

    def __init__(
        self,
        steps: Sequence[Step],
        where: Where,
        *,
        own_running: Mapping[type[Step], type[RunningStep[Any]]] = _NOTHING,
        eager: bool = False,
        reads: Sequence[ColumnsRead] = (),
        preparing: Callable[[str], None] = lambda what: None,
        loaded: Callable[[float], None] = lambda seconds: None,
        policy: ErrorPolicy = ErrorPolicy(),  # noqa: B008 - frozen
        keys: RowKeys = no_row_keys,
        own_keys: Callable[[Split, Numbers, int, int], Keys] | None = None,
        folder: str = "",
    ) -> None:
        """``eager``: a batch whose size is ours to choose is never waited for; it is what was read.

        ``reads`` as in ``Program``; ``own_keys`` as in ``Source``, where datasets of a union have steps of their own.
        ``preparing`` hears which class or model is being made ready, and ``""`` when all are; ``loaded`` how many
        seconds that took. ``own_running`` is as in ``Program``, ``keys`` as in ``StepContext``, ``folder`` as in
        ``Function.build``.
        """
        register(own_running)
        self._steps = tuple(steps)
        self._eager = eager
        none = (frozenset[str](),) * len(self._steps)
        self._unread = [each.unread or none for each in reads or (ColumnsRead(),)]
        self._where = where
        self.policy = policy
        self._keys = keys
        self._own_keys = own_keys
        self._folder = folder
        self._preparing = preparing
        self._loaded = loaded
        self._running = [running(step) for step in self._steps]
        self._callers: list[list[Caller]] | None = None
        self._loop = EventLoop()

    def load(self) -> None:
        """Construct the user's classes and load the models, once."""
        if self._callers is None:
            began = time.monotonic()
            self._callers = [
                [
                    make_caller(
                        each.function, self._build(step, each.function), each.max_in_flight, self._loop
                    )
                    for each in step.functions()
                ]
                for step in self._steps
            ]
            self._preparing("")
            self._loaded(time.monotonic() - began)

    def _build(self, step: Step, function: Function) -> Built:
        loads = function.predictor is not None
        if loads or isinstance(function.call, type):
            doing = "loading" if loads else "constructing"
            self._preparing(f"{doing} {function.name} for {step.label()}")
        build = partial(function.build, folder=self._folder)
        made = ending_forks(partial(build, self._loop.run) if function.is_async else build)
        tried = 1
        while True:
            try:
                return made()
            except (ModelError, ArgumentError):
                raise
            except BaseException as error:
                if is_interrupt(error):
                    raise
                if not passes(error, tried, self.policy):
                    raise StepError(
                        f"{function.name} could not be {'loaded' if loads else 'constructed'} for {step.label()}: "
                        f"{name_of(error)}: {words(error)}. No row was read by it."
                    ) from error
            wait_for_retry(tried)
            tried += 1

    def shrink_batches(self) -> None:
        """Have half as many rows at a time from the next batch on; may be called from any thread."""
        for caller in chain.from_iterable(self._callers or ()):
            caller.shrink_requested = True

    def close(self) -> None:
        """Let models go of what they hold, and end all threads."""
        callers = [*chain.from_iterable(self._callers or ())]
        self._callers = None
        with contextlib.ExitStack() as stack:  # the last first, and all of them, whatever one says
            stack.callback(self._loop.close)
            for each in callers:
                stack.callback(each.close)

    def run(
        self,
        rows: Iterator[Rows],
        meter: Meter,
        budgets: Sequence[int],
        ceilings: Mapping[str, int] = _NOTHING,
        dataset: int = 0,
    ) -> Iterator[Rows]:
        """Send ``rows`` through all steps. ``budgets`` says how many rows each ``limit`` lets pass.

        ``ceilings``: how many rows at a time fit into memory, as other workers found, by the labels of steps.
        ``dataset``: which of a union's they are of; they go past steps of others.
        """
        self.load()
        assert self._callers is not None
        self._lower(ceilings)
        left = list(budgets)
        unread = self._unread[dataset]
        for i, (step, callers) in enumerate(zip(self._running, self._callers, strict=True)):
            budget = left.pop(0) if step.step.row_limit is not None else 0
            if not goes_through(self._steps[i], dataset):
                rows = _counted(rows, meter.steps[i], "past")
                continue
            keys = self._keys_for(self._steps[i])
            limited = any(each.row_limit is not None for each in self._steps[i + 1 :])
            context = StepContext(
                i, meter, self._where, self.policy, self._eager, unread[i], budget, limited, keys
            )
            entering = _counted(rows, meter.steps[i], "taken")
            if is_of_headrace(type(innermost(self._steps[i]))):
                made = step.run(entering, callers, context)
            else:
                made = OwnStep(step, context).run(entering, callers)
            rows = _counted(made, meter.steps[i], "given")
        return rows

    def _keys_for(self, step: Step) -> RowKeys:
        """Return what tells rows apart for a step: as if those that go through it were all."""
        if not isinstance(step, OnBranch) or self._own_keys is None:
            return self._keys
        own, first, stop = self._own_keys, step.first, step.stop
        return lambda split, numbers: own(split, numbers, first, stop)

    def _lower(self, ceilings: Mapping[str, int]) -> None:
        if not ceilings or self._callers is None:
            return
        for step, callers in zip(self._steps, self._callers, strict=True):
            for each, caller in zip(step.functions(), callers, strict=True):
                if each.label in ceilings:
                    caller.lower_ceiling(ceilings[each.label])


def _counted(rows: Iterator[Rows], counts: StepCounts, what: str) -> Iterator[Rows]:
    """Pass on rows, and add them to one of the counts of a step."""
    for part in rows:
        setattr(counts, what, getattr(counts, what) + len(part))
        yield part


HIDDEN = "(its text is hidden: it may hold data)"


class OwnStep:
    """Runs a step of the user's: what it raises is a ``StepError``; what comes from before it, or of ours, passes."""

    def __init__(self, running: RunningStep[Any], context: StepContext) -> None:
        self._running = running
        self._context = context
        self._given: Rows | None = None
        self._passing: BaseException | None = None

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller]) -> Iterator[Rows]:
        """Yield what the step makes of rows."""
        try:
            made: Iterator[Any] = self._running.run(self._before(rows), callers, self._context)
            for part in made:
                if not isinstance(part, Rows):
                    name = type(self._running).__name__
                    label = self._running.step.label()
                    raise StepError(f"{label}: {name}.run has to yield Rows, and yielded {a(part)}.")
                yield part
        except Exception as error:
            if isinstance(error, HeadraceError) or error is self._passing:
                raise
            raise self._located(error)  # noqa: B904 - has its cause
        finally:
            self._passing = self._given = None

    def _before(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        try:
            for part in rows:
                self._given = part
                yield part
        except BaseException as error:
            self._passing = error
            raise

    def _located(self, error: Exception) -> StepError:
        show = self._context.policy.show_data
        said = words(error).rstrip(".") if show or not words(error) else HIDDEN
        line = first_line(error)
        place = f" at {line[0]}:{line[1]}" if line is not None else ""
        rows = (
            f"It was working on {self._context.where(self._given)}"
            if self._given is not None
            else "It had no row yet"
        )
        located = StepError(
            f"{self._running.step.label()} raised {name_of(error)}{f': {said}' if said else ''}, in "
            f"{type(self._running).__name__}{place}. {rows}."
        )
        located.__cause__ = error if show else without_message(error)
        return located


# ---------------------------------------------------------------- the output schema


def schema_by_trying(
    steps: Sequence[Step], schema: pa.Schema, *, guessed: list[str] | None = None
) -> pa.Schema | None:
    """Send a batch of no rows through the steps, in the driver; None if a function cannot do without rows.

    With ``guessed``, such a step is taken to leave the columns as they are, and its label is added there.

    Raises ``UnknownColumn`` and ``StepError`` for an expression that cannot work on such columns.
    """
    if union_in(steps) is not None:
        return None  # each dataset has a schema of its own
    batch = empty_batch(schema)
    for step in steps:
        try:
            batch = running(step).on_no_rows(batch)
        except BaseException as error:
            # Rows would fail as well.
            if is_interrupt(error) or (type(error) in (StepError, UnknownColumn) and not step.functions()):
                raise
            if guessed is None:
                return None
            guessed.append(step.label())
    return batch.schema
