"""Chats of OpenAI's form, as Anthropic's batches have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.annex.llm.schema import told
from headrace.annex.llm.usage import text_in

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
            system.append(text_in(message["content"]) or "")
        else:
            messages.append({"role": message["role"], "content": _content_of(message["content"])})
    params["messages"] = messages
    form, pattern = params.pop("response_format", None), params.pop("structured_outputs", None)
    if form is not None:
        messages.append({"role": "user", "content": told("json", form["json_schema"]["schema"])})
    if pattern is not None:
        messages.append({"role": "user", "content": told("regex", pattern["regex"])})
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
    usage = usage if isinstance(usage, dict) else {}
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    counts = [usage.get(name) or 0 for name in names]
    if usage and all(type(each) is int for each in counts):  # else nobody has counted
        read, written = sum(counts[:3]), counts[3]
        found["usage"] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        found["usage"]["prompt_tokens_details"] = {"cached_tokens": counts[1]}
    return found
