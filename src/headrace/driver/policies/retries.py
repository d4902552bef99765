"""What follows when workers die: whose fault it is not, and how long a shard waits before it is tried again."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable

from headrace.core.waiting import backoff
from headrace.core.work import AttemptLost, Outcome
from headrace.driver.policy import NEVER, Action, Decision, Policy, Release, Verdict, WorkerDeath
from headrace.driver.run_view import RunView
from headrace.errors import NeverReady, NodeLost

FIRST = 0.1  # seconds; doubles with each death over the same shard
LONGEST = 5.0


class ExternalDeaths(Policy):
    """Charges no shard with the death of a worker that could not work yet, or whose machine is gone."""

    def on_death(self, death: WorkerDeath) -> Verdict | None:
        """Decide on deaths from outside; leave the others to the next policy."""
        return Verdict(charged=False) if isinstance(death.error, (NeverReady, NodeLost)) else None


class RetryBackoff(Policy):
    """Holds lost attempts back for a while: what a worker died of may pass, such as a machine short of memory."""

    def __init__(self) -> None:
        self._deaths: Counter[int] = Counter()  # by shard
        self._held: list[tuple[float, int, AttemptLost]] = []  # a heap of the times when each pause ends
        self._order = itertools.count()

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Hold an attempt back whose shard is charged with its worker's death."""
        if not isinstance(outcome, AttemptLost) or not outcome.charged:
            return outcome
        self._deaths[outcome.shard] += 1
        pause = backoff(self._deaths[outcome.shard], FIRST, LONGEST, spread=0.0)
        heapq.heappush(self._held, (view.now + pause, next(self._order), outcome))
        return None

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Go on with the attempts whose pause is over."""
        while self._held and self._held[0][0] <= view.now:
            yield Release(heapq.heappop(self._held)[2])

    def next_wakeup(self, now: float) -> float:
        """Return when the next pause ends."""
        return self._held[0][0] if self._held else NEVER
