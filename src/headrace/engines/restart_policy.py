"""When a pool is given up whose workers die before they can work, and how long replacements wait. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.core.waiting import backoff

if TYPE_CHECKING:
    from headrace.engines.deaths import Death

GIVE_UP_AFTER = 3  # deaths in a row; or one of each worker: some may die where all at once are too much
MAX_ROUNDS = 8  # of deaths in a row, in a pool that has worked before
PAUSE = 0.5  # seconds before a replacement starts in earnest; doubled with each round
MAX_PAUSE = 30.0


class RestartPolicy(msgspec.Struct):
    """Decides when to give up a pool, and how long a replacement waits before it takes memory.

    Where no worker ever answered, what they host cannot be made, and a few deaths are enough to know. Where some did,
    it can be made: something outside ends them, the kernel most likely, because memory is short for now. Then
    replacements wait, longer each time. Workers that die together, before any of their replacements did, are one
    round.
    """

    round: int = 0
    deaths: list[Death] = msgspec.field(default_factory=list)  # since the last answer
    answered: bool = False

    def on_answer(self) -> None:
        """A worker answered."""
        self.answered = True
        self.deaths.clear()
        self.round = 0

    def on_death(self, death: Death, started: int) -> None:
        """A worker that was started in round ``started`` ended before it could work."""
        self.deaths.append(death)
        if started >= self.round:
            self.round += 1

    def should_give_up(self, size: int) -> bool:
        """Say whether to give up a pool of ``size`` workers."""
        if self.answered:
            return self.round >= MAX_ROUNDS
        return len(self.deaths) >= max(GIVE_UP_AFTER, size)

    @property
    def pause(self) -> float:
        """How many seconds a worker that is started now waits."""
        if not self.answered or not self.round:
            return 0.0
        return backoff(self.round, PAUSE, MAX_PAUSE, spread=0.0)
