"""Calls that wait for other calls: their workers do what they wait for, or give way to another worker.

See docs/decisions/0044-a-call-that-waits-works-on-what-it-waits-for.md.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.annex.tasks.admission import Admission
from headrace.annex.tasks.calls import TaskCall, Wait

# Calls in one worker, each of which waits for the next: the stack of the interpreter is finite.
MAX_DEPTH = 16
GIVE_WAY_AFTER = 0.1  # seconds that a worker waits idly before its cores are given to another


class Waits:
    """The waits of calls whose workers have nothing to do meanwhile.

    ``start_above(call, other)`` runs another call in the worker of one that waits.
    """

    def __init__(
        self,
        admission: Admission,
        start_above: Callable[[TaskCall, TaskCall], None],
        clock: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._start_above = start_above
        self._clock = clock
        self._idle: dict[Wait, None] = {}

    def begin(self, wait: Wait) -> None:
        """The worker of a call has nothing to do: the call waits, and nothing runs above it."""
        if not wait.over:
            wait.since = None
            self._idle[wait] = None

    def busy(self, wait: Wait | None) -> None:
        """The worker has something to do again."""
        self._idle.pop(wait, None)  # type: ignore[arg-type]

    def end(self, wait: Wait) -> None:
        """The wait is over: the call has its cores again, even if others have them, too."""
        wait.over = True
        self._idle.pop(wait, None)
        if wait.call is not None:
            self._take_cores(wait, wait.call)
            wait.call.wait = None
        wait.futures.clear()
        wait.candidates.clear()
        wait.underway.clear()

    def advance(self) -> float | None:
        """Give idle workers something of what their calls wait for; return when to look again, if at all."""
        pause: float | None = None
        for wait in list(self._idle):
            call = wait.call
            assert call is not None
            if wait.helping and not call.alone and _depth(call) < MAX_DEPTH and self._may_run(wait, call):
                found = _next_of(wait, call, set())
                if found is not None:
                    self._take_cores(wait, call)
                    self.busy(wait)
                    self._start_above(call, found)
                    continue
            if not self._admission.waiting:
                wait.since = None
            elif not wait.paused:
                now = self._clock()
                wait.since = now if wait.since is None else wait.since
                left = GIVE_WAY_AFTER - (now - wait.since)
                if left <= 0:
                    self._admission.pause(_bottom(call))
                    wait.paused = True
                    left = 0.0  # to start others now
                pause = left if pause is None else min(pause, left)
        return pause

    def _may_run(self, wait: Wait, call: TaskCall) -> bool:
        return not wait.paused or self._admission.has_room(_bottom(call))

    def _take_cores(self, wait: Wait, call: TaskCall) -> None:
        if wait.paused:
            self._admission.resume(_bottom(call))
            wait.paused = False


def _next_of(wait: Wait, host: TaskCall, seen: set[Wait]) -> TaskCall | None:
    """Return a call without which ``wait`` cannot end, and that nobody has begun."""
    if wait in seen:
        return None
    seen.add(wait)
    while wait.candidates:
        call = wait.candidates.pop()
        if call.future.done():
            continue
        wait.underway.append(call)
        if call.requested and _fits(call, host):
            return call
    wait.underway = [call for call in wait.underway if not call.future.done()]
    for call in wait.underway:
        if call.requested and _fits(call, host):
            return call
        if call.wait is not None and call.wait.helping:
            found = _next_of(call.wait, host, seen)
            if found is not None:
                return found
    return None


def _fits(call: TaskCall, host: TaskCall) -> bool:
    """Say whether a call may run in the worker of another: it needs the same, and both may be tried again."""
    needs = call.needs
    return (
        needs == host.needs
        and not needs.num_gpus
        and not needs.memory
        and call.threads == host.threads
        and call.max_retries != 0
        and host.max_retries != 0
        and not call.alone
    )


def _bottom(call: TaskCall) -> TaskCall:
    """Return the first call of a worker, which has its cores."""
    while call.below is not None:
        call = call.below
    return call


def _depth(call: TaskCall) -> int:
    depth, below = 1, call.below
    while below is not None:
        depth, below = depth + 1, below.below
    return depth
