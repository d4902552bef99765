"""What an endpoint said instead of an answer: whose fault it is, and whether to ask again."""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import time
from collections.abc import Mapping
from typing import Any

from headrace.core.failures import shortened
from headrace.errors import EndpointRefused

SHOWN = 300
"""Characters of what a server says that are shown."""

_CONTEXT = re.compile(
    r"context[ _](length|window|size)|maximum context|too many tokens|max_model_len|"
    r"(prompt|input) (is )?(too long|exceeds)|longer than the maximum",
    re.IGNORECASE,
)
_SCHEMA = re.compile(
    r"response_format|json_schema|structured[ _]output|guided[ _]|grammar|invalid schema", re.IGNORECASE
)
_IMAGES = re.compile(r"image|vision|audio|multimodal|multi-modal|content part", re.IGNORECASE)
_QUOTA = re.compile(r"insufficient_quota|billing|credit balance|exceeded your current quota", re.IGNORECASE)


def is_about_schema(words: str) -> bool:
    """Say whether a server that refuses a request speaks of its schema."""
    return _SCHEMA.search(words) is not None


class RowError(Exception):
    """A row that has no answer. The class says why."""


class ContextTooLong(RowError):
    """The prompt, with what may be answered, is longer than the model takes."""


class RequestRefused(RowError):
    """The server takes this request for a bad one."""


class Truncated(RowError):
    """The answer ended because it reached ``max_tokens``."""


class Filtered(RowError):
    """The server holds the answer back."""


class NoText(RowError):
    """The answer has no text."""


class InvalidAnswer(RowError):
    """The answer is not what ``schema=`` asks for, and repairs did not help."""


class BadRow(RowError):
    """The row cannot be made a request of."""


class RateLimited(RowError):
    """The server said again and again that there were too many requests."""


class ServerFailed(RowError):
    """The server failed again and again at this request."""


class NoAnswer(RowError):
    """No answer came in time, again and again."""


class ConnectionLost(RowError):
    """The connection broke again and again."""


class Malformed(RowError):
    """The server answered again and again with something that is no answer."""


class Again(Exception):
    """Not answered, and worth another try: after ``wait`` seconds, if the server said so."""

    def __init__(
        self, kind: type[RowError], said: str, *, wait: float | None = None, overloaded: bool = False
    ) -> None:
        super().__init__(said)
        self.kind = kind
        self.wait = wait
        self.overloaded = overloaded


