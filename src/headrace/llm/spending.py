"""How much a run may use, and what it has used."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from headrace.errors import SpendingCapReached
from headrace.llm.store import AnswerStore, Spent

ANSWER_TOKENS = 512
"""What an answer is taken to have while nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Caps:
    """What a run may cost, and how many tokens it may use, in all; None: any number."""

    cost: float | None = None
    tokens: int | None = None


class Spending:
    """Lets requests begin while what they may cost is left. Used on one event loop.

    What is under way is counted with what it may cost: its prompt, as its length lets expect, and ``max_tokens`` or
    as many tokens as answers have had on average; twice that where it may be sent a second time. Nothing begins that
    would go beyond a cap; where nothing is under way any more and the next request would, the run ends.
    """

    def __init__(self, caps: Caps, endpoint: Any, store: AnswerStore, label: str) -> None:
        self._caps, self._endpoint, self._store, self._label = caps, endpoint, store, label
        self._reserved_tokens = 0
        self._reserved_cost = 0.0
        self._under_way = 0
        self._landed = asyncio.Event()

    async def begin(self, prompt_tokens: int, max_tokens: int | None) -> tuple[int, float]:
        """Wait until a request may begin; return what ``end`` wants to have back."""
        if self._caps.cost is None and self._caps.tokens is None:
            return 0, 0.0
        while True:
            spent = self._store.spent()
            mean = spent.completion_tokens // spent.requests if spent.requests else ANSWER_TOKENS
            answer = max_tokens if max_tokens is not None else max(mean, 1)
            times = 2 if getattr(self._endpoint, "hedge", False) else 1
            tokens = times * (prompt_tokens + answer)
            cost = times * self._endpoint.cost(prompt_tokens, answer)
            if self._fits(spent, tokens, cost):
                self._reserved_tokens += tokens
                self._reserved_cost += cost
                self._under_way += 1
                return tokens, cost
            if not self._under_way:
                raise self._reached(spent)
            self._landed.clear()
            await self._landed.wait()

    def _fits(self, spent: Spent, tokens: int, cost: float) -> bool:
        caps = self._caps
        return (caps.tokens is None or spent.tokens + self._reserved_tokens + tokens <= caps.tokens) and (
            caps.cost is None or spent.cost + self._reserved_cost + cost <= caps.cost
        )

    def end(self, reserved: tuple[int, float]) -> None:
        """A request has ended, whatever came of it."""
        if reserved[0]:
            self._reserved_tokens -= reserved[0]
            self._reserved_cost -= reserved[1]
            self._under_way -= 1
            self._landed.set()

    def _reached(self, spent: Spent) -> SpendingCapReached:
        caps = self._caps
        cap = f"max_cost={caps.cost:g}" if caps.cost is not None else ""
        if caps.tokens is not None:
            cap = f"{cap} and " * bool(cap) + f"max_total_tokens={caps.tokens:,}"
        cost = f", {spent.cost:,.4f} by prices=" if self._endpoint.prices is not None else ""
        return SpendingCapReached(
            f"{self._label} has reached {cap}: {spent.requests:,} answers have used "
            f"{spent.prompt_tokens:,} tokens in "
            f"and {spent.completion_tokens:,} out{cost}, and the next request may go beyond. What was "
            "answered for an "
            "output is kept: run the same program with a higher cap to go on, and none of it is asked again."
        )
