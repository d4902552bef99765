"""Anthropic's batch service."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import IO, Any

import msgspec

from headrace.annex.llm.batch_lines import BatchLine
from headrace.annex.llm.batches.journal import Part
from headrace.annex.llm.batches.service import (
    CLOCKS_DIFFER,
    PAGE,
    Batch,
    LineOutcome,
    Unsure,
    name_of,
    number_of,
    object_of,
    table,
    text,
)
from headrace.annex.llm.client import JSON, Client

_AGAIN_TYPES = ("api_error", "overloaded_error", "rate_limit_error", "timeout_error")


class AnthropicBatches:
    """Anthropic's: a batch is made of requests in one body; nothing can be tagged but each request.

    A batch that was made without our hearing of it is looked for among those of that time and size, and known by the
    names of its requests once it has ended. https://docs.anthropic.com/en/api/creating-message-batches
    """

    most_lines = 100_000
    most_bytes = 256_000_000
    uploads = False

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(self, file: IO[bytes], part: Part, lines: Iterable[BatchLine]) -> None:
        """Write one object."""
        file.write(b'{"requests":[')
        for i, line in enumerate(lines):
            said = {"custom_id": name_of(part, line.number), "params": line.body}
            file.write(b"," * (i > 0) + msgspec.json.encode(said))
        file.write(b"]}")

    async def upload(self, part: Part, path: str) -> str:
        """Nothing is uploaded by itself."""
        raise AssertionError

    async def find_file(self, part: Part) -> str | None:
        """Nothing is uploaded by itself."""
        return None

    async def create(self, part: Part, path: str) -> Batch:
        """Send the requests."""
        with open(path, "rb") as file:
            headers = {**JSON, "Idempotency-Key": part.tag}
            return _anthropic_batch(
                table(await self._client.call("POST", "/messages/batches", data=file, headers=headers))
            )

    async def find(self, part: Part, size: int, known: set[str]) -> Batch | None:
        """Look through the batches of that time for one of so many requests that is no other part's, and ours.

        Raises ``Again`` while one of them may be ours, and its requests cannot be seen yet.
        """
        unsure = ""
        async for each in self._listed(part.since):
            counts = each.get("request_counts")
            counts = counts.values() if isinstance(counts, dict) else ()
            batch = _anthropic_batch(each)
            if batch.id in known or sum(value for value in counts if isinstance(value, int)) != size:
                continue
            if batch.state == "open":
                unsure = batch.id
                continue
            if await self._is_of(part, batch):
                return batch
        if unsure:
            raise Unsure(unsure)
        return None

    async def look(self, batch: str) -> Batch:
        """Ask how it is."""
        return _anthropic_batch(table(await self._client.call("GET", f"/messages/batches/{batch}")))

    async def _is_of(self, part: Part, batch: Batch) -> bool:
        """Look at the first of its results."""
        rest = b""
        pieces = self._client.stream("GET", f"/messages/batches/{batch.id}/results")
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                rest += piece
                if b"\n" in rest:
                    break
        first = rest.partition(b"\n")[0]
        return bool(first) and number_of(part, self.outcome(first).name) is not None

    async def download(self, batch: Batch, file: IO[bytes]) -> None:
        """Read the results."""
        async for piece in self._client.stream("GET", f"/messages/batches/{batch.id}/results"):
            file.write(piece)

    def outcome(self, line: bytes) -> LineOutcome:
        """Read a line of them."""
        return _anthropic_outcome(object_of(line))

    async def forget(self, part: Part) -> None:
        """Leave the batch there: it ends by itself after 29 days."""

    async def _listed(self, since: float) -> AsyncIterator[dict[str, Any]]:
        after: str | None = None
        while True:
            page = {"limit": str(PAGE)} | ({"after_id": after} if after else {})
            found = table(await self._client.call("GET", "/messages/batches", params=page))
            for each in found.get("data") or ():
                if _seconds(each.get("created_at")) < since - CLOCKS_DIFFER:
                    return
                yield each
            if not found.get("has_more"):
                return
            after = text(found, "last_id")


def _anthropic_batch(data: Mapping[str, Any]) -> Batch:
    counts = data.get("request_counts")
    counts = counts if isinstance(counts, dict) else {}
    done = sum(value for name, value in counts.items() if name != "processing" and isinstance(value, int))
    if data.get("processing_status") != "ended":
        return Batch(text(data, "id"), "open", done)
    return Batch(text(data, "id"), "cancelled" if counts.get("canceled") else "ended", done)


def _anthropic_outcome(line: Mapping[str, Any]) -> LineOutcome:
    name, result = str(line.get("custom_id")), line.get("result")
    result = result if isinstance(result, dict) else {}
    kind, message = result.get("type"), result.get("message")
    if kind == "succeeded" and isinstance(message, dict):
        return LineOutcome(name, message)
    if kind == "errored":
        error = result.get("error")
        error = error.get("error", error) if isinstance(error, dict) else {}
        code = str(error.get("type") or "error") if isinstance(error, dict) else "error"
        said = str(error.get("message") or error) if isinstance(error, dict) else str(error)
        return LineOutcome(name, None, code, said, code in _AGAIN_TYPES)
    return LineOutcome(name, None, str(kind), f"the request was {kind}", again=True)


def _seconds(said: Any) -> float:
    """Return a time of ISO 8601 in seconds since 1970; now for what is none, so that the search goes on."""
    try:
        return datetime.fromisoformat(str(said)).timestamp()
    except ValueError:
        return time.time()


# ----------------------------------------------------------------
# Chats as OpenAI has them, for those who ask any endpoint.

_STOPPED = {"max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}
_RENAMED = {"max_completion_tokens": "max_tokens", "stop": "stop_sequences"}


def params_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request to Anthropic that asks what a chat of OpenAI's form asks.

    Its server does not enforce a schema: the model is told of it.
    https://docs.anthropic.com/en/api/messages

    >>> params_of({"model": "c", "messages": [{"role": "system", "content": "Be brief."}], "stop": ["."]})
    {'model': 'c', 'messages': [], 'stop_sequences': ['.'], 'system': 'Be brief.'}
    """
    params = {_RENAMED.get(name, name): value for name, value in body.items()}
    messages: list[dict[str, Any]] = []
    system: list[str] = []
    for message in body["messages"]:
        if message["role"] in ("system", "developer"):
            system.append(str(message["content"]))
        else:
            messages.append({"role": message["role"], "content": _content_of(message["content"])})
    params["messages"] = messages
    form = params.pop("response_format", None)
    if form is not None:
        schema = msgspec.json.encode(form["json_schema"]["schema"]).decode()
        told = f"Answer with JSON of this schema, and nothing else:\n{schema}"
        messages.append({"role": "user", "content": told})
    pattern = params.pop("structured_outputs", None)
    if pattern is not None:
        told = f"Answer with text that matches this regular expression, and nothing else: {pattern['regex']}"
        messages.append({"role": "user", "content": told})
    if system:
        params["system"] = "\n\n".join(system)
    if "tools" in params:
        functions = [each["function"] for each in params["tools"]]
        params["tools"] = [
            {**each, "input_schema": each.get("parameters", {"type": "object"})} for each in functions
        ]
        for each in params["tools"]:
            each.pop("parameters", None)
    return params


