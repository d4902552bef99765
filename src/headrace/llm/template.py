"""Prompts from rows: a text, or chat messages, with the names of columns in braces."""

from __future__ import annotations

import base64
import string
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ArgumentError
from headrace.llm.refusals import BadRow

ROLES = ("system", "developer", "user", "assistant")
_IMAGES = {b"\xff\xd8\xff": "jpeg", b"\x89PNG": "png", b"GIF8": "gif", b"RIFF": "webp"}
_FORMATTER = string.Formatter()

Messages = list[dict[str, Any]]


class Template:
    """Makes the messages of a row. ``columns`` are those that it names, in their order."""

    def __init__(self, template: Any, system: str | None = None) -> None:
        if isinstance(template, str):
            messages: Messages = [{"role": "user", "content": template}]
        else:
            messages = _given_messages(template)
        if system is not None:
            if not isinstance(system, str) or not system:
                raise ArgumentError(f"prompt: system={system!r}: it takes a text.")
            if any(message["role"] == "system" for message in messages):
                raise ArgumentError("prompt: the messages have one of the system, and system= gives another.")
            messages = [{"role": "system", "content": system}, *messages]
        self.messages = messages
        named: dict[str, None] = {}
        for message in messages:
            _note_columns(message["content"], named)
        self.columns = tuple(named)
        if not self.columns:
            raise ArgumentError(
                "prompt: the template names no column, so that all rows would ask the same. Columns stand in braces: "
                "'Summarise: {text}'."
            )

    def render(self, row: Mapping[str, Any]) -> Messages:
        """Return the messages of a row; raises ``BadRow`` for a value that is missing, or is no text or number."""
        return [{**message, "content": _filled(message["content"], row)} for message in self.messages]


def _given_messages(template: Any) -> Messages:
    if not isinstance(template, Sequence) or not template or isinstance(template, (bytes, bytearray)):
        raise ArgumentError(
            f"prompt: the template is {type(template).__name__}; it is a text with columns in braces, such as "
            "'Summarise: {text}', or a list of messages: [{'role': 'user', 'content': '{text}'}]."
        )
    messages: Messages = []
    for message in template:
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise ArgumentError(
                f"prompt: a message is a dict of 'role' and 'content', and not {message!r:.80}."
            )
        if message["role"] not in ROLES:
            raise ArgumentError(
                f"prompt: the role {message['role']!r} of a message is none of {', '.join(ROLES)}."
            )
        if not isinstance(message["content"], (str, list)):
            raise ArgumentError("prompt: the content of a message is a text, or a list of parts.")
        messages.append(dict(message))
    return messages


def _note_columns(content: Any, named: dict[str, None]) -> None:
    if isinstance(content, str):
        named.update(dict.fromkeys(name for name, _ in _fields(content)))
    elif isinstance(content, Mapping):
        for value in content.values():
            _note_columns(value, named)
    elif isinstance(content, list):
        for value in content:
            _note_columns(value, named)


def _fields(text: str) -> list[tuple[str, str]]:
    """Return the columns in a text, each with its format."""
    doubled = "A brace that stands for itself is written twice: {{ and }}."
    try:
        parts = list(_FORMATTER.parse(text))
    except ValueError as error:
        raise ArgumentError(f"prompt: the template {text!r:.80} cannot be read: {error}. {doubled}") from None
    fields = []
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if (
            not name.isprintable()
            or name.strip(" \"'") != name
            or not name
            or conversion
            or "{" in (form or "")
        ):
            raise ArgumentError(f"prompt: {{{name}}} in the template is no name of a column. {doubled}")
        fields.append((name, form or ""))
    return fields


def _filled(content: Any, row: Mapping[str, Any], key: str = "") -> Any:
    if isinstance(content, Mapping):
        return {name: _filled(value, row, name) for name, value in content.items()}
    if isinstance(content, list):
        return [_filled(value, row) for value in content]
    if not isinstance(content, str):
        return content
    made = []
    for literal, name, form, _ in _FORMATTER.parse(content):
        made.append(literal)
        if name is not None:
            made.append(_shown(row[name], name, form or "", is_url=key == "url"))
    return "".join(made)


def _shown(value: Any, name: str, form: str, *, is_url: bool) -> str:
    if value is None:
        raise BadRow(f"column {name!r} is null, and the prompt needs it")
    if isinstance(value, (bytes, bytearray)) and is_url:
        return _data_url(bytes(value), name)
    if isinstance(value, (bytes, bytearray, list, dict)):
        kind = "bytes" if isinstance(value, (bytes, bytearray)) else "several values"
        raise BadRow(
            f"column {name!r} holds {kind}, and a template takes text, numbers and times; an image stands in a part "
            "{'type': 'image_url', 'image_url': {'url': '{" + name + "}'}}"
        )
    try:
        return format(value, form)
    except (ValueError, TypeError) as error:
        raise BadRow(f"column {name!r} cannot be written as {form!r}: {error}") from None


def _data_url(data: bytes, name: str) -> str:
    for magic, kind in _IMAGES.items():
        if data.startswith(magic):
            return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    raise BadRow(f"column {name!r} holds bytes that are no JPEG, PNG, GIF or WebP image")


def text_of(messages: Any) -> str:
    """Return the text of messages, for comparing how they begin and how long they are.

    >>> text_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"text": "Why?"}]}])
    'Be brief.\\nWhy?'
    """
    contents = [message["content"] for message in messages or ()]
    parts = [part for each in contents for part in (each if isinstance(each, list) else [{"text": each}])]
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
