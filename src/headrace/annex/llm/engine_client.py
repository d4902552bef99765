"""Asks an engine in this process: requests of ``prompt`` go into it as a stream, with no barrier between batches.

A request goes in as soon as another has come out. How many may be inside is found from what the engine says: as many
as it works on, and a reserve that waits in there, so that no place is empty until we hear of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from headrace.annex.llm import engine_kinds
from headrace.annex.llm.client import Reply, Shorten, as_it_is
from headrace.annex.llm.engines import EngineModel, EngineRequest, Generated, context_too_long
from headrace.annex.llm.order import Order, Slots, made_order
from headrace.annex.llm.refusals import BadRow, ServerFailed
from headrace.annex.llm.spending import Spending
from headrace.annex.llm.template import has_images, prompt_tokens, text_of

FIRST_WINDOW = 32
MOST_WINDOW = 8_192
LEAST_RESERVE = 8
RESERVE_SHARE = 4
"""One of so many requests waits in the engine for a place."""


class Engine(Protocol):
    """An engine that works on many requests, step by step. One thread makes it, uses it and ends it."""

    def add(self, number: int, request: Any) -> None:
        """Take a request; what it raises is an error of this request."""
        ...

    def step(self) -> Sequence[tuple[int, Any]]:
        """Go on with all requests for a while; return those that ended, an exception for what failed.

        Called only while there are requests. What it raises ends the engine.
        """
        ...

    def load(self) -> tuple[int, int]:
        """Return how many requests were worked on in the last step, and how many waited."""
        ...

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""
        ...

    def close(self) -> None:
        """End."""
        ...


def window_after(limit: int, running: int, waiting: int, asked: int) -> int:
    """Return how many requests may be inside, after a step with ``limit`` of them allowed and ``asked`` inside.

    >>> window_after(32, running=32, waiting=0, asked=32), window_after(512, running=256, waiting=256, asked=512)
    (64, 320)
    >>> window_after(320, running=256, waiting=40, asked=318), window_after(320, running=100, waiting=220, asked=320)
    (320, 125)
    """
    reserve = max(LEAST_RESERVE, running // RESERVE_SHARE)
    if not waiting and asked >= limit:
        return min(2 * limit, MOST_WINDOW)
    if waiting > 2 * reserve or 0 < waiting < reserve // 2:
        return min(max(running + reserve, 1), MOST_WINDOW)
    return limit


class EngineStream:
    """Requests on their way through an engine. ``ask`` belongs to an event loop, ``turn`` to the engine's thread."""

    def __init__(self, most: int | None = None, order: Order[asyncio.Future[None]] | None = None) -> None:
        """``most``: at most so many requests are inside; None: as many as keep the engine busy.

        ``order``: in which those who wait go in; default: as they come.
        """
        self.slots = Slots(most or FIRST_WINDOW, order)
        self._found = most is None
        self._inbox: deque[tuple[int, Any]] = deque()
        self._given_up: deque[int] = deque()
        self._asking: dict[int, asyncio.Future[Any]] = {}
        self._inside: set[int] = set()  # of the engine's thread
        self._next = 0
        self._call = threading.Condition()

    @property
    def idle(self) -> bool:
        """Say whether there is nothing to do for ``turn``."""
        return not (self._inbox or self._inside or self._given_up)

    async def ask(self, make: Callable[[], Any], text: str = "") -> Any:
        """Return what the engine makes of a request, once there is a place for it; raise what it fails with.

        ``make`` gives the request, and is called when it goes in; ``text`` decides about its place in the order.
        """
        await self.slots.acquire(text)
        try:
            began, request = time.monotonic(), make()
            self._next += 1
            number = self._next
            answer = self._asking[number] = asyncio.get_running_loop().create_future()
            with self._call:
                self._inbox.append((number, request))
                self._call.notify()
            try:
                made = await answer
                self.slots.order.learn(text, time.monotonic() - began)
                return made
            except asyncio.CancelledError:
                with self._call:
                    self._given_up.append(number)
                    self._call.notify()
                raise
            finally:
                del self._asking[number]
        finally:
            self.slots.release()

    def turn(self, engine: Engine) -> tuple[list[tuple[int, Any]], tuple[int, int]]:
        """Put in what was asked, and go on with it; return what ended, and the engine's load."""
        ended: list[tuple[int, Any]] = []
        while self._inbox:
            number, request = self._inbox.popleft()
            try:
                engine.add(number, request)
            except Exception as error:
                ended.append((number, error))
            else:
                self._inside.add(number)
        gone = [self._given_up.popleft() for _ in range(len(self._given_up))]
        gone = [number for number in gone if number in self._inside]
        if gone:
            engine.abort(gone)
            self._inside.difference_update(gone)
        if self._inside:
            stepped = engine.step()
            self._inside.difference_update(number for number, _ in stepped)
            ended += stepped
        return ended, engine.load()

    def deliver(self, ended: Sequence[tuple[int, Any]], load: tuple[int, int]) -> None:
        """Hand out what ended, and let in as many as the engine can use."""
        for number, outcome in ended:
            answer = self._asking.get(number)
            if answer is not None and not answer.done():
                if isinstance(outcome, BaseException):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)
        if self._found:
            self.slots.limit = window_after(self.slots.limit, *load, self.slots.taken)
            self.slots.wake()

    def fail(self, error: BaseException) -> None:
        """Raise in all who wait, and in all who come: the engine has ended."""
        self.slots.end(error)
        for answer in self._asking.values():
            if not answer.done():
                answer.set_exception(error)

    # ------------------------------------------------------------ the engine's thread

    def wait(self, ending: Callable[[], bool]) -> None:
        """Wait until there is something to do, or ``ending`` says so."""
        with self._call:
            self._call.wait_for(lambda: not self.idle or ending())

    def wake(self) -> None:
        """Have ``wait`` look again."""
        with self._call:
            self._call.notify()