def _content_of(content: Any) -> Any:
    return [_part_of(part) for part in content] if isinstance(content, list) else content


def _part_of(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") != "image_url":
        return part
    url = part["image_url"]["url"]
    kind, marked, data = url.partition(";base64,")
    source = {"type": "url", "url": url}
    if marked:
        source = {"type": "base64", "media_type": kind.removeprefix("data:"), "data": data}
    return {"type": "image", "source": source}


def chat_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer of Anthropic's as one of OpenAI's.

    >>> said = {"content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn"}
    >>> chat_of(said)["choices"]
    [{'message': {'role': 'assistant', 'content': 'Yes.'}, 'finish_reason': 'stop'}]
    """
    content = message.get("content")
    blocks = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    texts = [str(each.get("text")) for each in blocks if each.get("type") == "text"]
    thought = [str(each.get("thinking")) for each in blocks if each.get("type") == "thinking"]
    calls = [
        {
            "id": each.get("id"),
            "type": "function",
            "function": {
                "name": each.get("name"),
                "arguments": msgspec.json.encode(each.get("input")).decode(),
            },
        }
        for each in blocks
        if each.get("type") == "tool_use"
    ]
    answer: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    answer |= {"tool_calls": calls} if calls else {}
    answer |= {"reasoning_content": "".join(thought)} if thought else {}
    reason = str(message.get("stop_reason"))
    reason = "stop" if reason in ("end_turn", "stop_sequence") else _STOPPED.get(reason, reason)
    found: dict[str, Any] = {
        "model": message.get("model"),
        "choices": [{"message": answer, "finish_reason": reason}],
    }
    usage = message.get("usage")
    if isinstance(usage, dict):
        cached = usage.get("cache_read_input_tokens") or 0
        read = (usage.get("input_tokens") or 0) + cached + (usage.get("cache_creation_input_tokens") or 0)
        written = usage.get("output_tokens") or 0
        found["usage"] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        found["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    return found
