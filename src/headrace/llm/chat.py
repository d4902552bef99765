"""Chats as the tokens that a model of this machine reads."""

from __future__ import annotations

from typing import Any

from headrace.errors import ArgumentError
from headrace.llm.template import Messages


def prompt_tokens(tokenizer: Any, messages: Messages, kind: str) -> list[int]:
    """Return messages as tokens, by the tokenizer's chat template; without one, their texts follow one another."""
    texts = [message["content"] for message in messages]
    if not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"prompt: a {kind} model takes messages of text; parts such as images are not.")
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        found = tokenizer("\n\n".join(texts))["input_ids"]
    return [int(each) for each in found]
