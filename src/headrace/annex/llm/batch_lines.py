"""The lines of batch files: OpenAI's and Anthropic's."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from headrace.errors import ArgumentError, PlanChanged, UnreadableFile

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank")
ANTHROPIC = "/v1/messages"
LONGEST_LINE = 256 << 20


Progress = Callable[[int, int, Sequence[str]], None]
"""Is told how many lines are done, of how many, and the names of the batches at work."""


@dataclass(slots=True)
class BatchCounts:
    """What became of a batch."""

    lines: int = 0
    answered: int = 0
    failed: int = 0
    before: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of a batch."""

    source: str
    out: str
    errors: str

    @property
    def state(self) -> str:
        """The folder that is there until all is done."""
        return self.out + ".headrace"


class _Line(msgspec.Struct):
    custom_id: str
    url: str = ""
    method: str = "POST"
    body: msgspec.Raw = msgspec.Raw(b"")
    params: msgspec.Raw = msgspec.Raw(b"")


class _CustomId(msgspec.Struct):
    custom_id: str


_decode = msgspec.json.Decoder(_Line).decode
_id_of = msgspec.json.Decoder(_CustomId).decode


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request of a batch file, ``at`` this byte. ``path`` is the end of its address, behind the version."""

    number: int
    custom_id: str
    path: str
    body: Mapping[str, Any]
    size: int
    at: int = 0

    @property
    def is_anthropic(self) -> bool:
        """True for a line as Anthropic has them."""
        return self.path == ANTHROPIC.removeprefix("/v1")


def lines_of(path: str) -> Iterator[BatchLine]:
    """Yield the requests of a batch file in order; empty lines are passed over.

    Raises ``UnreadableFile`` with the number of the line for one that is no request, ``PlanChanged`` at the end of a
    file that somebody has written into meanwhile.
    """
    try:
        with open(path, "rb") as file:
            at, before = 0, state_of(file)
            for number, raw in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
                if len(raw) > LONGEST_LINE:
                    raise _bad(path, number, f"it has more than {LONGEST_LINE >> 20} MiB")
                if raw.strip():
                    yield line_of(path, number, raw, at)
                at += len(raw)
            if state_of(file) != before:
                raise PlanChanged(
                    f"{path} has changed while it was read, so lines of two states would be mixed. Bring back what "
                    "it was and give the same command again, or give another output."
                )
    except OSError as error:
        raise UnreadableFile(
            f"{path} cannot be read: {error.strerror or error}. Nothing was sent."
        ) from error


def state_of(file: IO[bytes]) -> tuple[int, int]:
    """Return what is known of a file that is open, by which it is seen that somebody has written into it."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def line_of(path: str, number: int, raw: bytes, at: int = 0) -> BatchLine:
    """Return the request of a line, which begins ``at`` this byte; raises ``UnreadableFile`` for one that is none."""
    try:
        line = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(path, number, f"it is not a request of a batch: {error}") from None
    if not line.custom_id:
        raise _bad(path, number, "its custom_id is empty")
    if line.params:
        return BatchLine(
            number, line.custom_id, "/messages", _object(path, number, "params", line.params), len(raw), at
        )
    if line.method != "POST":
        raise _bad(path, number, f"its method is {line.method[:20]!r}, and requests of a batch are POST")
    if line.url not in PATHS:
        raise _bad(path, number, f"its url is {line.url[:80]!r}, which is none of {', '.join(PATHS)}")
    body = _object(path, number, "body", line.body)
    return BatchLine(number, line.custom_id, line.url.removeprefix("/v1"), body, len(raw), at)


