"""A server that plays a language model, with faults on demand; speaks OpenAI's HTTP interface."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from headrace.core.door import install_hint
from headrace.errors import MissingLibrary
from headrace.testing.llm_batches import FakeBatches

if TYPE_CHECKING:
    from aiohttp import web

Answers = Callable[[str], Any]
Latency = float | Callable[[random.Random], float | Awaitable[None]]


class FakeLLMServer:
    """A server on this machine, in a thread of its own, as long as its ``with`` block.

    Parameters
    ----------
    answer
        What is said to a prompt, the text of the last message; default: the prompt itself. What it raises is an error
        of the server, 500. In a chat, a list is what tools it calls, and a dict is the whole response; a tuple is a
        refusal: its status, its body (text, bytes, or what becomes JSON), its headers.
    latency
        Seconds that an answer takes, or a function of a ``random.Random`` that gives them; a coroutine function waits
        itself, such as until something has happened.
    key
        The key that is asked for; None: none.
    model
        The name of the only model; None: any name will do.
    slots
        How many requests are worked on at a time; others wait.
    requests_per_minute
        Above it, the answer is 429, with ``Retry-After``.
    too_many, resets, malformed, failures
        Which share of requests is answered with 429, with a broken connection, with a body that is no JSON, with 500.
    context
        How many words a prompt may have; four letters of a text to embed count as one.
    seed
        Of these shares and latencies.
    port
        Where it listens; 0: where there is room.

    ``url`` is what an ``Endpoint`` takes. ``requests`` holds the bodies of all requests, ``times`` when each began
    (of ``time.monotonic``), ``outcomes`` counts how they ended; ``most_at_once`` says how many were worked on at a
    time. ``batches`` is its batch service, of OpenAI's and of Anthropic's form.

    >>> import json, urllib.request
    >>> with FakeLLMServer(lambda prompt: prompt[::-1]) as server:
    ...     body = {"model": "fake", "messages": [{"role": "user", "content": "abc"}]}
    ...     request = urllib.request.Request(f"{server.url}/chat/completions", json.dumps(body).encode())
    ...     json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    'cba'
    """

    def __init__(
        self,
        answer: Answers = lambda prompt: prompt,
        *,
        latency: Latency = 0.0,
        key: str | None = None,
        model: str | None = None,
        slots: int = 1_000_000,
        requests_per_minute: float | None = None,
        too_many: float = 0.0,
        resets: float = 0.0,
        malformed: float = 0.0,
        failures: float = 0.0,
        context: int = 1_000_000,
        seed: int = 0,
        port: int = 0,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.outcomes: Counter[str] = Counter()
        self.most_at_once = 0
        self.worked: list[tuple[float, float]] = []
        self.url = ""
        self.batches = FakeBatches(self)
        self._kinds: dict[str, Callable[[dict[str, Any]], Any]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completion,
            "/v1/embeddings": self._embeddings,
            "/v1/responses": self._responses,
            "/v1/rerank": self._rerank,
            "/v1/messages": self._messages,
        }
        self._answer, self._latency, self._key, self._model = answer, latency, key, model
        self._slots_count, self._rate, self._context = slots, requests_per_minute, context
        self._shares = {"429": too_many, "reset": resets, "malformed": malformed, "500": failures}
        self._random = random.Random(seed)
        self._port = port
        self._accepted: deque[float] = deque()  # of the last second
        self._at_once = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="fake-llm-server", daemon=True)
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        try:
            import aiohttp.web  # noqa: F401 - else the thread would fail
        except ImportError:
            raise MissingLibrary(
                f"FakeLLMServer needs the library aiohttp, which is not installed: {install_hint('llm')}."
            ) from None
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and the connections that are open."""
        if self._thread.is_alive() and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        finally:
            self._loop.close()

    async def _run(self) -> None:
        from aiohttp import web

        self._stop = asyncio.Event()
        self._slots = asyncio.Semaphore(self._slots_count)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/models", self._models)
        for path, made in self._kinds.items():
            app.router.add_post(path, partial(self._answered, made))
        self.batches.add_routes(app)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, backlog=1024).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    # ------------------------------------------------------------ what is asked

    async def _models(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        return web.json_response(
            {"object": "list", "data": [{"id": self._model or "fake", "object": "model"}]}
        )

    def _chat(self, body: dict[str, Any]) -> Any:
        content = body["messages"][-1]["content"]
        said = self._answer(content if isinstance(content, str) else json.dumps(content))
        if isinstance(said, (dict, tuple)):
            return said
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        text, reason = _cut(said if isinstance(said, str) else "", limit)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if isinstance(said, list):
            message, reason = {"role": "assistant", "content": None, "tool_calls": said}, "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(_words(body["messages"]), len(text.split())),
        }

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        text, reason = _cut(self._answer(body["prompt"]), body.get("max_tokens"))
        usage = _usage(len(body["prompt"].split()), len(text.split()))
        return {
            "object": "text_completion",
            "choices": [{"text": text, "finish_reason": reason}],
            "usage": usage,
        }

    def _embeddings(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": [float(len(text)), float(text.count("e")), 1.0],
            }
            for i, text in enumerate(texts)
        ]
        return {
            "object": "list",
            "data": data,
            "usage": _usage(sum(len(text.split()) for text in texts), 0),
        }

    def _responses(self, body: dict[str, Any]) -> dict[str, Any]:
        text = self._answer(body["input"])
        content = [{"type": "output_text", "text": text}]
        return {"object": "response", "output": [{"type": "message", "content": content}]}

    def _rerank(self, body: dict[str, Any]) -> dict[str, Any]:
        scores = [(i, text.count(body["query"])) for i, text in enumerate(body["documents"])]
        ranked = sorted(scores, key=lambda each: -each[1])
        return {"results": [{"index": i, "relevance_score": score} for i, score in ranked]}

    def _messages(self, body: dict[str, Any]) -> dict[str, Any]:
        text, reason = _cut(self._answer(body["messages"][-1]["content"]), body.get("max_tokens"))
        usage = {"input_tokens": _words(body["messages"]), "output_tokens": len(text.split())}
        stop = "max_tokens" if reason == "length" else "end_turn"
        return {
            "type": "message",
            "content": [{"type": "text", "text": text}],
            "stop_reason": stop,
            "usage": usage,
        }

    # ------------------------------------------------------------ faults, limits, time

    def said(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of an answer, as a batch has it; no faults, and no time."""
        refused = self._refused(body)
        if refused is not None:
            return refused[0], {"error": {"message": refused[1], "code": refused[2]}}
        try:
            said = self._kinds[path](body)
            if isinstance(said, tuple):
                return said[0], said[1]
            return 200, {"id": "fake", "model": body.get("model"), **said}
        except Exception as error:
            return 500, {"error": {"message": f"the server has failed: {error}"}}

    async def _answered(
        self, made: Callable[[dict[str, Any]], Any], request: web.Request
    ) -> web.StreamResponse:
        from aiohttp import web

        body = await request.json()
        now = time.monotonic()
        self.requests.append(body)
        self.times.append(now)
        refused = self.refused_key(request) or self._refused(body)
        pause = self._pause(now)
        fault = str(refused[0]) if refused is not None else self._fault(pause)
        if refused is not None:
            self.outcomes[fault] += 1
            return web.json_response(
                {"error": {"message": refused[1], "code": refused[2]}}, status=refused[0]
            )
        if fault == "429":
            self.outcomes[fault] += 1
            wait = {"Retry-After": f"{pause:.3f}"} if pause else {}
            return web.json_response({"error": {"message": "too many requests"}}, status=429, headers=wait)
        self._accepted.append(now)
        async with self._slots:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            began = time.monotonic()
            try:
                latency = self._latency(self._random) if callable(self._latency) else self._latency
                await (asyncio.sleep(latency) if isinstance(latency, (int, float)) else latency)
            finally:
                self._at_once -= 1
                self.worked.append((began, time.monotonic()))
        self.outcomes[fault or "answered"] += 1  # an answer that raises is counted as one
        if fault == "reset":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault == "malformed":
            return web.Response(text='{"choices": [{"mess', content_type="application/json")
        if fault == "500":
            return web.json_response({"error": {"message": "the server has failed"}}, status=500)
        try:
            said = made(body)
        except Exception as error:
            return web.json_response({"error": {"message": f"the server has failed: {error}"}}, status=500)
        if isinstance(said, tuple):
            status, refusal, headers = said
            refusal = refusal.encode() if isinstance(refusal, str) else refusal
            data = refusal if isinstance(refusal, bytes) else json.dumps(refusal).encode()
            self.outcomes.update({"answered": -1, str(status): 1})
            return web.Response(status=status, body=data, headers=headers)
        return web.json_response({"id": "fake", "model": body.get("model"), **said})

    def refused_key(self, request: web.Request) -> tuple[int, str, str] | None:
        """Say what is wrong with the key of a request."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get(
            "x-api-key", ""
        )
        if self._key is not None and given != self._key:
            return 401, f"Incorrect API key provided: {given}", "invalid_api_key"
        return None

    def _refused(self, body: dict[str, Any]) -> tuple[int, str, str] | None:
        if self._model is not None and body.get("model") != self._model:
            return 404, f"The model `{body.get('model')}` does not exist", "model_not_found"
        words = _words(body.get("messages", []))
        if isinstance(body.get("input"), list):
            words = max((len(text) // 4 for text in body["input"]), default=0)
        if words > self._context:
            said = f"This model's maximum context length is {self._context} tokens, and the messages have {words}"
            return 400, said, "context_length_exceeded"
        return None

    def _fault(self, pause: float) -> str:
        if pause:
            return "429"
        drawn = self._random.random()
        for fault, share in self._shares.items():
            drawn -= share
            if drawn < 0:
                return fault
        return ""

    def _pause(self, now: float) -> float:
        """Return for how many seconds nobody gets an answer: where the last second has had its share of the rate."""
        if self._rate is None:
            return 0.0
        while self._accepted and self._accepted[0] <= now - 1.0:
            self._accepted.popleft()
        return self._accepted[0] + 1.0 - now if len(self._accepted) + 1 > self._rate / 60 * 1.1 else 0.0


def _words(messages: list[dict[str, Any]]) -> int:
    return sum(len(str(message.get("content")).split()) for message in messages)


def _cut(text: str, limit: int | None) -> tuple[str, str]:
    words = text.split()
    return (text, "stop") if limit is None or len(words) <= limit else (" ".join(words[:limit]), "length")


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


if __name__ == "__main__":  # python -m headrace.testing.llm_server PORT
    import sys

    with FakeLLMServer(port=int(sys.argv[1])):
        threading.Event().wait()
