"""What an endpoint said instead of an answer, or what failed on the way to it: whose fault it is, and whether to ask
again."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from headrace.annex.llm.limiter import pause_of, retry_after, seconds_of
from headrace.core.failures import shortened
from headrace.errors import EndpointRefused, EndpointUnavailable

SHOWN = 300
"""Characters of what a server says that are shown."""
LONGEST_TOLD = 60.0
"""Seconds: the longest wait that words of a message may ask for. Headers may ask for more."""

_CONTEXT = re.compile(
    r"context[ _](length|window|size)|maximum context|too many tokens|max_model_len|"
    r"(prompt|input) (is )?(too long|exceeds)|longer than the maximum",
    re.IGNORECASE,
)
_SCHEMA = re.compile(
    r"response_format|json_schema|structured[ _]output|guided[ _]|grammar|invalid schema", re.IGNORECASE
)
_CREDIT = re.compile(r"insufficient balance|credit balance|exceeded your current quota", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"model.{0,200}(not (found|exist)|does not exist)|unknown model|not a valid model",
    re.IGNORECASE | re.DOTALL,
)
_LATER = re.compile(r"\b(?:try again|retry) (?:in|after) ((?:[\d.]+(?:ms|s|m|h))+)", re.IGNORECASE)

# Codes and types of errors are the server's own words. The rest of a message may repeat what a row says.
_NO_MONEY = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error"}
"""See platform.openai.com/docs/guides/error-codes, and for ``billing_error`` docs.anthropic.com/en/api/errors."""
_MODEL_CODES = {"model_not_found", "model_not_exist", "invalid_model", "deploymentnotfound"}
_FILTER_CODES = {"content_filter", "content_policy_violation", "data_inspection_failed"}


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


class Filtered(RequestRefused):
    """A filter of the server holds the answer back, or refuses the prompt."""


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
    """Not answered, and worth another try: after ``wait`` seconds, if the server said so.

    ``paid``: an answer may have been made that never came, and it may have to be paid for. ``closed``: there is
    no server at the address.
    """

    def __init__(
        self,
        kind: type[RowError],
        said: str,
        *,
        wait: float | None = None,
        overloaded: bool = False,
        paid: bool = False,
        closed: bool = False,
    ) -> None:
        super().__init__(said)
        self.kind = kind
        self.wait = wait
        self.overloaded = overloaded
        self.paid = paid
        self.closed = closed


class Doubtful(Exception):
    """A refusal that is meant for this request or for all: a plain request finds out, see ``plain_request``.

    ``row`` is the error of the row if a plain request is answered, ``run`` what ends the run if it is not.
    """

    def __init__(self, row: RowError, run: EndpointRefused) -> None:
        super().__init__(str(run))
        self.row = row
        self.run = run


def plain_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request to the same model that holds nothing of the row, and asks for one token.

    >>> plain_request({"model": "m", "messages": [{"role": "user", "content": "DROP TABLE"}], "temperature": 0})
    {'model': 'm', 'messages': [{'role': 'user', 'content': 'Hi'}], 'temperature': 0, 'max_tokens': 1}
    >>> plain_request({"model": "m", "input": ["one", "two"]})
    {'model': 'm', 'input': ['Hi']}
    """
    plain = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    if "input" in plain:
        return {**plain, "input": ["Hi"]}
    plain["messages"] = [{"role": "user", "content": "Hi"}]
    plain["max_completion_tokens" if "max_completion_tokens" in plain else "max_tokens"] = 1
    return plain


