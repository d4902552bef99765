"""How worker processes ended; when a pool is given up whose workers die, and how long replacements wait. Pure."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence

import msgspec

from headrace.core.process import backoff

CANNOT_BEGIN = "This worker could not begin"
"""So begin the last words of a worker that says itself why it ends, and what to do."""


class Death(msgspec.Struct, frozen=True):
    """How a worker process ended: its exit status or, below zero, the signal; what it was preparing, if anything.

    ``last_words`` are the last lines of its stderr. ``out_of_memory``: the kernel ended it because memory ran out;
    None if that is not known. ``unknown``: there is no exit status, as the program ignores SIGCHLD.
    """

    pid: int
    code: int
    preparing: str
    last_words: str
    out_of_memory: bool | None = None
    unknown: bool = False

    def __str__(self) -> str:
        words = f"; its last words: {self.last_words}" if self.last_words else ""
        return (
            f"worker process {self.pid} {'was ' if self.code < 0 else ''}{self.way}{self._killed_by}{words}"
        )

    @property
    def _killed_by(self) -> str:
        if self.code != -signal.SIGKILL:
            return ""
        if self.out_of_memory is None:
            return " (by the kernel, if memory ran out)"
        return " (by the kernel, because memory ran out)" if self.out_of_memory else " (from outside)"

    @property
    def way(self) -> str:
        """The signal or the exit status in words, and what it was preparing."""
        if self.unknown:
            way = "ended with unknown status (the program ignores SIGCHLD)"
        elif self.code >= 0:
            way = f"exited with status {self.code}"
        elif -self.code in set(signal.Signals):
            way = f"killed by {signal.Signals(-self.code).name}"
        else:
            way = f"killed by signal {-self.code}"
        return f"{way} while {self.preparing}" if self.preparing else way


def never_ready(pool: str, deaths: Sequence[Death]) -> str:
    """Say that workers of a pool ended, one after another, before any of them could work."""
    ways = Counter(death.way for death in deaths)
    listed = "; ".join(way if count == 1 else f"{way} ({count} times)" for way, count in ways.items())
    last = deaths[-1].last_words.removesuffix(".")
    words = f" The last one's last words: {last}." if last else ""
    if CANNOT_BEGIN in last:
        advice = ""
    elif any(death.out_of_memory for death in deaths):
        advice = (
            "The kernel ended them because memory ran out. Let fewer workers share it (workers=, concurrency=), or "
            "use a machine with more."
        )
    elif any(death.code in (-signal.SIGKILL, -signal.SIGTERM) for death in deaths):
        advice = (
            "They were ended from outside; the kernel does that if memory runs out (see `dmesg`). Then let fewer "
            "workers share the memory (workers=, concurrency=), or use a machine with more."
        )
    else:
        advice = "Something there takes the process down: try it in a Python process of its own to see what."
    ended = f"{len(deaths)} workers of {pool} in a row ended before they could work: {listed}."
    return f"{ended}{words} {advice}".rstrip()


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
