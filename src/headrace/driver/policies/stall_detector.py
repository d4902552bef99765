"""Ends a run that would otherwise hang: nobody works, and no message comes."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.work import ErrorReport
from headrace.driver.policy import Action, DumpStacks, EndRun, Policy
from headrace.driver.run_view import RunView

DUMP = 1.0  # seconds for workers to print their stacks


class StallDetector(Policy):
    """Ends the run after ``timeout`` seconds without work and without messages.

    A worker that has a call works, however long that takes, unless it waits for a block. If no attempt is open and
    none can begin, the run ends at once.
    """

    def __init__(self, timeout: float = 300.0) -> None:
        self._timeout = timeout
        self._messages = 0
        self._since = 0.0  # the silence when somebody was last at work, or a message came

    def after_schedule(self, view: RunView) -> Iterable[Action]:
        """End the run if nothing can happen any more."""
        if view.finished:
            return
        if view.messages != self._messages:
            self._messages, self._since = view.messages, view.silence
        quiet = view.silence - self._since
        if view.nothing_begins:
            yield DumpStacks(0.0)
            yield EndRun(_stalled(quiet))
        elif quiet and self._is_working(view):
            self._since = view.silence
        elif quiet >= self._timeout:
            yield DumpStacks(DUMP)
            yield EndRun(_stalled(quiet))

    def _is_working(self, view: RunView) -> bool:
        calls = sum(sum(view.loads(stage).values()) for stage in range(view.stages))
        return calls > view.attempts_waiting


def _stalled(quiet: float) -> ErrorReport:
    return ErrorReport(
        "Stalled",
        f"Nothing has happened for {quiet:.0f} s, no worker is at work, and no shard can begin. Above, on standard "
        "error, is what each worker's threads are doing. This is a bug in Headrace: please report it. Finished work "
        "is kept; run the same command again, and it goes on from there.",
    )