def json_of(said: bytes) -> Any:
    """Return what a server says as JSON; None for what is none, or has no end of brackets.

    Models cut characters in two, and servers hand on the half that there is. UTF-8 has no such thing: it becomes
    U+FFFD, the sign for a character that is not known.

    >>> json_of(rb'{"text": "cut \\ud83d"}'), json_of(b"<html>")
    ({'text': 'cut \ufffd'}, None)
    """
    try:
        data = json.loads(said)
        if b"\\ud" in said or b"\\uD" in said:
            text = json.dumps(data, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
            data = json.loads(text.decode("utf-16-le", "replace"))
    except (ValueError, RecursionError):
        return None
    return data


def error_of(body: bytes) -> tuple[str, str]:
    """Return the message and the code of an error in its usual forms, or what the server said at all."""
    text = body[:20_000].decode("utf-8", "replace").strip()
    message, code = text, ""
    parsed = json_of(text.encode())
    if parsed is not None:
        error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
        if isinstance(error, dict):
            message = str(error.get("message") or error.get("detail") or text)
            code = " ".join(str(error[name]) for name in ("code", "type", "param") if error.get(name))
        else:
            message = str(error)
    return shortened(" ".join(message.split()), SHOWN) or "nothing", code


def judged(
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    *,
    where: str,
    request: Mapping[str, Any],
    keyed: bool = True,
) -> Exception:
    """Return what an answer with this status means: ``Again``, a ``RowError``, or the end of the run."""
    message, code = error_of(body)
    said = f"{message!r}" if message != "nothing" else "no reason"
    all_words = f"{message} {code}"
    if status == 429:
        if _QUOTA.search(all_words):
            return EndpointRefused(
                f"{where} has no quota left for this key (429): it says {said}. Nothing more was sent. Add credit or "
                "raise the limit there, and run the same program again."
            )
        wait = retry_after(headers)
        return Again(RateLimited, f"429, {said}", wait=wait, overloaded=True)
    if status in (408, 409, 425) or status >= 500:
        overloaded = status in (500, 502, 503, 504, 529)
        return Again(ServerFailed, f"{status}, {said}", wait=retry_after(headers), overloaded=overloaded)
    if status in (401, 403):
        check = (
            "Check the key, by the environment variable that api_key_env= names, and what it may be used for."
            if keyed
            else "No key was sent: say which environment variable holds it, by api_key_env='NAME'."
        )
        return EndpointRefused(
            f"{where} does not let us in ({status}): it says {said}. Nothing was tried again. {check}"
        )
    if status in (404, 405):
        return EndpointRefused(
            f"{where} does not know what was asked for ({status}): it says {said}. Check base_url=, "
            "which usually ends "
            f"with '/v1', and model={str(request.get('model'))!r}: the server lists its models under "
            "/models. Nothing was tried again."
        )
    if 300 <= status < 400:
        target = headers.get("Location", "")
        return EndpointRefused(
            f"{where} sends us elsewhere "
            f"({status}{f', to {shortened(target, 200)}' if target else ''}), and keys are "
            "not taken elsewhere. Give the address itself as base_url=."
        )
    return _refused(status, said, all_words, where, request)


def _refused(status: int, said: str, words: str, where: str, request: Mapping[str, Any]) -> Exception:
    """Judge a request that was refused as such, with 400, 413, 422 or the like."""
    if "model" in words.lower() and re.search(
        r"not (found|exist)|does not exist|unknown model", words, re.IGNORECASE
    ):
        return EndpointRefused(
            f"{where} has no model {str(request.get('model'))!r} ({status}): it says {said}. Nothing was tried again."
        )
    if _CONTEXT.search(words) or status == 413:
        return ContextTooLong(f"the prompt is too long for the model ({status}): the server says {said}")
    if ("response_format" in request or "structured_outputs" in request) and is_about_schema(words):
        return EndpointRefused(
            f"{where} refuses the schema ({status}): it says {said}. Simplify schema=, or say guided=False: then the "
            "model is only told of it, and its answers are checked and repaired here."
        )
    if _IMAGES.search(words):
        messages = json.dumps(request.get("messages", ""))
        for part, noun in (("image_url", "images"), ("input_audio", "sounds")):
            if part in messages:
                return EndpointRefused(
                    f"{where} takes no {noun} ({status}): it says {said}. Ask a model that takes them, or leave "
                    "them out of the messages."
                )
    return RequestRefused(f"the server refuses the request ({status}): it says {said}")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds a server wants to be left alone; None if it does not say.

    >>> retry_after({"Retry-After": "2"}), retry_after({"retry-after-ms": "250"}), retry_after({})
    (2.0, 0.25, None)
    """
    values = {name.lower(): value for name, value in headers.items()}
    with contextlib.suppress(KeyError, ValueError):
        return max(0.0, float(values["retry-after-ms"]) / 1000)
    text = values.get("retry-after")
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


_SPAN = re.compile(r"([\d.]+)(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time as ``x-ratelimit`` headers say it; None for what is none.

    >>> seconds_of("6m0s"), seconds_of("20ms"), seconds_of("12"), seconds_of("soon")
    (360.0, 0.02, 12.0, None)
    """
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return None
    try:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    except ValueError:
        return None


def pause_of(headers: Mapping[str, str]) -> float | None:
    """Return for how long nothing is left of a rate, by the ``x-ratelimit`` headers of an answer.

    >>> pause_of({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s"})
    1.0
    """
    pauses = []
    for what in ("requests", "tokens"):
        remaining, reset = (headers.get(f"x-ratelimit-{name}-{what}") for name in ("remaining", "reset"))
        if remaining is not None and reset is not None and remaining.strip() == "0":
            seconds = seconds_of(reset)
            if seconds:
                pauses.append(min(seconds, 60.0))
    return max(pauses) if pauses else None
