"""Calls to a batch service: patient, and careful with what must not be done twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.annex.llm.batches.service import Unsure
from headrace.annex.llm.refusals import Again, RateLimited, RowError
from headrace.core.waiting import backoff
from headrace.errors import EndpointRefused, EndpointUnavailable

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
SETTLED = 15.0
"""Seconds after which what a server has done, without our hearing of it, is in its lists."""
UNSURE_WAIT = 60.0
SILENCE = 3600.0
"""Seconds without any answer after which the run ends; it may go on."""


class PatientCalls:
    """Calls to one server. One that never answered is tried ``tries`` times more."""

    def __init__(self, where: str, tries: int) -> None:
        self._where, self._tries = where, tries
        self._heard = time.monotonic()
        self._answered = False

    async def once(self, do: Callable[[], Awaitable[T]], find: Callable[[], Awaitable[T | None]]) -> T:
        """Have something done once: where nobody knows whether it was, it is looked for before it is done again."""
        for tries in range(1_000_000):
            try:
                done = await do()
            except Again as again:
                await self._wait(again, tries)
                if again.kind is RateLimited:  # certainly not done
                    continue
            except RowError as error:
                raise self._refusal(error) from None
            else:
                self._heard = time.monotonic()
                self._answered = True
                return done
            found = await self.found(find, time.time())
            if found is not None:
                return found
        raise AssertionError

    async def found(self, find: Callable[[], Awaitable[T | None]], since: float) -> T | None:
        """Look for something that may have been done; again once it has to be listed, if it is younger."""
        found = await self.patiently(find)
        left = since + SETTLED - time.time()
        if found is None and left > 0:
            await asyncio.sleep(left)
            found = await self.patiently(find)
        return found

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, and ask again while that may help."""
        for tries in range(1_000_000):
            try:
                said = await ask()
            except Unsure:
                self._heard = time.monotonic()
                await asyncio.sleep(UNSURE_WAIT)
            except Again as again:
                await self._wait(again, tries)
            except RowError as error:
                raise self._refusal(error) from None
            else:
                self._heard = time.monotonic()
                self._answered = True
                return said
        raise AssertionError

    async def _wait(self, again: Again, tries: int) -> None:
        """Wait before the next try; raises where nobody has answered for too long."""
        if again.kind is RateLimited and self._answered:
            self._heard = time.monotonic()
        silent = time.monotonic() - self._heard
        if silent > SILENCE or (not self._answered and tries >= self._tries):
            raise EndpointUnavailable(
                f"{self._where} does not answer: {again}. What was sent goes on there, and what was answered is "
                "kept: run the same again when it can be reached."
            )
        own = backoff(tries + 1, FIRST_WAIT, LONGEST_WAIT)
        await asyncio.sleep(own if again.wait is None else min(again.wait, SILENCE))

    def _refusal(self, error: RowError) -> EndpointRefused:
        return EndpointRefused(
            f"{self._where} refuses the batch: {error}. What was answered before is kept: fix that, and run the same "
            "again."
        )