def json_of(said: bytes) -> Any:
    """Return what a server says as JSON; None for what is none, or has no end of brackets.

    Models cut characters in two, and servers hand on the half that there is. UTF-8 has no such thing: it becomes
    U+FFFD, the sign for a character that is not known. So does a byte that is no UTF-8: the answer has been paid for.

    >>> json_of(rb'{"text": "cut \\ud83d"}'), json_of(b'{"text": "cut \\xff"}'), json_of(b"<html>")
    ({'text': 'cut \ufffd'}, {'text': 'cut \ufffd'}, None)
    """
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(said)  # what follows takes all that this does not
    try:
        data = json.loads(said.decode(json.detect_encoding(said), "replace"))
        if b"\\ud" in said or b"\\uD" in said:
            text = json.dumps(data, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
            data = json.loads(text.decode("utf-16-le", "replace"))
    except (ValueError, RecursionError):
        return None
    return data


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a server says instead of an answer: its message, its codes in small letters, all of its error."""

    status: int
    message: str
    codes: frozenset[str]
    error: Mapping[str, Any]

    @property
    def said(self) -> str:
        """Return status and message, for messages of ours."""
        words = f"it says {self.message!r}" if self.message != "nothing" else "it gives no reason"
        return f"({self.status}): {words}"

    @property
    def details(self) -> list[Mapping[str, Any]]:
        """Return what Google's servers add: google.rpc.RetryInfo, google.rpc.QuotaFailure and the like."""
        found = self.error.get("details")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Return what OpenRouter adds: ``reasons`` of a moderation, ``limit_source`` of a budget."""
        found = self.error.get("metadata")
        return found if isinstance(found, dict) else {}


def refusal_of(status: int, body: bytes) -> Refusal:
    """Read an error in its usual forms: OpenAI's, Anthropic's, Google's (which may be in a list), FastAPI's, text."""
    text = body[:20_000].decode("utf-8", "replace").strip()
    parsed = json_of(text.encode())
    parsed = parsed[0] if isinstance(parsed, list) and parsed else parsed
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    message = text if error is None or isinstance(error, dict) else str(error)
    codes: set[str] = set()
    if isinstance(error, dict):
        message = str(error.get("message") or error.get("detail") or text)
        codes = {str(error[name]).lower() for name in ("code", "type", "status") if error.get(name)}
        if error.get("param") == "model":
            codes.add("invalid_model")
    message = shortened(" ".join(message.split()), SHOWN) or "nothing"
    return Refusal(status, message, frozenset(codes), error if isinstance(error, dict) else {})


def judged(
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    *,
    where: str,
    request: Mapping[str, Any],
    keyed: bool = True,
) -> Exception:
    """Return what a response with this status means: ``Again``, a ``RowError``, ``Doubtful``, or the end of the run.

    What ends a run is judged by the status, and by codes that the server chose. Where a row may have had its part in
    it, as in a message that repeats a prompt, it is ``Doubtful``.
    """
    refusal = refusal_of(status, body)
    said, codes = refusal.said, refusal.codes
    wait = retry_after(headers)
    # openrouter.ai/docs/use-cases/limits: a 402 with Retry-After passes, a 403 with limit_source does not.
    budget = status == 403 and "limit_source" in refusal.metadata
    if (status == 402 and wait is None) or budget or codes & _NO_MONEY or _for_today(refusal):
        return EndpointRefused(
            f"{where} answers no more for this key, as its credit or its quota is used up {said}. Nothing was sent "
            "again. Add credit or raise the limit there, or wait until it is renewed, and run the same program "
            "again: what was answered is kept."
        )
    if status in (402, 429):
        wait = told_wait(refusal) if wait is None else wait
        wait = pause_of(headers) if wait is None else wait
        return Again(RateLimited, f"{status}, {refusal.message!r}", wait=wait, overloaded=True)
    if status in (408, 409, 425) or status >= 500:
        overloaded = status in (500, 502, 503, 504, 529)
        # Only these say that nothing was begun; else an answer may have been made, and be charged for.
        paid = status not in (409, 425, 503, 529)
        return Again(
            ServerFailed, f"{status}, {refusal.message!r}", wait=wait, overloaded=overloaded, paid=paid
        )
    if status == 401:
        return _no_entry(refusal, where, keyed)
    if codes & _FILTER_CODES or (status == 403 and refusal.metadata.keys() & {"reasons", "flagged_input"}):
        return Filtered(f"the server's filter refuses the prompt {said}")
    row = _refused(refusal)
    run = _run_of(refusal, headers, where, request, keyed)
    if run is None:
        return row
    return run if codes & _MODEL_CODES else Doubtful(row, run)


def _for_today(refusal: Refusal) -> bool:
    """Say whether Google's quota of a day is used up: its RetryInfo names a minute all the same."""
    violations = [each for detail in refusal.details for each in detail.get("violations") or ()]
    return refusal.status == 429 and any(
        "PerDay" in str(each.get("quotaId")) for each in violations if isinstance(each, dict)
    )


def _no_entry(refusal: Refusal, where: str, keyed: bool) -> EndpointRefused:
    check = (
        "Check the key, by the environment variable that api_key_env= names, and what it may be used for."
        if keyed
        else "No key was sent: say which environment variable holds it, by api_key_env='NAME'."
    )
    return EndpointRefused(f"{where} does not let us in {refusal.said}. Nothing was tried again. {check}")


def _run_of(
    refusal: Refusal, headers: Mapping[str, str], where: str, request: Mapping[str, Any], keyed: bool
) -> EndpointRefused | None:
    """Return what ends the run if this refusal is meant for all requests; None for one that is the row's."""
    status, said = refusal.status, refusal.said
    model = f"model={str(request.get('model'))!r}"
    if status == 403:
        return _no_entry(refusal, where, keyed)
    if refusal.codes & _MODEL_CODES or _NO_MODEL.search(refusal.message):
        return EndpointRefused(
            f"{where} does not have {model} {said}. The server lists its models under /models. Nothing was tried "
            "again."
        )
    if status in (404, 405):
        return EndpointRefused(
            f"{where} does not know what was asked for {said}. Check base_url=, which usually ends with '/v1', and "
            f"{model}. Nothing was tried again."
        )
    if 300 <= status < 400:
        target = headers.get("Location", "")
        return EndpointRefused(
            f"{where} sends us elsewhere ({status}{f', to {shortened(target, 200)}' if target else ''}), and keys "
            "are not taken elsewhere. Give the address itself as base_url=."
        )
    if ("response_format" in request or "structured_outputs" in request) and is_about_schema(
        f"{refusal.message} {refusal.error.get('param')}"
    ):
        return EndpointRefused(
            f"{where} refuses the schema {said}. Simplify schema=, or say guided=False: then the "
            "model is only told of it, and its answers are checked and repaired here."
        )
    if _CREDIT.search(refusal.message):  # Anthropic says so with 400 and invalid_request_error
        return EndpointRefused(
            f"{where} has no credit left for this key {said}. Nothing was sent again. Add credit there, and run the "
            "same program again: what was answered is kept."
        )
    return None


def _refused(refusal: Refusal) -> RowError:
    """Return the error of a row whose request was refused."""
    if refusal.status == 413 or _CONTEXT.search(f"{refusal.message} {' '.join(refusal.codes)}"):
        return ContextTooLong(f"the prompt is too long for the model {refusal.said}")
    return RequestRefused(f"the server refuses the request {refusal.said}")


def told_wait(refusal: Refusal) -> float | None:
    """Return how many seconds a body asks to wait: by Google's RetryInfo, else by the words of OpenAI and others.

    >>> told_wait(refusal_of(429, b'{"error": {"message": "Please try again in 1.2s."}}'))
    1.2
    """
    for detail in refusal.details:
        if "retryDelay" in detail:
            return seconds_of(str(detail["retryDelay"]))
    found = _LATER.search(refusal.message)
    seconds = seconds_of(found.group(1)) if found else None
    return None if seconds is None else min(seconds, LONGEST_TOLD)


def unavailable(again: Again, where: str, asked: str, *, heard: bool, patient: bool) -> EndpointUnavailable:
    """Return what ends a run where nobody is answered; ``patient``: the run waits as long as the server asks for."""
    said = (
        f"does not answer {'any more' if heard else 'any request'}: asked {asked}, the last time with this "
    )
    said += f"outcome: {again}"
    advice = "Check that the server runs and can be reached from this machine. When it does,"
    if again.wait is not None and not patient:
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() + again.wait))
        said = f"asks to send nothing for {again.wait:,.0f} seconds, longer than a run waits: {again}"
        advice = f"After {at},"
    elif again.closed:
        said = f"cannot be reached: {again}, asked {asked}"
    elif again.kind is NoAnswer:
        advice = "Check that the server runs and can be reached from this machine, or give it more time by timeout=."
        advice += " Then"
    return EndpointUnavailable(
        f"{where} {said}. {advice} run the same program again: what an output has, and what was answered for it, "
        "is kept."
    )


