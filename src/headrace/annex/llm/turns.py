"""Rates that hold for many machines together: each worker sends while it has the turn.

A turn is a span of time, and what is sent in it is spread over it as the rates say. The machine's own limiter holds
besides. What is late by more than ``LATE_SECONDS`` needs another turn: else two machines would send at once.
"""

from __future__ import annotations

import asyncio
import time

from headrace.core.model_ports import Rates

LONGEST_TURN = 1.0
LATE_SECONDS = 0.5
UTILISATION = 0.94
"""How much of a rate is used: no minute has more than it may, with turns that begin or end in it, or come late."""


class Turns:
    """The turns of one worker at one key. Used on one event loop."""

    def __init__(
        self, rates: Rates, key: str, requests_per_minute: float | None, tokens_per_minute: float | None
    ) -> None:
        self._rates, self._key = rates, key
        self._request = 60 / UTILISATION / requests_per_minute if requests_per_minute else 0.0
        self._token = 60 / UTILISATION / tokens_per_minute if tokens_per_minute else 0.0
        self._lock = asyncio.Lock()
        self._waiting = 0.0  # seconds of all who wait for a turn
        self._owed = 0.0  # seconds that were used beyond what was asked for, or less than 0
        self._left = self._next = self._ends = (
            0.0  # of the turn: seconds, when the next is sent, and when it ends
        )

    async def wait(self, tokens: int) -> float:
        """Wait for a turn to send a request of about so many tokens; return until when it holds (monotonic)."""
        needed = max(self._request, tokens * self._token)
        self._waiting += needed
        try:
            async with self._lock:
                while self._left < needed or max(self._next, time.monotonic()) > self._ends:
                    await self._take(needed)
                at = max(self._next, time.monotonic())
                self._left, self._next = self._left - needed, at + needed
        finally:
            self._waiting -= needed
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        return self._ends

    def used(self, estimated: int, tokens: int) -> None:
        """Correct what a request was taken for by the tokens that it has used."""
        self._owed += (tokens - estimated) * self._token

    async def _take(self, needed: float) -> None:
        """Begin a turn for those who wait, or wait for that."""
        wanted, owed, began = max(needed, min(self._waiting, LONGEST_TURN)), self._owed, time.monotonic()
        if wanted + owed > 0:
            wait = await asyncio.to_thread(self._rates.turn, self._key, wanted + owed)
            if wait:
                await asyncio.sleep(wait)
                return
            self._owed -= owed
        else:
            self._owed += wanted
        self._left, self._next = wanted, time.monotonic()
        self._ends = began + wanted + LATE_SECONDS
