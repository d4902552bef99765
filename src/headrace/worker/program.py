"""Steps at work: each is a generator of rows over the rows of the step before."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

from headrace.core.failures import is_interrupt, name_of, words
from headrace.errors import ArgumentError, ModelError, StepError
from headrace.plan.functions import Built, Function
from headrace.plan.physical import ErrorPolicy
from headrace.plan.steps.base import Step
from headrace.worker.calls import Caller, EventLoop, make_caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RowKeys, RunningStep, StepContext, no_row_keys, register, running
from headrace.worker.user_code import Meter, Where

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
        unread: Sequence[frozenset[str]] = (),
        preparing: Callable[[str], None] = lambda what: None,
        loaded: Callable[[float], None] = lambda seconds: None,
        policy: ErrorPolicy = ErrorPolicy(),  # noqa: B008 - frozen
        keys: RowKeys = no_row_keys,
        folder: str = "",
    ) -> None:
        """``eager``: a batch whose size is ours to choose is never waited for; it is what was read.

        ``unread``: for each step, columns that are there by the plan, but were not read: nobody needs them.
        ``preparing`` hears which class or model is being made ready, and ``""`` when all are; ``loaded`` how many
        seconds that took. ``own_running`` is as in ``Program``, ``keys`` as in ``StepContext``, ``folder`` as in
        ``Function.build``.
        """
        register(own_running)
        self._steps = tuple(steps)
        self._eager = eager
        self._unread = tuple(unread) or (frozenset(),) * len(self._steps)
        self._where = where
        self._policy = policy
        self._keys = keys
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
        try:
            if function.is_async:
                return function.build(self._loop.run, self._folder)
            return function.build(folder=self._folder)
        except (ModelError, ArgumentError):
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise StepError(
                f"{function.name} could not be {'loaded' if loads else 'constructed'} for {step.label()}: "
                f"{name_of(error)}: {words(error)}. No row was read by it."
            ) from error

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
    ) -> Iterator[Rows]:
        """Send ``rows`` through all steps. ``budgets`` says how many rows each ``limit`` lets pass.

        ``ceilings``: how many rows at a time fit into memory, as other workers found, by the labels of steps.
        """
        self.load()
        assert self._callers is not None
        self._lower(ceilings)
        left = list(budgets)
        for i, (step, callers) in enumerate(zip(self._running, self._callers, strict=True)):
            budget = left.pop(0) if step.step.row_limit is not None else 0
            context = StepContext(
                i, meter, self._where, self._policy, self._eager, self._unread[i], budget, self._keys
            )
            rows = _leaving(step.run(_entering(rows, meter, i), callers, context), meter, i)
        return rows

    def _lower(self, ceilings: Mapping[str, int]) -> None:
        if not ceilings or self._callers is None:
            return
        for step, callers in zip(self._steps, self._callers, strict=True):
            for each, caller in zip(step.functions(), callers, strict=True):
                if each.label in ceilings:
                    caller.lower_ceiling(ceilings[each.label])


def _entering(rows: Iterator[Rows], meter: Meter, step: int) -> Iterator[Rows]:
    count = meter.steps[step]
    for part in rows:
        count.taken += len(part)
        yield part


def _leaving(rows: Iterator[Rows], meter: Meter, step: int) -> Iterator[Rows]:
    count = meter.steps[step]
    for part in rows:
        count.given += len(part)
        yield part
