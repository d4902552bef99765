"""Asks an engine in this process: requests of ``prompt`` go into it as a stream, with no barrier between batches.

A request goes in as soon as another has come out. As many are inside as it works on, and a reserve that waits in
there, so that no place is empty until we hear of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from headrace.annex.llm import engine_kinds
from headrace.annex.llm.client import Reply, Shorten
from headrace.annex.llm.engines import EngineModel, EngineRequest, Generated, context_too_long
from headrace.annex.llm.refusals import BadRow, ServerFailed
from headrace.annex.llm.spending import Spending
from headrace.annex.llm.template import has_images, prompt_tokens

LEAST_RESERVE = 8
RESERVE_SHARE = 4
"""So many requests wait in the engine for a place: one for so many places, and a few at least."""
_END = (0, None)


class Engine(Protocol):
    """An engine that works on many requests, step by step. One thread makes it, uses it and ends it.

    ``places``: how many it works on at a time, at most. ``room``: how many tokens prompt and answer may have.
    """

    places: int
    room: int
    tokenizer: Any

    def add(self, number: int, request: Any) -> None:
        """Take a request; what it raises is an error of this request."""
        ...

    def step(self) -> Sequence[tuple[int, Any]]:
        """Go on with all requests for a while; return those that ended, an exception for what failed.

        Called only while there are requests. What it raises ends the engine.
        """
        ...

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""
        ...

    def close(self) -> None:
        """End."""
        ...


class EngineThread:
    """Runs an engine in a thread of its own, for requests of one event loop."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._inbox: queue.SimpleQueue[tuple[int, Any]] = (
            queue.SimpleQueue()
        )  # a number without a request: forget it
        self._asking: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._ended: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> Any:
        """Make the engine, and return it; raise what that raises."""
        self._loop = asyncio.get_running_loop()
        ready = self._asking[0] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="headrace-llm-engine", daemon=True)
        self._thread.start()
        return await ready

    async def close(self) -> None:
        """End the engine, and wait for it."""
        self._inbox.put(_END)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    async def ask(self, request: Any) -> Any:
        """Return what the engine makes of a request; raise what it fails with."""
        if self._ended is not None:
            raise self._ended
        self._next += 1
        number = self._next
        answer = self._asking[number] = asyncio.get_running_loop().create_future()
        self._inbox.put((number, request))
        try:
            return await answer
        except asyncio.CancelledError:
            self._inbox.put((number, None))
            raise
        finally:
            self._asking.pop(number, None)

    def end(self, error: BaseException) -> None:
        """Raise in all who wait, and in all who come."""
        self._ended = error
        self._deliver([(number, error) for number in self._asking])

    def _deliver(self, ended: Sequence[tuple[int, Any]]) -> None:
        for number, outcome in ended:
            answer = self._asking.get(number)
            if answer is not None and not answer.done():
                if isinstance(outcome, BaseException):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)

    # ------------------------------------------------------------ the engine's thread

    def _run(self) -> None:
        try:
            engine = self._make()
        except BaseException as error:
            self._tell(self._deliver, [(0, error)])
            return
        self._tell(self._deliver, [(0, engine)])
        try:
            self._go_on(engine)
        except BaseException as error:
            self._tell(self.end, error)
        finally:
            with contextlib.suppress(Exception):  # what is over may end as it likes
                engine.close()

    def _go_on(self, engine: Engine) -> None:
        inside: set[int] = set()
        while True:
            while not inside or not self._inbox.empty():
                number, request = self._inbox.get()
                if (number, request) == _END:
                    return
                if request is not None:
                    try:
                        engine.add(number, request)
                        inside.add(number)
                    except Exception as error:
                        self._tell(self._deliver, [(number, error)])
                elif number in inside:
                    engine.abort([number])
                    inside.discard(number)
            if ended := engine.step():
                inside.difference_update(number for number, _ in ended)
                self._tell(self._deliver, ended)

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
        self.most = 0
        self._model = model
        self._thread = EngineThread(lambda: engine_kinds.start_engine(model))
        self._tokenizer: Any = None
        self._room = 0

    async def open(self) -> None:
        """Load the model."""
        engine: Engine = await self._thread.open()
        self._tokenizer, self._room = engine.tokenizer, engine.room
        self.most = engine.places + max(LEAST_RESERVE, engine.places // RESERVE_SHARE)

    async def close(self) -> None:
        """End the engine."""
        await self._thread.close()

    def end(self, error: BaseException) -> None:
        """Let nobody in any more."""
        self._thread.end(error)

    async def ask(
        self, body: Mapping[str, Any], *, read: Callable[[Reply], Any], shorten: Shorten | None = None
    ) -> Any:
        """Return what ``read`` makes of the answer to a request, as endpoints say it; raises as they do."""
        with await self.spending.request(body, room=self._room) as bill:
            began = time.monotonic()
            request = self._request(body if shorten is None else shorten(body))
            made: Generated = await self._thread.ask(request)
            prompt = len(request.tokens) or made.prompt
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