# ---------------------------------------------------------------- the way between here and a server


def proxy_of(server: SplitResult, where: str) -> str | None:
    """Return the proxy that the environment names for a server; raises ``EndpointRefused`` for no HTTP proxy."""
    proxy = getproxies().get(server.scheme, "")
    if not proxy or proxy_bypass(server.hostname or "") or proxy_bypass(server.netloc):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    with contextlib.suppress(ValueError):
        parts = urlsplit(proxy)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0):
            return proxy
    # The value may hold a password: it is not shown.
    raise EndpointRefused(
        f"{where} cannot be asked: the environment variable {server.scheme}_proxy holds no address of an HTTP proxy, "
        "such as http://proxy:3128. Nothing was sent. Correct it, or name the server in no_proxy."
    )


def failed_on_the_way(
    error: Exception, where: str, hidden: Callable[[str], str], seconds: float, timeout: float
) -> Exception:
    """Return what a failure between here and a server means; ``hidden`` takes the key out of a text."""
    import aiohttp

    if isinstance(error, TimeoutError):
        said = f"no answer in {seconds:,.1f} seconds (timeout={timeout:g})"
        return Again(NoAnswer, said, overloaded=True, paid=True)
    for_good = (aiohttp.ClientConnectorCertificateError, aiohttp.InvalidURL, aiohttp.ClientConnectorSSLError)
    if isinstance(error, for_good):
        plain = " A server without TLS has http:// in base_url=." if "WRONG_VERSION" in str(error) else ""
        return EndpointRefused(f"{where} cannot be asked: {hidden(str(error))}.{plain}")
    said = f"{type(error).__name__}: {hidden(str(error)) or type(error).__name__}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Again(
            ConnectionLost, f"there is no server of this name ({hidden(str(error.strerror))})", closed=True
        )
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return Again(ConnectionLost, "nothing listens there, as the connection is refused", closed=True)
    return Again(ConnectionLost, said, paid=not isinstance(error, aiohttp.ClientConnectorError))
