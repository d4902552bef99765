"""Asks an endpoint: in its time, again where that may help, and never where it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

import msgspec

from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.limiter import (
    LATE_SECONDS,
    SILENT_SECONDS,
    Limiter,
    SharedState,
    key_name,
    pause_of,
    state_path,
)
from headrace.annex.llm.order import Slots
from headrace.annex.llm.outliers import HEDGED, Latencies, first_of
from headrace.annex.llm.refusals import (
    Again,
    Doubtful,
    Malformed,
    NoAnswer,
    RateLimited,
    RequestRefused,
    RowError,
    failed_on_the_way,
    json_of,
    judged,
    plain_request,
    proxy_of,
    refusal_of,
    unavailable,
)
from headrace.annex.llm.spending import Bill, Spending
from headrace.annex.llm.turns import Turns
from headrace.annex.llm.usage import BYTES_PER_TOKEN, Usage
from headrace.core.door import install_hint
from headrace.core.model_ports import Rates
from headrace.core.process import backoff, when_free
from headrace.errors import EndpointRefused, MissingLibrary

if TYPE_CHECKING:
    import aiohttp

FIRST_WAIT = 0.5
LONGEST_WAIT = 60.0
LONGEST_PAUSE = 900.0
"""Seconds that a server may ask us to wait; more is as if it did not answer."""
AHEAD_SECONDS = 0.5
"""For so long the first request goes ahead of all others, unless it is answered before."""
CONNECT_SECONDS = 20.0
LOOK_SECONDS = 0.02
"""So often, at most, is looked at limits that others may have set, where there was none."""
ANTHROPIC_VERSION = "2023-06-01"
BARE = ("model", "messages", "max_completion_tokens", "input")
JSON = {"Content-Type": "application/json"}
TRIES_UNHEARD = 3
"""How often a server is tried that nobody has heard of."""
ROWS_UNANSWERED = 3
"""So many requests in a row that had all their tries, without any answer between: the server is at fault, not
they."""
ROWS_REFUSED = 3
"""After so many refused requests in a row, a plain one finds out whether the server refuses all."""


Shorten: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class NothingThere(EndpointRefused):
    """The server does not have what a call is for."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its JSON, its tokens, how many seconds it took, and until its first token; 0 where nobody knows."""

    data: dict[str, Any]
    usage: Usage
    latency: float = 0.0
    first_token: float = 0.0


def as_it_is(reply: Reply) -> Reply:
    """Return an answer that nobody reads."""
    return reply


