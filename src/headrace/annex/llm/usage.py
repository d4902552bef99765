"""How many tokens a request may use at most, and how many an answer has used."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from headrace.annex.llm.refusals import BadRow

BYTES_PER_TOKEN = 3
"""So many bytes a token of a text has, where nobody has counted."""
MEDIA_TOKENS = 50_000
"""An image or a sound is taken for so many tokens: its bytes say little of them. A large photograph has thousands."""
SOUND_CHARS = 16
"""A long sound is taken for more, a token for so many letters: models read up to 50 in a second of 750 bytes."""
TOOL_TOKENS = 1000
"""What a server puts into a prompt with tools, beside these: Anthropic says up to 530."""
MOST_COUNTED = 1 << 40
"""A server that says that so many tokens were used has not counted."""

Usage: TypeAlias = tuple[int | None, int | None, int]


def most_tokens(body: Mapping[str, Any], room: int | None = None) -> tuple[int, int]:
    """Return how many tokens a request may use at most, in and out; ``room``: what the model has for both.

    No tokenizer makes more tokens of a text than it has bytes, and what a server puts around each message is shorter
    than the JSON here. Images and sounds count as ``MEDIA_TOKENS``. Raises ``BadRow`` for a request of which nobody
    knows that: with parts of other kinds, or without a length of the answer.

    >>> most_tokens({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
    (60, 5)
    """
    answers = max(int(body.get("n") or 1), int(body.get("best_of") or 1))
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if "input" in body:  # embeddings have no answer
        limits = [0]
    if not limits and room is None:
        raise BadRow("a budget needs max_tokens in sampling=, because the length of this answer is not known")
    text = len(msgspec.json.encode(body)) + TOOL_TOKENS * bool(body.get("tools"))
    media = 0
    contents = [message.get("content") for message in body.get("messages") or ()]
    for part in itertools.chain.from_iterable(each for each in contents if isinstance(each, list)):
        kind = part.get("type")
        if kind not in ("text", "image_url", "input_audio"):
            raise BadRow(
                f"with a budget, a message has text, images and sounds: what {kind!r} costs is not known"
            )
        if kind != "text":
            held = part.get(kind)
            source = held.get("url", held.get("data")) if isinstance(held, dict) else held
            size = len(source) if isinstance(source, str) else 0
            text -= size
            media += max(MEDIA_TOKENS, size // SOUND_CHARS * (kind == "input_audio"))
    return text + media, answers * (int(max(limits)) if limits else int(room or 0))


def tokens_of(data: Mapping[str, Any], prompt_tokens: int) -> tuple[int, int]:
    """Return how many tokens went in and came out; where the server does not say, what their bytes let expect."""
    read, written, _ = usage_of(data)
    if written is None:
        choices = data.get("choices")
        choices = choices if isinstance(choices, list) and choices else [None]
        message = choices[0].get("message") if isinstance(choices[0], dict) else None
        said = message if isinstance(message, dict) else {}
        texts = [text for name, text in said.items() if name not in ("role", "content")]
        texts = [text for text in (*texts, text_in(said.get("content"))) if isinstance(text, str)]
        written = max(1, sum(len(text.encode("utf-8", "replace")) for text in texts) // BYTES_PER_TOKEN)
        written *= len(choices)
    return prompt_tokens if read is None else read, written


def usage_of(data: Mapping[str, Any]) -> Usage:
    """Return the tokens that a server has counted: in, out (None: not said), and those in that it had cached.

    What a model thinks is paid for as what comes out. xAI and Google have it in the total alone.

    >>> usage_of({"usage": {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 316}})
    (20, 296, 0)
    """
    usage = data.get("usage")
    if not isinstance(usage, dict):
        return None, None, 0
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    read, written, whole = [_count(usage.get(name)) for name in names]
    if read is not None and written is None and "choices" not in data:
        written = 0  # embeddings have no tokens that come out
    if read is not None and written is not None and whole is not None:
        written = max(written, whole - read)
    return read, written, cached or 0


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MOST_COUNTED else None


def text_in(content: Any) -> str | None:
    """Return the text of an answer. It may come in parts; only those of text count."""
    if isinstance(content, list):
        parts = [
            part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"
        ]
        return "".join(map(str, parts)) if parts else None
    return content if isinstance(content, str) else None
