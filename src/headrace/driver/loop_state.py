"""The state of a run as the loop maintains it and as policies see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.core.engine_ports import Pool
from headrace.core.work import Outcome, Shard
from headrace.driver.policy import Restrict
from headrace.driver.scheduler import Scheduler

if TYPE_CHECKING:
    from headrace.driver.upstream.scheduler import UpstreamScheduler


class LoopState:
    """Schedulers, pools and what the loop counts; see ``RunView`` for what policies may ask.

    ``restriction`` holds for the present turn of the loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        upstream: UpstreamScheduler | None,
        pools: Sequence[Pool],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._upstream = upstream
        self._pools = pools
        self._clock = clock
        self.restriction = Restrict()
        self.nothing_begins = False
        self.messages = 0
        self.silence = 0.0

    @property
    def now(self) -> float:
        """See ``RunView.now``."""
        return self._clock()

    @property
    def stages(self) -> int:
        """See ``RunView.stages``."""
        return len(self._pools)

    @property
    def finished(self) -> bool:
        """See ``RunView.finished``."""
        return self._scheduler.finished

    @property
    def attempts_waiting(self) -> int:
        """See ``RunView.attempts_waiting``."""
        return self._upstream.attempts_waiting if self._upstream is not None else 0

    @property
    def block_bytes(self) -> int:
        """See ``RunView.block_bytes``."""
        return self._upstream.held if self._upstream is not None else 0

    @property
    def shards(self) -> int:
        """See ``RunView.shards``."""
        return self._scheduler.count

    @property
    def dividable(self) -> bool:
        """See ``RunView.dividable``."""
        return self._scheduler.dividable

    def loads(self, stage: int) -> Mapping[int, int]:
        """See ``RunView.loads``."""
        return self._pools[stage].loads()

    def usable(self, stage: int) -> dict[int, int]:
        """Return the loads of the workers of a stage that may be given work."""
        loads, ending = self._pools[stage].loads(), self.restriction.ending
        return {worker: load for worker, load in loads.items() if worker not in ending} if ending else loads

    def memory(self, stage: int) -> Mapping[int, int]:
        """See ``RunView.memory``."""
        return self._pools[stage].memory()

    def tasks_waiting(self, stage: int) -> int:
        """See ``RunView.tasks_waiting``."""
        if self._upstream is None or stage + 1 == self.stages:
            return self._scheduler.waiting
        return self._upstream.tasks_waiting(stage)

    def open_workers(self, stage: int) -> set[int]:
        """See ``RunView.open_workers``."""
        if self._upstream is None or stage + 1 == self.stages:
            return self._scheduler.open_workers
        return self._upstream.open_workers(stage)

    def is_current(self, outcome: Outcome) -> bool:
        """See ``RunView.is_current``."""
        return self._scheduler.attempt_of(outcome.shard) == outcome.attempt

    def shard(self, number: int) -> Shard:
        """See ``RunView.shard``."""
        return self._scheduler.shard_of(number)

    def family(self, shard: int) -> set[tuple[int, ...]]:
        """See ``RunView.family``."""
        return self._scheduler.family(shard)
