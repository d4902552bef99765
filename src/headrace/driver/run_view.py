"""The state of a run, as far as policies may look at it; the loop maintains it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from headrace.core.engine_ports import Pool
from headrace.core.work import Outcome, Shard
from headrace.driver.scheduler import Scheduler


class RunView:
    """The scheduler, the pools, and what the loop counts.

    ``nothing_begins``: no attempt is open and this turn began
    none, although there are workers for one. ``messages`` is the number of messages received so far, ``silence`` the
    seconds spent waiting for messages that did not come, in total.
    """

    def __init__(self, scheduler: Scheduler, pools: Sequence[Pool], clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._pools = pools
        self._clock = clock
        self.nothing_begins = False
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

    @property
    def finished(self) -> bool:
        """True once nothing is left to do, or an error ended the run."""
        return self._scheduler.finished

    @property
    def attempts_waiting(self) -> int:
        """The number of attempts whose worker waits for a block."""
        return self._scheduler.blocks.attempts_waiting

    @property
    def block_bytes(self) -> int:
        """The bytes of the blocks between stages."""
        return self._scheduler.blocks.held

    @property
    def shards(self) -> int:
        """The number of shards so far: the number that the next part gets."""
        return self._scheduler.count

    @property
    def dividable(self) -> bool:
        """True if shards may be divided."""
        return self._scheduler.dividable

    def loads(self, stage: int) -> Mapping[int, int]:
        """Return the number of unanswered calls of each live worker of a stage."""
        return self._pools[stage].loads()

    def usable(self, ending: Collection[int]) -> list[Mapping[int, int]]:
        """Return, for each stage, the loads of the workers that may be given work: those that are not ``ending``."""
        loads: list[Mapping[int, int]] = [pool.loads() for pool in self._pools]
        return (
            [{n: load for n, load in each.items() if n not in ending} for each in loads] if ending else loads
        )

    def memory(self, stage: int) -> Mapping[int, int]:
        """Return the private memory of each live worker of a stage, in bytes."""
        return self._pools[stage].memory()

    def tasks_waiting(self, stage: int) -> int:
        """Return how many shards, or tasks of an earlier stage, wait for a worker."""
        return self._scheduler.tasks_waiting(stage)

    def open_workers(self, stage: int) -> set[int]:
        """Return the workers of a stage that have begun something and not ended it, even if it is paused."""
        return self._scheduler.open_workers(stage)

    def at_work(self) -> Mapping[int, tuple[int, int]]:
        """Return the shard and the attempt that workers of the last stage are at, unless they wait or only end it."""
        return self._scheduler.at_work

    def is_current(self, outcome: Outcome) -> bool:
        """Say whether an outcome is of the attempt that is open at its shard."""
        return self._scheduler.attempt_of(outcome.shard) == outcome.attempt

    def shard(self, number: int) -> Shard:
        """Return the shard of a number."""
        return self._scheduler.shard_of(number)

    def family(self, shard: int) -> set[tuple[int, ...]]:
        """Return the places of all parts of the planned shard that a shard is, or is a part of."""
        return self._scheduler.family(shard)
