"""Chats as the tokens that a model of this machine reads."""

from __future__ import annotations

from typing import Any

from headrace.llm.refusals import BadRow
from headrace.llm.template import Messages


def has_images(messages: Messages) -> bool:
    """Say whether messages have parts that are not text."""
    return any(isinstance(message["content"], list) for message in with_texts(messages))


def with_texts(messages: Messages) -> Messages:
    """Return messages in which parts that are all text are one.

    >>> with_texts([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
    [{'role': 'user', 'content': 'a\\nb'}]
    """
    return [{**message, "content": _joined(message["content"])} for message in messages]


def _joined(content: Any) -> Any:
    parts = content if isinstance(content, list) else []
    if parts and all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return "\n".join(str(part.get("text", "")) for part in parts)
    return content


def prompt_tokens(tokenizer: Any, messages: Messages, kind: str) -> list[int]:
    """Return messages as tokens, by the tokenizer's chat template; without one, their texts follow one another."""
    messages = with_texts(messages)
    texts = [message["content"] or "" for message in messages]
    if has_images(messages):
        raise BadRow(f"a {kind} model takes messages of text, and these have parts such as images or sounds")
    if tokenizer.chat_template:
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates refuse chats by errors of their own
            raise BadRow(f"the chat template of the model does not take these messages: {error}") from error
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        found = tokenizer("\n\n".join(texts))["input_ids"]
    return [int(each) for each in found]
