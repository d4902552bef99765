"""Prompts from rows: a text, or chat messages, with the names of columns in braces; or a column of chats."""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.annex.llm.refusals import BadRow
from headrace.errors import ArgumentError

ROLES = ("system", "developer", "user", "assistant")
_COLUMN_ROLES = (*ROLES, "tool")
_COLUMN_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
_HOLD = {"image_url": "url", "input_audio": "data"}
"""The kinds of parts of a message but text, each with the field for which a column may have bytes."""
_FILES = tuple(_HOLD.values())
_IMAGES = {b"\xff\xd8\xff": "jpeg", b"\x89PNG": "png", b"GIF8": "gif", b"RIFF....WEBP": "webp"}
_SOUNDS = {
    b"RIFF....WAVE": "wav",
    b"ID3": "mp3",
    b"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]": "mp3",
    b"fLaC": "flac",
    b"OggS": "ogg",
}
"""How files of each kind begin, as a regular expression."""
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
        fields = _fields(template) if isinstance(template, str) else []
        # A template that is one column and nothing else may hold whole chats.
        self._chat = fields[0][0] if len(fields) == 1 and template == "{" + fields[0][0] + "}" else None
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
        """Return the messages of a row; raises ``BadRow`` for a value that is missing, or cannot be asked."""
        chat = row[self._chat] if self._chat is not None else None
        is_chat = isinstance(chat, list)
        own = _chat_of(chat, str(self._chat)) if isinstance(chat, list) else []
        if is_chat and len(self.messages) > 1 and any(message["role"] == "system" for message in own):
            raise BadRow(
                f"the chat in column {self._chat!r} has a message of the system, and system= gives another"
            )
        written = self.messages[:-1] if is_chat else self.messages
        messages = [{**message, "content": _filled(message["content"], row)} for message in written]
        asked = [message for message in messages if message["role"] not in ("system", "developer")]
        if not is_chat and not any(message["content"] for message in asked):
            raise BadRow("the prompt is empty")
        return [*messages, *own]


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
            raise ArgumentError(f"prompt: {{{name}}} in the template is not the name of a column. {doubled}")
        fields.append((name, form or ""))
    return fields


def _filled(content: Any, row: Mapping[str, Any], key: str = "") -> Any:
    if isinstance(content, Mapping):
        column = next((str(each)[1:-1] for name, each in content.items() if name in _FILES), "")
        return _encoded(
            {name: _filled(value, row, name) for name, value in content.items()}, f"column {column!r}"
        )
    if isinstance(content, list):
        return [_filled(value, row) for value in content]
    if not isinstance(content, str):
        return content
    if key in _FILES and content[:1] == "{" and isinstance(value := row.get(content[1:-1]), bytes):
        return value
    made = []
    for literal, name, form, _ in _FORMATTER.parse(content):
        made.append(literal)
        if name is not None:
            made.append(_shown(row[name], name, form or ""))
    return "".join(made)


def _encoded(held: dict[str, Any], where: str) -> dict[str, Any]:
    """Return what a part of a message holds, with the bytes of an image or a sound as requests have them."""
    image, sound = held.get("url"), held.get("data")
    if isinstance(image, bytes):
        return {**held, "url": _data_url(image, where)}
    if isinstance(sound, bytes):
        made = _sound(sound, where)
        return {**made, **held, "data": made["data"]}
    return held


def _shown(value: Any, name: str, form: str) -> str:
    if value is None:
        raise BadRow(f"column {name!r} is null, and the prompt needs it")
    if isinstance(value, (bytes, bytearray)):
        raise BadRow(
            f"column {name!r} holds bytes, and a template takes text, numbers and times; an image stands in a part "
            "{'type': 'image_url', 'image_url': {'url': '{" + name + "}'}}, and a sound in "
            "{'type': 'input_audio', 'input_audio': {'data': '{" + name + "}'}}"
        )
    if isinstance(value, (list, dict)):
        raise BadRow(
            f"column {name!r} holds several values, and a template takes text, numbers and times. A chat, a list of "
            f"messages with role and content, is asked where its column is the whole template: '{{{name}}}'"
        )
    try:
        return format(value, form)
    except (ValueError, TypeError) as error:
        raise BadRow(f"column {name!r} cannot be written as {form!r}: {error}") from None


def _kind_of(data: bytes, kinds: Mapping[bytes, str]) -> str | None:
    return next((kind for magic, kind in kinds.items() if re.match(magic, data, re.DOTALL)), None)


def _data_url(data: bytes, where: str) -> str:
    kind = _kind_of(data, _IMAGES)
    if kind is None:
        raise BadRow(f"{where} holds bytes that are not a JPEG, PNG, GIF or WebP image")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _sound(data: bytes, where: str) -> dict[str, str]:
    """Return a sound as a part of a message has it."""
    kind = _kind_of(data, _SOUNDS)
    if kind is None:
        raise BadRow(f"{where} holds bytes that are not a WAV, MP3, FLAC or Ogg file")
    return {"data": base64.b64encode(data).decode(), "format": kind}


def _chat_of(chat: list[Any], column: str) -> Messages:
    """Return the messages that a column holds; raises ``BadRow`` for what is no chat."""
    if not chat:
        raise BadRow(f"column {column!r} holds a chat without messages")
    return [_turn_of(message, f"message {i} of column {column!r}") for i, message in enumerate(chat, 1)]


def _turn_of(message: Any, where: str) -> dict[str, Any]:
    """Return one message of a column; fields that are null, as structs have them, are left out."""
    if not isinstance(message, dict) or "role" not in message:
        raise BadRow(f"{where} is {message!r:.80}; a message has a role and a content")
    turn: dict[str, Any] = without_nulls(message)
    unknown = [name for name in turn if name not in _COLUMN_FIELDS]
    if unknown:
        raise BadRow(f"{where} has {unknown[0]!r}; a message has only {', '.join(_COLUMN_FIELDS)}")
    if turn.get("role") not in _COLUMN_ROLES:
        raise BadRow(
            f"{where} has the role {turn.get('role')!r}, which is none of {', '.join(_COLUMN_ROLES)}"
        )
    content = turn.get("content")
    if content is None and turn.get("tool_calls"):
        return {"role": turn["role"], "content": None, **turn}
    if isinstance(content, list) and content:
        return {**turn, "content": [_part_of(part, where) for part in content]}
    if not isinstance(content, str):
        held = f"the content {content!r:.80}" if content else "no content"
        raise BadRow(f"{where} has {held}; it takes a text, or a list of parts")
    return turn


def _part_of(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    held = part.get(kind) if isinstance(part, dict) else None
    if kind == "text" and isinstance(held, str):
        return {"type": kind, "text": held}
    if kind in _HOLD and isinstance(held, dict) and held.get(_HOLD[kind]):
        return {"type": kind, kind: _encoded(held, where)}
    raise BadRow(
        f"{where} has the part {part!r:.80}; a part is a text, an image_url with a url, or an input_audio with data"
    )


def without_nulls(value: Any) -> Any:
    """Return a value without the fields that are null: a column has the fields of all rows in each."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def text_of(messages: Any) -> str:
    """Return the text of messages, for comparing how they begin and how long they are.

    >>> text_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"text": "Why?"}]}])
    'Be brief.\\nWhy?'
    """
    contents = [message["content"] for message in messages or ()]
    parts = [
        part for each in contents for part in (each if isinstance(each, list) else [{"text": each or ""}])
    ]
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


# ----------------------------------------------------------------
# Chats as the tokens that a model of this machine reads.


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
