"""Asks an engine in this process: requests of ``prompt`` go into it as a stream, with no barrier between batches.

A request goes in as soon as another has come out. As many are inside as it works on, and a reserve that waits in
there, so that no place is empty until we hear of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headrace.annex.llm import engine_kinds
from headrace.annex.llm.client import Reply, Shorten
from headrace.annex.llm.engines import EngineModel, EngineRequest, context_too_long
from headrace.annex.llm.refusals import BadRow, ServerFailed
from headrace.annex.llm.spending import Spending
from headrace.annex.llm.template import has_images, prompt_tokens

LEAST_RESERVE = 8
RESERVE_SHARE = 4
"""So many requests wait in the engine for a place: one for so many places, and a few at least."""


class EngineClient:
    """Asks one engine, from one event loop. Made and used there."""

    def __init__(self, model: EngineModel) -> None:
        self.retried: deque[str] = deque()
        self.spending = Spending()
        self.pause: Callable[[float], Awaitable[None]] = asyncio.sleep
        self.most = 0
        self._model = model
        self._engine: engine_kinds.Engine | None = None
        self._ended: BaseException | None = None

    async def open(self) -> None:
        """Load the model."""
        loop = asyncio.get_running_loop()
        self._engine = engine = await asyncio.to_thread(engine_kinds.start_engine, self._model, loop)
        self.most = engine.places + max(LEAST_RESERVE, engine.places // RESERVE_SHARE)

    async def close(self) -> None:
        """End the engine."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await asyncio.to_thread(engine.close)

    def end(self, error: BaseException) -> None:
        """Let nobody in any more."""
        self._ended = error

    async def ask(
        self, body: Mapping[str, Any], *, read: Callable[[Reply], Any], shorten: Shorten | None = None
    ) -> Any:
        """Return what ``read`` makes of the answer to a request, as endpoints say it; raises as they do."""
        engine = self._engine
        assert engine is not None
        with await self.spending.request(body, room=engine.room) as bill:
            if self._ended is not None:
                raise self._ended
            began = time.monotonic()
            request = self._request(engine, body if shorten is None else shorten(body))
            made = await engine.generate(request)
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

    def _request(self, engine: engine_kinds.Engine, body: Mapping[str, Any]) -> EngineRequest:
        images = has_images(body["messages"])
        if images and not self._model.takes_images:
            raise BadRow(
                f"a {self._model.noun} model is asked with text alone, and these messages have parts such as images; "
                "hr.llm.VLLM takes them, and endpoints do"
            )
        tokens = [] if images else prompt_tokens(engine.tokenizer, body["messages"], self._model.noun)
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
        if len(tokens) + (limit or 1) > engine.room:
            raise context_too_long(len(tokens), limit or 1, engine.room)
        sampling["max_tokens"] = limit or engine.room - len(tokens)
        return EngineRequest(tokens, sampling, _structure(body), body.get("lora") or "")


def _structure(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine sees to of a schema."""
    asked = body.get("response_format")
    return {"json": asked["json_schema"]["schema"]} if asked else dict(body.get("structured_outputs") or {})
