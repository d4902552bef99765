"""A simulated engine for language models, whose clock counts its steps, and a simulated cache of beginnings."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heappop, heappush


class SimulatedLLMEngine:
    """Works on at most ``slots`` requests at a time, a token of each in a step; a request is how many it takes.

    Parameters
    ----------
    slots
        How many requests it works on at a time.
    memory
        For how many of them it has memory; None: for all.
    stops_after
        After so many steps it raises ``RuntimeError``; None: never.

    ``steps`` counts its steps, ``worked`` the tokens that it made; ``most_inside`` and ``most_running`` say how many
    requests were in it, and at work, at most.

    >>> engine = SimulatedLLMEngine(2)
    >>> for number, length in enumerate([3, 1, 2]):
    ...     engine.add(number, length)
    >>> [engine.step() for _ in range(3)], engine.load()
    ([[(1, 1)], [], [(0, 3), (2, 2)]], (2, 0))
    """

    def __init__(self, slots: int, *, memory: int | None = None, stops_after: int | None = None) -> None:
        self._slots = min(slots, memory or slots)
        self._stops_after = stops_after
        self._waiting: deque[tuple[int, int]] = deque()
        self._running: list[tuple[int, int, int]] = []  # when it ends, number, length
        self._load = (0, 0)
        self._ledger: list[int] = []  # how many were worked on in each step
        self._last_begin = 0
        self.steps = self.worked = self.most_inside = self.most_running = 0
        self.aborted: list[int] = []
        self.closed = False

    def add(self, number: int, request: int) -> None:
        """Take a request; raises ``ValueError`` for a length below 1."""
        if request < 1:
            raise ValueError(f"a request of {request} tokens")
        self._waiting.append((number, request))
        self.most_inside = max(self.most_inside, len(self._waiting) + len(self._running))

    def step(self) -> Sequence[tuple[int, int]]:
        """Make one token for each request at work; return those that ended."""
        if self.steps == self._stops_after:
            raise RuntimeError("the engine stops")
        while self._waiting and len(self._running) < self._slots:
            number, length = self._waiting.popleft()
            heappush(self._running, (self.steps + length, number, length))
            self._last_begin = self.steps
        self.steps += 1
        running = len(self._running)
        self._load = (running, len(self._waiting))
        self._ledger.append(running)
        self.worked += running
        self.most_running = max(self.most_running, running)
        ended = []
        while self._running and self._running[0][0] <= self.steps:
            _, number, length = heappop(self._running)
            ended.append((number, length))
        return ended

    def busy_until_last_begin(self) -> tuple[int, int]:
        """Return how many slots were busy, summed over the steps before the last request began, and these steps."""
        return sum(self._ledger[: self._last_begin]), self._last_begin

    def load(self) -> tuple[int, int]:
        """Return how many requests were worked on in the last step, and how many waited."""
        return self._load

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""
        self.aborted += numbers
        gone = set(numbers)
        self._waiting = deque(each for each in self._waiting if each[0] not in gone)
        self._running = sorted(each for each in self._running if each[1] not in gone)

    def close(self) -> None:
        """End."""
        self.closed = True


class SimulatedPrefixCache:
    """A cache of what was computed for the beginnings of prompts, in blocks of tokens; the oldest are let go.

    Parameters
    ----------
    blocks
        How many blocks it holds.
    block_tokens
        How many tokens are in one.

    ``looked`` counts the whole blocks of all prompts, ``hits`` those that were there.

    >>> cache = SimulatedPrefixCache(blocks=4, block_tokens=2)
    >>> for prompt in ["a b c d", "a b x y", "a b c d"]:
    ...     cache.look_up(prompt.split())
    >>> cache.looked, cache.hits
    (6, 3)
    """

    def __init__(self, blocks: int, block_tokens: int = 16) -> None:
        self._blocks, self._block_tokens = blocks, block_tokens
        self._known: OrderedDict[tuple[str, ...], None] = OrderedDict()
        self.looked = self.hits = 0

    def look_up(self, tokens: Sequence[str]) -> None:
        """Take a prompt: find how much of its beginning is there, and keep it."""
        beginning: tuple[str, ...] = ()
        found = True
        for start in range(0, len(tokens) - self._block_tokens + 1, self._block_tokens):
            beginning = (str(hash((beginning, tuple(tokens[start : start + self._block_tokens])))),)
            found = found and beginning in self._known
            self.looked += 1
            self.hits += found
            self._known[beginning] = None
            self._known.move_to_end(beginning)
            if len(self._known) > self._blocks:
                self._known.popitem(last=False)
