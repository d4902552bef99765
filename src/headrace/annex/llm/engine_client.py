"""Asks an engine in this process: requests of ``prompt`` into it, and what comes of them back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from headrace.annex.llm import sglang_engine, vllm_engine
from headrace.annex.llm.client import Reply, Shorten
from headrace.annex.llm.engine_model import EngineModel, EngineRequest, Generated, context_too_long
from headrace.annex.llm.engine_stream import Engine, EngineStream, EngineThread
from headrace.annex.llm.order import made_order
from headrace.annex.llm.refusals import BadRow, RequestRefused, ServerFailed
from headrace.annex.llm.spending import Spending
from headrace.annex.llm.template import has_images, prompt_tokens, text_of

CHATS = "/chat/completions"
_READ = ("model", "messages", "response_format", "structured_outputs", "user", "metadata", "store")
_HARMLESS = {"n": 1, "stream": False}


class EngineClient:
    """Asks one engine, from one event loop. Made and used there."""

    def __init__(self, model: EngineModel) -> None:
        self.retried: deque[str] = deque()
        self.spending = Spending()
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
        self, body: Mapping[str, Any], tokens: int, *, path: str = "", shorten: Shorten | None = None
    ) -> Reply:
        """Return the answer to a request, as endpoints say it; raises a ``RowError``, or what ends the run."""
        if path not in ("", CHATS) or not isinstance(body.get("messages"), list):
            raise RequestRefused(f"a model in this process answers {CHATS} alone, and not {path or 'this'}")
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
            return Reply(data, time.monotonic() - began, made.first_token)

    def _make(self) -> Engine:
        """Make the engine, in its thread."""
        start: Any = sglang_engine if self._model.library == "sglang" else vllm_engine
        engine: Any = start.start_engine(self._model)
        self._tokenizer, self._room = engine.tokenizer, engine.room
        made: Engine = engine
        return made

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
        for name, value in body.items():
            if name not in known and name not in _READ and value not in (None, _HARMLESS.get(name)):
                raise RequestRefused(f"a model in this process knows no {name!r}")
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
    if asked is not None:
        try:
            if asked["type"] != "json_schema":
                return {"text": {}, "json_object": {"json_object": True}}[asked["type"]]
            return {"json": asked["json_schema"]["schema"]}
        except (KeyError, TypeError):
            raise RequestRefused("its response_format is none that a model in this process knows") from None
    return dict(body.get("structured_outputs") or {})