class EngineThread:
    """Runs an engine in a thread of its own, for a stream of requests of one event loop."""

    def __init__(self, stream: EngineStream, make: Callable[[], Engine]) -> None:
        self._stream, self._make = stream, make
        self._ending = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Make the engine; raise what that raises."""
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="headrace-llm-engine", daemon=True)
        self._thread.start()
        await self._ready

    async def close(self) -> None:
        """End the engine, and wait for it."""
        self._ending = True
        self._stream.wake()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _run(self) -> None:
        try:
            engine = self._make()
        except BaseException as error:
            self._tell(self._set_ready, error)
            return
        self._tell(self._set_ready, None)
        try:
            while True:
                self._stream.wait(lambda: self._ending)
                if self._ending:
                    return
                ended, load = self._stream.turn(engine)
                self._tell(self._stream.deliver, ended, load)
        except BaseException as error:
            self._tell(self._stream.fail, error)
        finally:
            with contextlib.suppress(Exception):  # what is over may end as it likes
                engine.close()

    def _set_ready(self, error: BaseException | None) -> None:
        assert self._ready is not None
        if self._ready.done():
            return
        if error is None:
            self._ready.set_result(None)
        else:
            self._ready.set_exception(error)

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function on the event loop; nobody listens any more where that is closed."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


class EngineClient:
    """Asks one engine, from one event loop. Made and used there."""

    def __init__(self, model: EngineModel) -> None:
        self.retried: deque[str] = deque()
        self.spending = Spending()
        self.pause: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._model = model
        self._stream = EngineStream(order=made_order(model.order))
        self._thread = EngineThread(self._stream, self._make)
        self._tokenizer: Any = None
        self._room = 0

    async def open(self) -> None:
        """Load the model."""
        await self._thread.open()

    async def close(self) -> None:
        """End the engine."""
        await self._thread.close()

    def input_ends(self, ended: bool) -> None:
        """Note whether others come but those that are on their way."""
        self._stream.slots.order.input_ends(ended)

    def end(self, error: BaseException) -> None:
        """Let nobody in any more."""
        self._stream.slots.end(error)

    async def ask(
        self,
        body: Mapping[str, Any],
        *,
        read: Callable[[Reply], Any] = as_it_is,
        shorten: Shorten | None = None,
    ) -> Any:
        """Return what ``read`` makes of the answer to a request, as endpoints say it; raises as they do."""
        began = 0.0
        prompt = 0

        def make() -> EngineRequest:
            nonlocal began, prompt
            began = time.monotonic()
            request = self._request(body if shorten is None else shorten(body))
            prompt = len(request.tokens)
            return request

        with await self.spending.request(body, room=self._room) as bill:
            made: Generated = await self._stream.ask(make, text_of(body["messages"]))
            prompt = prompt or made.prompt
            if made.finish_reason not in ("stop", "length"):
                raise ServerFailed(f"the engine gave the request up (finish_reason {made.finish_reason!r})")
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": made.text},
                "finish_reason": made.finish_reason,
            }
            usage = {
                "prompt_tokens": prompt,
                "completion_tokens": made.tokens,
                "total_tokens": prompt + made.tokens,
                "prompt_tokens_details": {"cached_tokens": made.cached},
            }
            name = self._model.label
            data = {"object": "chat.completion", "model": name, "choices": [choice], "usage": usage}
            bill.answered(data)
            return read(Reply(data, time.monotonic() - began, made.first_token))

    def _make(self) -> Engine:
        """Make the engine, in its thread."""
        engine = engine_kinds.start_engine(self._model)
        self._tokenizer, self._room = engine.tokenizer, engine.room
        return engine

    def _request(self, body: Mapping[str, Any]) -> EngineRequest:
        images = has_images(body["messages"])
        if images and not self._model.takes_images:
            raise BadRow(
                f"a {self._model.noun} model is asked with text alone, and these messages have parts such as images; "
                "hr.llm.VLLM takes them, and endpoints do"
            )
        tokens = [] if images else prompt_tokens(self._tokenizer, body["messages"], self._model.noun)
        known = self._model.sampling_names
        sampling = {name: value for name, value in body.items() if name in known and name != "lora"}
        limit = sampling.pop("max_completion_tokens", None) or sampling.pop("max_tokens", None)
        limit = limit or self._model.default_tokens
        sampling = {"temperature": 0.0, **sampling}
        if images:
            more = {"max_tokens": limit} if limit else {}
            return EngineRequest(
                [], sampling | more, _structure(body), body.get("lora") or "", body["messages"]
            )
        if not tokens:
            raise BadRow("the prompt is empty")
        if len(tokens) + (limit or 1) > self._room:
            raise context_too_long(len(tokens), limit or 1, self._room)
        sampling["max_tokens"] = limit or self._room - len(tokens)
        return EngineRequest(tokens, sampling, _structure(body), body.get("lora") or "")


def _structure(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine sees to of a schema."""
    asked = body.get("response_format")
    return {"json": asked["json_schema"]["schema"]} if asked else dict(body.get("structured_outputs") or {})
