"""Ends a run that is interrupted, and keeps what its workers have done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.core.work import EndEarly, RunInterrupted
from headrace.driver.policy import NEVER, Action, Policy, Restrict, StopRun, Tell
from headrace.driver.run_view import RunView

PATIENCE = 10.0  # seconds for the batches that are under way


class Interruption(Policy):
    """After an interrupt nothing begins, open attempts end early, and the run stops once they have.

    It stops after ``PATIENCE`` in any case: a batch may take for ever.
    """

    def __init__(self, *, waits: bool) -> None:
        """``waits``: attempts can end early; if not, the run stops at once."""
        self._waits = waits
        self._until = NEVER
        self._asked: set[int] = set()

    def on_message(self, message: Any, now: float) -> None:
        """Note an interrupt."""
        if isinstance(message, RunInterrupted):
            self._until = min(self._until, now + (PATIENCE if self._waits else 0.0))

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Have the workers end what they are at."""
        if self._until == NEVER:
            return
        yield Restrict(begin=False)
        at_work = view.open_workers(view.stages - 1)
        if not at_work or view.now >= self._until:
            yield StopRun()
        for worker in sorted(at_work - self._asked):
            yield Tell(view.stages - 1, worker, EndEarly())
        self._asked |= at_work

    def next_wakeup(self, now: float) -> float:
        """Return when the run stops in any case."""
        return self._until
