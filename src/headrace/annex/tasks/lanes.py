"""Calls that workers are sent ahead: before the call that they are at is done.

A worker that has a few short calls waiting at its side does not wait for the driver between them. It must make no
other difference: what was not begun is taken back, at once and without asking the worker, as soon as another worker
has nothing to do, something of another kind waits for its turn, the call before takes long, waits for other calls or
dies, or somebody cancels. See docs/decisions/0054-short-calls-are-sent-ahead.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.annex.tasks.calls import TaskCall, send_ahead
from headrace.annex.tasks.hosting.task_host import TaskHost
from headrace.core.engine_ports import PoolSpec, Seat
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.engines.local.pool import LocalEngine, LocalPool


SHORT = 0.03  # seconds: behind a call that takes longer nothing waits, and none of its name is sent ahead
_MOST_NAMES = 512


@dataclass(eq=False, slots=True)
class Lane:
    """A worker, and the calls that it was sent and has not answered; the first one has what it needs to run."""

    worker: LocalPool
    kind: WorkerKind
    calls: deque[TaskCall] = field(default_factory=deque)
    since: float = 0.0  # when the first one began, as far as is known


class Lanes:
    """The workers that run calls of functions. All happens in the thread of ``dispatcher``, a ``Dispatcher``."""

    def __init__(self, dispatcher: Any, clock: Callable[[], float]) -> None:
        self._dispatcher = dispatcher
        self._admission = dispatcher.admission
        self._clock = clock
        self._lanes: dict[int, Lane] = {}  # by the identity of the worker
        self._took: dict[str, float] = {}  # seconds, by the name of what was called last

    def begin(self, call: TaskCall) -> None:
        """A worker was sent a call, and nothing else; maybe once more, after one died of it."""
        assert call.worker is not None
        lane = Lane(call.worker, call.kind, deque([call]), self._clock())
        self._lanes[id(call.worker)] = lane

    def done(self, call: TaskCall, *, began: bool = True) -> bool:
        """A call is over, or was not begun; say whether its worker has nothing more to do.

        Else the next call has what it had.
        """
        lane = self._lanes.get(id(call.worker))
        if lane is None or call not in lane.calls:
            return False
        was_first = lane.calls[0] is call
        lane.calls.remove(call)
        if not was_first:
            return False
        now = self._clock()
        if began:
            self._note(call.label, now - lane.since)
        lane.since = now
        for following in lane.calls:
            if not following.is_back:
                lane.calls.remove(following)
                lane.calls.appendleft(following)
                self._admission.hand_over(call, following)
                following.begin()
                return False
        del self._lanes[id(call.worker)]
        return True

    def came_back(self, call: TaskCall) -> None:
        """A call that was sent ahead has not begun: it waits again, in its place."""
        worker = call.worker
        assert worker is not None
        if self.done(call, began=False):
            self._dispatcher.workers.release(call.kind, worker)
            self._admission.release(call)
        call.came_back()
        if not self._dispatcher.has(call):
            return
        if call.future.cancelled():
            self._dispatcher.remove(call)
        else:
            call.requested = True
            self._admission.give_back(call, call.needs)

    def close(self, call: TaskCall) -> None:
        """The worker of a call is ended."""
        self._lanes.pop(id(call.worker), None)

    def clear(self, worker: LocalPool | None) -> None:
        """Take back what a worker was sent ahead: the call that it is at waits, or may not go on."""
        lane = self._lanes.get(id(worker))
        if lane is not None:
            lane.worker.take_back()

    def advance(self) -> float | None:
        """Take back what should not wait where it is, or send more ahead; return when to look again, if at all."""
        if not self._lanes:
            return None
        group, waiting = self._admission.only_group(), self._admission.waiting
        now, pause, fullest = self._clock(), None, None
        for lane in self._lanes.values():
            if len(lane.calls) == 1:
                continue
            left = SHORT - (now - lane.since)
            # What is of another kind has its turn.
            if left <= 0 or (waiting and group != lane.calls[0].needs):
                lane.worker.take_back()
                continue
            pause = left if pause is None else min(pause, left)
            fullest = lane if fullest is None or len(lane.calls) > len(fullest.calls) else fullest
        if fullest is not None and not waiting and self._admission.has_room_beside(fullest.calls[0]):
            fullest.worker.take_back()  # another worker has nothing to do
        if group is not None and waiting > 2 * len(self._lanes):
            self._send_more(waiting // (2 * len(self._lanes)))
        return pause

    def _send_more(self, share: int) -> None:
        """Fill the lanes that are half empty. ``share``: as many that wait are there for each."""
        for lane in list(self._lanes.values()):
            first, most = lane.calls[0], min(lane.worker.most_ahead, share)
            ahead = len(lane.calls) - 1
            if 2 * ahead <= most and most and self._may_have_more(lane):
                calls = self._admission.take_ahead(first, most - ahead, partial(self._may_follow, first))
                if calls:
                    self._send(lane, calls)

    def _send(self, lane: Lane, calls: Sequence[TaskCall]) -> None:
        try:
            sent = send_ahead(lane.worker, "run", calls)
        except HeadraceError:  # the call that it is at is told why
            for call in calls:
                self._admission.give_back(call, call.needs)
            return
        for call in calls:
            call.requested = False
            if call.answer is None:  # cancelled
                self._dispatcher.remove(call)
        for call in sent:
            call.kind = lane.kind
            lane.calls.append(call)
            self._dispatcher.requests.running[call.stored.number] = call
            assert call.answer is not None
            self._dispatcher.await_answer(call, call.answer)

    def _may_have_more(self, lane: Lane) -> bool:
        first = lane.calls[0]
        waits = first.wait is not None or first.above is not None
        return not (waits or first.alone or lane.calls[-1].is_back) and self._is_short(first)

    def _may_follow(self, first: TaskCall, call: TaskCall) -> bool:
        return call.may_be_ahead and call.threads == first.threads and not call.alone and self._is_short(call)

    def _is_short(self, call: TaskCall) -> bool:
        return self._took.get(call.label, SHORT) < SHORT

    def _note(self, label: str, seconds: float) -> None:
        if len(self._took) >= _MOST_NAMES:
            self._took.clear()
        self._took[label] = seconds


MAX_IDLE = 5.0  # seconds after which idle workers beyond the machine's cores end


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """What makes a worker fit for a call: threads, and the devices that it sees (None: whatever there is)."""

    threads: int
    devices: tuple[str, ...] | None = None


class ExecutorWorkers:
    """Starts workers, assigns them to calls, and ends idle ones beyond ``most``.

    ``devices``: those of the executor, which decides what each worker sees.
    """

    def __init__(
        self, engine: LocalEngine, devices: Sequence[str], most: int, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._devices = devices
        self._most = most
        self._clock = clock
        self._idle: list[tuple[WorkerKind, LocalPool, float]] = []  # the longest idle is the first
        self.line: Callable[[], Any]  # what a worker asks of the driver; set before the first call

    def kind(self, threads: int, seat: Seat) -> WorkerKind:
        """Return the kind of worker for a call that has ``seat``."""
        return WorkerKind(threads, tuple(self._devices[i] for i in seat) if self._devices else None)

    def acquire(self, kind: WorkerKind) -> LocalPool:
        """Return an idle worker, or a new one."""
        for i in range(len(self._idle) - 1, -1, -1):
            if self._idle[i][0] == kind:
                return self._idle.pop(i)[1]
        if len(self._idle) >= self._most:
            self._end_idle()
        return self.start("calls", kind)

    def start(self, name: str, kind: WorkerKind) -> LocalPool:
        """Start a worker. Idle ones that may hold memory of its devices end."""
        for place in range(len(self._idle) - 1, -1, -1):
            if set(self._idle[place][0].devices or ()) & set(kind.devices or ()):
                self._end_idle(place)
        line = self.line()
        spec = PoolSpec(
            name,
            TaskHost,
            1,
            kind.threads,
            devices=kind.devices,
            on_packed=line.on_packed,
            on_end=line.on_end,
        )
        worker = line.pool = self._engine.start(spec, line.on_note)
        return worker

    def end(self, worker: LocalPool, *, kill: bool) -> None:
        """End a worker."""
        worker.close(kill=kill)

    def release(self, kind: WorkerKind, worker: LocalPool) -> None:
        """A worker is idle again."""
        self._idle.append((kind, worker, self._clock()))

    def end_surplus(self) -> float | None:
        """End idle workers that are too many; return in how many seconds to do so again, if at all."""
        while len(self._idle) > self._most:
            left = MAX_IDLE - (self._clock() - self._idle[0][2])
            if left > 0:
                return left
            self._end_idle()
        return None

    def close(self) -> None:
        """Forget the idle workers: the engine ends them."""
        self._idle.clear()

    def _end_idle(self, place: int = 0) -> None:
        self.end(self._idle.pop(place)[1], kill=False)
