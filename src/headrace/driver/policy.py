"""The protocol between the loop and its policies: what a policy is asked, and the actions that it may answer with.

A policy decides and the loop acts. Policies do no I/O, start no thread and read no clock: what they need to know is
in the arguments, and what they want done is in the actions that they return. So each can be tested alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.engine_ports import Pool
from headrace.core.events import Event
from headrace.core.messages import EndEarly, LeaveRest, ShrinkBatches
from headrace.core.work import ErrorReport, Outcome, Shard, Task
from headrace.driver.scheduler import Scheduler

if TYPE_CHECKING:
    from headrace.errors import WorkerDied


NEVER = float("inf")


# ---------------------------------------------------------------- actions


class Emit(msgspec.Struct, frozen=True):
    """Report an event to the observers and to all policies."""

    event: Event


class EndWorker(msgspec.Struct, frozen=True):
    """End a worker; its calls fail with ``reason``.

    ``stage`` is None if only the worker's number is known. ``replaced``: the pool starts another one. ``charged``:
    the death may count against the shard that the worker is at.
    """

    worker: int
    reason: str
    stage: int | None = None
    replaced: bool = True
    charged: bool = True


class Tell(msgspec.Struct, frozen=True):
    """Tell a worker something, whatever it is doing; ``LeaveRest`` is for one of its attempts."""

    stage: int
    worker: int
    what: ShrinkBatches | EndEarly | LeaveRest
    shard: int = -1
    attempt: int = -1


class StopRun(msgspec.Struct, frozen=True):
    """End the run without an error, once what is done is committed."""


class ResizePool(msgspec.Struct, frozen=True):
    """Have a stage's pool grow or shrink to ``size`` workers."""

    stage: int
    size: int


class Restrict(msgspec.Struct, frozen=True):
    """For this turn: give no work to the workers in ``ending``, and begin less.

    ``ahead`` False: no attempt begins behind another. ``needed_only``: the stages before the last make only what an
    attempt needs next. ``begin`` False: no attempt begins at all. What several policies ask for holds together.
    """

    ending: frozenset[int] = frozenset()
    ahead: bool = True
    needed_only: bool = False
    begin: bool = True

    def __and__(self, other: Restrict) -> Restrict:
        return Restrict(
            self.ending | other.ending,
            self.ahead and other.ahead,
            self.needed_only or other.needed_only,
            self.begin and other.begin,
        )


class DivideShard(msgspec.Struct, frozen=True):
    """Replace a shard by ``parts``; the first has its number. ``early``: it is done already, or under way."""

    parts: Sequence[Shard]
    early: bool = False


class AddShards(msgspec.Struct, frozen=True):
    """Take in further shards, which were not known when the run began; none: no more will come.

    They get the numbers behind the last one.
    """

    shards: Sequence[Shard]


class DumpStacks(msgspec.Struct, frozen=True):
    """Have all workers print the stacks of their threads, and wait ``seconds`` for that."""

    seconds: float


class EndRun(msgspec.Struct, frozen=True):
    """End the run with an error, once what is committed is made durable."""

    error: ErrorReport


Action = (
    Emit | EndWorker | Tell | ResizePool | Restrict | DivideShard | AddShards | DumpStacks | EndRun | StopRun
)
Decision = Outcome | DivideShard
"""What becomes of an outcome: see ``Policy.on_outcome``."""


# ---------------------------------------------------------------- what policies see


class WorkerDeath(msgspec.Struct, frozen=True):
    """A worker died that had a call for ``shard``.

    ``rows``: how many of the shard's rows it had read, if that is known. ``at_work``: whether it worked on this shard
    when it died; None if nobody knows.
    """

    error: WorkerDied
    worker: int
    shard: int
    rows: int | None = None
    at_work: bool | None = None


class Verdict(msgspec.Struct, frozen=True):
    """What follows from a death: the shard is ``charged`` with it, or it ends the run with an ``error``.

    ``restart``: the attempt at the shard must begin anew, because the shard will be divided.
    """

    charged: bool = False
    error: ErrorReport | None = None
    restart: bool = False


# ---------------------------------------------------------------- the protocol


class Policy:
    """A rule that the loop asks at fixed points. Every method has a default that changes nothing."""

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Return what to do before work is given out; asked once per turn of the loop."""
        return ()

    def after_schedule(self, view: RunView) -> Iterable[Action]:
        """Return what to do once all work that could be given out is; asked once per turn."""
        return ()

    def before_submit(self, task: Task) -> Task:
        """Return the task as the worker is to get it."""
        return task

    def on_message(self, message: Any, now: float) -> None:
        """Note a worker's message, or an event of the driver."""

    def on_death(self, death: WorkerDeath) -> Verdict | None:
        """Decide what follows from a worker's death; None leaves that to the next policy, and the last charges it."""
        return None

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Return the outcome to go on with. Asked before it is completed.

        A shard is divided before its outcome, which stays as it is, goes on. Raising ends the run at once.
        """
        return outcome

    def next_wakeup(self, now: float) -> float:
        """Return the time by which the loop has to ask again even if no message comes."""
        return NEVER


class RunView:
    """The scheduler, the pools of all stages, and what the loop counts.

    ``nothing_begins``: no attempt is open and this turn began none, although there are workers for one. ``holds``:
    none is to begin. ``messages`` is the number of messages received so far, ``silence`` the seconds spent waiting
    for messages that did not come, in total.
    """

    def __init__(self, scheduler: Scheduler, pools: Sequence[Pool], clock: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self._pools = pools
        self._clock = clock
        self.nothing_begins = self.holds = False
        self.messages = 0
        self.silence = 0.0

    @property
    def now(self) -> float:
        """The time, in seconds of the driver's clock."""
        return self._clock()

    @property
    def stages(self) -> int:
        """The number of stages, and of pools."""
        return len(self._pools)

    def loads(self, stage: int) -> Mapping[int, int]:
        """Return the number of unanswered calls of each live worker of a stage."""
        return self._pools[stage].loads()

    def memory(self, stage: int) -> Mapping[int, int]:
        """Return the private memory of each live worker of a stage, in bytes."""
        return self._pools[stage].memory()
