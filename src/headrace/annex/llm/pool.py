"""Asks several endpoints of one model: each by its share, and not those that do not answer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.annex.llm.client import FIRST_WAIT, LONGEST_WAIT, Client, Reply, Shorten
from headrace.annex.llm.endpoint import Endpoint, Endpoints
from headrace.annex.llm.order import Slots, made_order
from headrace.annex.llm.outliers import HEDGED, Latencies, first_of
from headrace.annex.llm.refusals import (
    ConnectionLost,
    Malformed,
    NoAnswer,
    NoText,
    RateLimited,
    ServerFailed,
)
from headrace.annex.llm.spending import Spending
from headrace.annex.llm.template import text_of
from headrace.core.waiting import backoff
from headrace.errors import EndpointUnavailable

FIRST_REST = 10.0
LONGEST_REST = 300.0
OWN_RETRIES = 1
"""How often a request is sent to the same server again before another one gets it."""
_ELSEWHERE = (RateLimited, ServerFailed, NoAnswer, ConnectionLost, Malformed, NoText)
_Read: TypeAlias = Callable[[Reply], tuple[Reply, Any]]


@dataclass(slots=True)
class Member:
    """One of the endpoints, and how it does. ``client`` None: it has to be made when it is asked."""

    endpoint: Endpoint
    share: float
    client: Client | None = None
    under_way: int = 0
    rest: float = 0.0  # as long as it was left alone; 0: it answers
    alone_until: float = 0.0

    def failed(self, now: float) -> None:
        """Leave it alone for a while, twice as long each time."""
        self.rest = min(2 * self.rest or FIRST_REST, LONGEST_REST)
        self.alone_until = now + self.rest


def chosen(members: list[Member], now: float, gave_up: Sequence[Member] = ()) -> Member | None:
    """Return whose turn it is: of those that answer, who has the least under way for its share; None for nobody.

    One that was left alone gets a single request first. ``gave_up``: who has failed the request, and gets it only
    where there is no other.
    """
    able = [each for each in members if now >= each.alone_until and not (each.rest and each.under_way)]
    others = [each for each in able if all(each is not one for one in gave_up)]
    return min(others or able, key=lambda each: (each.under_way + 1) / each.share, default=None)


class PoolClient:
    """Asks the endpoints of a pool, from one event loop. Made and used there."""

    def __init__(self, pool: Endpoints, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.retried: deque[str] = deque(maxlen=10_000)
        self.spending = Spending()
        self.pause: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._clock = clock
        self._members = [
            Member(endpoint, share) for endpoint, share in zip(pool.endpoints, pool.shares, strict=True)
        ]
        self._tries = len(self._members) + pool.max_retries
        self._slots = Slots(pool.max_in_flight, made_order(pool.order))
        self._hedge = pool.hedge
        self._latencies = Latencies()

    async def open(self) -> None:
        """Make ready to send."""
        for each in self._members:
            await self._open(each)

    async def _open(self, member: Member) -> Client:
        retries = min(OWN_RETRIES, member.endpoint.max_retries)
        client = Client(member.endpoint, max_retries=retries, hedge=False)  # another server gets the second
        client.retried = self.retried
        client.spending = self.spending
        await client.open()
        member.client = client
        return client

    async def close(self) -> None:
        """Close connections."""
        for each in self._members:
            if each.client is not None:
                await each.client.close()

    def input_ends(self, ended: bool) -> None:
        """Note whether others come but those that are on their way."""
        self._slots.order.input_ends(ended)

    def end(self, error: BaseException) -> None:
        """Send nothing any more: all who wait, and who come later, get the error."""
        self._slots.end(error)
        for each in self._members:
            if each.client is not None:
                each.client.end(error)

    async def ask(
        self, body: Mapping[str, Any], *, read: Callable[[Reply], Any], shorten: Shorten | None = None
    ) -> Any:
        """Return what ``read`` makes of the answer of one of them; raises a ``RowError``, or what ends the run."""
        text = text_of(body.get("messages"))

        def both(reply: Reply) -> tuple[Reply, Any]:
            return reply, read(reply)

        await self._slots.acquire(text)
        gave_up: list[Member] = []
        try:
            body = body if shorten is None else shorten(body)
            for sent in range(1_000_000):
                member = chosen(self._members, self._clock(), gave_up)
                if member is None:
                    await self._nobody()
                    continue
                try:
                    counted = any(member is one for one in gave_up)
                    reply, found = await self._hedged(member, body, both, counted=counted)
                    self._slots.order.learn(text, reply.latency)
                    return found
                except EndpointUnavailable:
                    if all(self._clock() < each.alone_until for each in self._members):
                        raise
                except _ELSEWHERE:
                    if sent + 1 >= self._tries:
                        raise
                    gave_up.append(member)
                    await self.pause(backoff(sent + 1, FIRST_WAIT, LONGEST_WAIT))
            raise AssertionError
        finally:
            self._slots.release()

    async def _hedged(
        self, member: Member, body: Mapping[str, Any], read: _Read, *, counted: bool
    ) -> tuple[Reply, Any]:
        """Return the answer of one of them; or of another, if it is late and that is wished for."""
        if not self._hedge:
            return await self._of(member, body, read, counted=counted)
        sent: list[bool] = []
        (reply, found), lost = await first_of(
            lambda: self._of(member, body, read, counted=counted),
            lambda: self._second(member, body, read, sent),
            self._latencies.late,
        )
        self._latencies.add(reply.latency)
        if sent and lost:
            self.spending.second(reply.data)
        return reply, found

    def _second(
        self, late: Member, body: Mapping[str, Any], read: _Read, sent: list[bool]
    ) -> Coroutine[Any, Any, tuple[Reply, Any]] | None:
        """Return the request to another server; None where there is none, or no room to spare."""
        other = chosen(self._members, self._clock(), [late])
        if other is None or other is late or self._slots.taken >= self._slots.limit:
            return None
        self._slots.taken += 1

        async def second() -> tuple[Reply, Any]:
            try:
                sent.append(True)
                self.retried.append(HEDGED)
                return await self._of(other, body, read, counted=True)
            finally:
                self._slots.release()

        return second()

    async def _of(
        self, member: Member, body: Mapping[str, Any], read: _Read, *, counted: bool
    ) -> tuple[Reply, Any]:
        member.under_way += 1
        try:
            client = member.client or await self._open(member)
            try:
                found: tuple[Reply, Any] = await client.ask(body, read=read, counted=counted)
            except EndpointUnavailable:
                if member.client is client:  # the first to hear of it
                    member.client = None
                    member.failed(self._clock())
                    await client.close()
                raise
            member.rest = 0.0
            return found
        finally:
            member.under_way -= 1

    async def _nobody(self) -> None:
        """Wait: those that are left alone are tried again by another request just now."""
        await asyncio.sleep(0.05)