def _object(path: str, number: int, name: str, raw: msgspec.Raw) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw) if raw else None
    except (
        msgspec.DecodeError,
        RecursionError,
    ) as error:  # numbers that are too large, brackets that are too deep
        raise _bad(path, number, f"its {name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise _bad(path, number, f"its {name} is no object")
    if value.get("stream"):
        raise _bad(path, number, "it asks for a stream, and answers of a batch are read as a whole")
    return value


def _bad(path: str, number: int, what: str) -> UnreadableFile:
    return UnreadableFile(
        f"{path}, line {number:,}: {what}. Nothing was sent: correct the line, or take it out, and run it again."
    )


def check(path: str) -> int:
    """Look at all lines of a batch file before anything is sent; return how many requests it has.

    Raises ``UnreadableFile`` for a line that is no request, for two with the same ``custom_id``, and for Anthropic's
    lines among OpenAI's. Takes a bounded amount of memory: ids are compared on disk.
    """
    db = sqlite3.connect("")  # in a temporary file
    try:
        db.execute("create table ids (id blob primary key, line integer) without rowid")
        count, kinds = 0, set()
        for line in lines_of(path):
            digest = hashlib.blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            try:
                db.execute("insert into ids values (?, ?)", (digest, line.number))
            except sqlite3.IntegrityError:
                (first,) = db.execute("select line from ids where id = ?", (digest,)).fetchone()
                raise _bad(
                    path, line.number, f"its custom_id {line.custom_id[:80]!r} is that of line {first:,}, too"
                ) from None
            kinds.add(line.is_anthropic)
            if len(kinds) > 1:
                raise _bad(
                    path, line.number, "it is of another kind than those before: OpenAI's or Anthropic's"
                )
            count += 1
        if not count:
            raise ArgumentError(f"{path} has no request: nothing was sent.")
        return count
    finally:
        db.close()


def answered_line(line: BatchLine, data: Mapping[str, Any]) -> bytes:
    """Return the line of the output for an answer."""
    said: dict[str, Any]
    if line.is_anthropic:
        said = {"custom_id": line.custom_id, "result": {"type": "succeeded", "message": data}}
    else:
        response = {"status_code": 200, "request_id": _name("req", line), "body": data}
        said = {
            "id": _name("batch_req", line),
            "custom_id": line.custom_id,
            "response": response,
            "error": None,
        }
    return msgspec.json.encode(said) + b"\n"


def failed_line(line: BatchLine, code: str, message: str) -> bytes:
    """Return the line of the file of errors for a request without an answer."""
    said: dict[str, Any]
    if line.is_anthropic:
        error = {"type": "error", "error": {"type": code, "message": message}}
        said = {"custom_id": line.custom_id, "result": {"type": "errored", "error": error}}
    else:
        error = {"code": code, "message": message}
        said = {"id": _name("batch_req", line), "custom_id": line.custom_id, "response": None, "error": error}
    return msgspec.json.encode(said) + b"\n"


def tokens_in(data: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many tokens an answer has used, in and out, as far as it says so."""
    usage = data.get("usage")
    found = []
    for name, other in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
        value = usage.get(name, usage.get(other)) if isinstance(usage, dict) else 0
        found.append(value if isinstance(value, int) else 0)
    return found[0], found[1]


def tokens_written(said: bytes) -> tuple[int, int]:
    """Return the same of a line of the output."""
    line = msgspec.json.decode(said)
    data = (line.get("response") or {}).get("body") or (line.get("result") or {}).get("message")
    return tokens_in(data) if isinstance(data, dict) else (0, 0)


def _name(kind: str, line: BatchLine) -> str:
    return f"{kind}_{hashlib.blake2b(line.custom_id.encode('utf-8', 'surrogatepass'), digest_size=12).hexdigest()}"


class WrittenLines:
    """What an earlier process wrote of an output: read beside the input, and cut where it is not its answer."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(os.dup(fd), "rb")
        self._file.seek(0)
        self._fd = fd
        self.end = 0  # of the lines that were taken
        self.last = b""
        self._next: tuple[str, bytes] | None = None
        self._read()

    def _read(self) -> None:
        raw = self._file.readline()
        self._next = None
        if raw.endswith(b"\n"):
            try:
                self._next = _id_of(raw).custom_id, raw
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._next = None

    def take(self, custom_id: str) -> bool:
        """Say whether the next line is the answer to this request; then it is taken, and ``last``."""
        if self._next is None or self._next[0] != custom_id:
            return False
        self.last = self._next[1]
        self.end += len(self.last)
        self._read()
        return True

    def cut(self) -> None:
        """Cut off what was not taken, and go on behind it."""
        self._file.close()
        os.ftruncate(self._fd, self.end)
        os.lseek(self._fd, self.end, os.SEEK_SET)


# ----------------------------------------------------------------
# Chats of OpenAI's form, as Anthropic's batches have them.

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