class Client:
    """Sends requests to one endpoint, from one event loop. Made and used there.

    ``EngineClient`` is the same for an engine. ``retried``: why requests were sent again, since somebody looked.
    ``spending`` lets each request begin, and gets to know what it has used. ``pause`` waits before a request is sent
    again. ``most``: how many requests it takes at a time.
    """

    def __init__(
        self, endpoint: Endpoint, path: str = "/chat/completions", *, anthropic: bool = False
    ) -> None:
        self.endpoint, self.most = endpoint, endpoint.max_in_flight
        self.spending = Spending()
        self.retried: deque[str] = deque(maxlen=10_000)  # names of errors, until somebody takes them
        self.pause: Callable[[float], Awaitable[None]] = asyncio.sleep  # before another try
        self._anthropic = anthropic
        self._latencies = Latencies()
        self._turns: Turns | None = None
        self._key = endpoint.key()
        self._url = endpoint.base_url + path
        self._server = urlsplit(endpoint.base_url)
        self._where = f"The endpoint {endpoint.base_url}"
        self._payer = key_name(endpoint.server, self._key)
        place = state_path(endpoint.server, self._key)
        self._limiter = Limiter(
            SharedState(place),
            most=endpoint.max_in_flight,
            requests_per_minute=endpoint.requests_per_minute,
            tokens_per_minute=endpoint.tokens_per_minute,
        )
        # One goes ahead: who has the wrong key shall not send hundreds.
        self.slots = Slots(1)
        self._answered = 0
        self._unanswered = 0  # requests that had all their tries since the last answer
        self._refused = 0  # requests that were refused since then
        self._doubts = asyncio.Lock()
        self._let_in_at = 0.0  # when the last request was sent of which we know that it was let in
        self._looked_at = -math.inf
        self._proxy: str | None = None
        self._session: aiohttp.ClientSession | None = None
        self._failures: tuple[type[Exception], ...] = (OSError,)
        self._heartbeat: asyncio.Task[None] | None = None

    def take_turns(self, rates: Rates) -> None:
        """Share the rates of the endpoint with other machines."""
        endpoint = self.endpoint
        if endpoint.rated:
            self._turns = Turns(rates, self._payer, endpoint.requests_per_minute, endpoint.tokens_per_minute)

    async def open(self) -> None:
        """Make ready to send."""
        try:
            import aiohttp
        except ImportError:
            raise MissingLibrary(
                f"Endpoints are asked by the library aiohttp, which is not installed: {install_hint('llm')}."
            ) from None
        self._proxy = proxy_of(self._server, self._where)
        self._failures = (OSError, aiohttp.ClientError)
        headers = {}
        if self._anthropic:
            headers["anthropic-version"] = ANTHROPIC_VERSION
        if self._key is not None:
            own = {"x-api-key": self._key} if self._anthropic else {"Authorization": f"Bearer {self._key}"}
            headers.update(own)
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=self.endpoint.timeout, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # else passwords of ~/.netrc would be sent to the server
        )
        self._heartbeat = asyncio.create_task(self._be_heard())

    async def close(self) -> None:
        """Close connections."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._session is not None:
            await self._session.close()
        self._limiter.close()

    def end(self, error: BaseException) -> None:
        """Send nothing any more: all who wait, and who come later, get the error."""
        self.slots.end(error)

    async def _be_heard(self) -> None:
        await asyncio.sleep(AHEAD_SECONDS)
        while True:
            self.slots.limit = await when_free(self._limiter.share)
            self.slots.wake()
            await asyncio.sleep(SILENT_SECONDS / 3)

    async def ask(
        self,
        body: Mapping[str, Any],
        *,
        read: Callable[[Reply], Any] = as_it_is,
        shorten: Shorten | None = None,
    ) -> Any:
        """Return what ``read`` makes of the answer to a request; raises a ``RowError``, or what ends the run.

        ``read`` raises ``Again`` for an answer that is none. ``shorten`` returns the request to send instead, by what
        is known when its turn has come.
        """
        content = _encoded(body)
        tries = answered = first_answered = 0
        for sent in itertools.count():
            await self.slots.acquire(first=sent > 0)
            if not sent:
                answered = first_answered = self._answered
            try:
                if shorten is not None and (short := shorten(body)) is not body:
                    body, content = short, _encoded(short)
                try:
                    way = self._hedged if self.endpoint.hedge else self._in_turn
                    reply = await way(content, body)
                except (Doubtful, RequestRefused) as refusal:
                    await self._raise_meant(body, refusal)
                self._answered += 1
                self._unanswered = self._refused = 0
                return read(reply)
            except Again as problem:
                again = problem
            except EndpointRefused as error:
                self.slots.end(error)
                raise
            finally:
                self.slots.release()
            self.retried.append(again.kind.__name__)
            # A server that answers others is only busy: its rate limits cost no try.
            limited = again.kind is RateLimited
            tries += not (limited and self._answered > answered)
            heard = self._answered > (answered if limited else first_answered)
            answered = self._answered
            self._give_up(again, tries, heard=heard)
            await self.pause(wait_before(again, tries))
        raise AssertionError

    async def _raise_meant(self, body: Mapping[str, Any], refusal: Doubtful | RequestRefused) -> NoReturn:
        """Raise what a refusal means. Where it may be meant for all, a plain request finds out; one at a time.

        That is so where the server leaves it open, and where some in a row were refused; then without parameters.
        """
        doubtful = isinstance(refusal, Doubtful)
        if not doubtful:
            self._refused += type(refusal) is RequestRefused  # a filter refuses one prompt
            if self._refused < ROWS_REFUSED:
                raise refusal
            self._refused = 0
        row = refusal.row if isinstance(refusal, Doubtful) else refusal
        plain = plain_request({name: value for name, value in body.items() if doubtful or name in BARE})
        refused_at = time.time()
        async with self._doubts:
            if doubtful and self._let_in_at > refused_at:  # others were let in meanwhile
                raise row from None
            try:
                await self._in_turn(_encoded(plain), plain)
            except Doubtful as doubt:
                raise (refusal if isinstance(refusal, Doubtful) else doubt).run from None
            except RowError as other:
                if doubtful:  # it is a bad request, by a key and to a model that are known
                    self._let_in_at = time.time()
                elif str(other) == str(row):
                    raise EndpointRefused(
                        f"{self._where} refuses every request, also one that holds nothing of a row: {row}. Nothing "
                        "was tried again. See to what it says, and run the same program again: what was answered is "
                        "kept."
                    ) from None
            except Again:
                if doubtful:  # else what it says of others is known by them
                    raise
        raise row from None

    def _give_up(self, again: Again, tries: int, *, heard: bool) -> None:
        """Raise if a request has had its tries: a server that answers nobody ends the run, else it is the row's."""
        most = self.endpoint.max_retries + 1
        if not self._answered and (again.kind is NoAnswer or again.closed):
            most = min(most, TRIES_UNHEARD)
        patient = again.wait is None or again.wait <= LONGEST_PAUSE
        if tries < most and patient:
            return
        self._unanswered += not heard
        times = f"{tries} {'time' if tries == 1 else 'times'}"
        # A rate limit is no row's fault: where nobody is under way, and nobody was answered, all are refused.
        refuses_all = again.kind is RateLimited and not heard and not self.slots.taken
        if not patient or not self._answered or refuses_all or self._unanswered >= ROWS_UNANSWERED:
            heard_of = self._answered > 0
            error = unavailable(again, self._where, times, heard=heard_of, patient=patient)
            self.slots.end(error)
            raise error
        raise again.kind(f"asked {times}, the last time with this outcome: {again}")

    async def _in_turn(
        self, content: bytes, body: Mapping[str, Any], hedges: list[bool] | None = None
    ) -> Reply:
        """Send a request when there is money for it and its time has come; tell the limiter how it ended.

        ``hedges`` notes a second request for an answer that is late: it is not worth a wait for money.
        """
        tokens = likely_tokens(body, len(content)) if self.endpoint.tokens_per_minute else 0
        with await self.spending.request(body, key=self._payer, wait=hedges is None) as bill:
            until = -math.inf
            while until < time.monotonic():
                until = await self._turns.wait(tokens) if self._turns is not None else math.inf
                if not self._is_free():
                    await self._turn(tokens)
            if hedges is not None:
                hedges.append(True)
                self.retried.append(HEDGED)
            sent_at = time.time()
            try:
                reply = await self._send(content, body, bill)
            except Again as again:
                if again.wait is not None and again.wait <= LONGEST_PAUSE and again.kind is RateLimited:
                    await when_free(self._limiter.block, again.wait)
                # Where the rates are known, too many requests say nothing of how many may be under way.
                paced = again.kind is RateLimited and self.endpoint.requests_per_minute is not None
                await self._landed(sent_at, overloaded=again.overloaded and not paced)
                raise
        self._let_in_at = max(self._let_in_at, sent_at)
        if not self._is_free():
            await self._landed(sent_at, overloaded=False)
        if tokens:
            prompt, completion, _ = reply.usage
            if prompt is not None:
                used = prompt + (completion or 0)
                await when_free(self._limiter.used, tokens, used)
                if self._turns is not None:
                    self._turns.used(tokens, used)
        return reply

    async def _hedged(self, content: bytes, body: Mapping[str, Any]) -> Reply:
        """Send a request; and once more if it is late, where there is room. Both have to be paid for."""
        hedges: list[bool] = []
        reply, lost = await first_of(
            lambda: self._in_turn(content, body),
            lambda: self._second(content, body, hedges) if self._has_room() else None,
            self._latencies.late,
        )
        self._latencies.add(reply.latency)
        if hedges and lost:
            self.spending.second(reply.data)
        return reply

    def _has_room(self) -> bool:
        """Say whether others leave room for a second request."""
        try:
            return self.slots.taken < self.slots.limit and self._limiter.blocked_until() <= time.time()
        except BlockingIOError:
            return False

    async def _second(self, content: bytes, body: Mapping[str, Any], hedges: list[bool]) -> Reply:
        self.slots.taken += 1
        try:
            return await self._in_turn(content, body, hedges)
        finally:
            self.slots.release()

    async def _turn(self, tokens: int) -> None:
        """Wait until a request may be sent. Who misses its turn gets another, so that no two turns come together."""
        at = await when_free(self._limiter.reserve, tokens)
        self._looked_at = time.monotonic()
        while (wait := at - time.time()) > 0:
            await asyncio.sleep(wait)
            blocked = await when_free(self._limiter.blocked_until)
            if blocked <= time.time() <= at + LATE_SECONDS:
                return
            at = await when_free(self._limiter.reserve, tokens)

    def _is_free(self) -> bool:
        """Say whether the limiter had nothing to say a moment ago: then it is not asked again so soon."""
        return self._limiter.free and time.monotonic() - self._looked_at < LOOK_SECONDS

    async def _landed(self, sent_at: float, *, overloaded: bool) -> None:
        self.slots.limit = await when_free(self._limiter.landed, sent_at, overloaded=overloaded)
        self._looked_at = time.monotonic()
        self.slots.wake()

    async def call(self, method: str, path: str, **request: Any) -> bytes:
        """Return what a server says to a call that asks no model, once; ``request`` is what ``aiohttp`` takes."""
        read = bytearray()
        async with contextlib.aclosing(self.stream(method, path, **request)) as pieces:
            async for piece in pieces:
                read += piece
        return bytes(read).replace(self._key.encode(), "…".encode()) if self._key else bytes(read)

    async def stream(self, method: str, path: str, **request: Any) -> AsyncGenerator[bytes, None]:
        """Yield the same in pieces, as they come."""
        assert self._session is not None
        url = path if path.startswith(("http://", "https://")) else self.endpoint.base_url + path
        if urlsplit(url)[:2] != self._server[:2]:
            raise EndpointRefused(f"{self._where} sends us elsewhere, and keys are not taken elsewhere.")
        # A file of 200 MB may take longer than an answer: what counts is that something moves.
        import aiohttp

        patience = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=self.endpoint.timeout
        )
        sent = self._session.request(
            method, url, allow_redirects=False, proxy=self._proxy, timeout=patience, **request
        )
        began = time.monotonic()
        try:
            async with sent as response:
                if not 200 <= response.status < 300:
                    said = self._hidden((await response.read()).decode("utf-8", "replace")).encode()
                    if response.status in (404, 405):
                        raise NothingThere(
                            f"{self._where} has nothing at {urlsplit(url).path} "
                            f"{refusal_of(response.status, said).said}. via='batch' is for servers with a batch "
                            "service of OpenAI's or Anthropic's form; leave it out to send the requests one by one."
                        )
                    error = self._judge(response, said, {})
                    raise error.run if isinstance(error, Doubtful) else error
                async for piece in response.content.iter_chunked(1 << 20):
                    yield piece
        except (OSError, aiohttp.ClientError) as error:
            raise self._lost(error, began) from None

    def _judge(self, response: aiohttp.ClientResponse, said: bytes, request: Mapping[str, Any]) -> Exception:
        keyed = self._key is not None
        return judged(
            response.status, said, response.headers, where=self._where, request=request, keyed=keyed
        )

    def _lost(self, error: Exception, began: float) -> Exception:
        took, timeout = time.monotonic() - began, self.endpoint.timeout
        return failed_on_the_way(error, self._where, self._hidden, took, timeout)

    async def _send(self, content: bytes, body: Mapping[str, Any], bill: Bill) -> Reply:
        """Send a request, and have it counted before, and how it ended."""
        assert self._session is not None
        bill.begin()
        try:
            if (counted := self.spending.written()) is not None:
                await counted
            self.slots.check()
            began = time.monotonic()
            try:
                async with self._session.post(
                    self._url, data=content, headers=JSON, allow_redirects=False, proxy=self._proxy
                ) as response:
                    said = await response.read()
            except self._failures as error:
                raise self._lost(error, began) from None
            latency = time.monotonic() - began
            if not 200 <= response.status < 300:
                raise self._judge(response, self._hidden(said.decode("utf-8", "replace")).encode(), body)
            pause = pause_of(response.headers)
            if pause is not None:
                await when_free(self._limiter.block, pause)
            data = json_of(said)
            if not isinstance(data, dict) or ("error" in data and not data.get("choices") and data["error"]):
                words = refusal_of(
                    200, self._hidden(said[:20_000].decode("utf-8", "replace")).encode()
                ).message
                raise Again(Malformed, f"200, and no JSON of an answer: {words!r}", paid=True)
        except BaseException as error:
            bill.failed(error)
            raise
        return Reply(data, bill.answered(data), latency)

    def _hidden(self, text: str) -> str:
        """Return what a server or a library said, without the key."""
        return text.replace(self._key, "…") if self._key else text


def _encoded(body: Mapping[str, Any]) -> bytes:
    with contextlib.suppress(UnicodeEncodeError):  # half a character, as models make them
        return msgspec.json.encode(body)
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def wait_before(again: Again, tries: int) -> float:
    """Return how many seconds to wait: what the server says, or twice as long each time; never all at once."""
    own = backoff(tries, FIRST_WAIT, LONGEST_WAIT)
    return own if again.wait is None else again.wait + random.uniform(0.0, 0.1) * max(again.wait, 1.0)


def likely_tokens(body: Mapping[str, Any], size: int) -> int:
    """Return about how many tokens a request of so many bytes uses, with its answer."""
    answer = 0 if "input" in body else body.get("max_completion_tokens") or body.get("max_tokens") or 256
    return size // BYTES_PER_TOKEN + 1 + int(answer) * (body.get("n") or 1)
