"""What becomes of a pool whose workers die before they can work. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.engines.process import Death

BROKEN_AFTER = 3  # deaths in a row; or one of each worker: some may die where all at once are too much
PATIENCE = 8  # rounds of deaths in a row, in a pool that has worked before
PAUSE = 0.5  # seconds before a replacement starts in earnest; doubled with each round
LONGEST = 30.0


@dataclass(slots=True)
class Births:
    """Says when a pool is beyond hope, and how long a replacement waits before it takes memory.

    Where no worker ever answered, what they host cannot be made, and a few deaths tell. Where some did, it can:
    something outside ends them, the kernel most likely, because memory is short for now. Then replacements wait,
    longer each time. Workers that die together, before any of their replacements did, are one round.
    """

    round: int = 0
    deaths: list[Death] = field(default_factory=list)  # since the last answer
    answered: bool = False

    def worked(self) -> None:
        """A worker answered."""
        self.answered = True
        self.deaths.clear()
        self.round = 0

    def died(self, death: Death, born: int) -> None:
        """A worker of round ``born`` ended before it could work."""
        self.deaths.append(death)
        if born >= self.round:
            self.round += 1

    def hopeless(self, size: int) -> bool:
        """Say whether a pool of ``size`` workers had better be given up."""
        if self.answered:
            return self.round >= PATIENCE
        return len(self.deaths) >= max(BROKEN_AFTER, size)

    @property
    def pause(self) -> float:
        """How many seconds a worker that is started now waits."""
        if not self.answered or not self.round:
            return 0.0
        return min(LONGEST, PAUSE * 2.0 ** (self.round - 1))
