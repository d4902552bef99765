"""The batch services of OpenAI and Anthropic: what they are asked, what they say, and calls that are patient."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any, Literal, TypeVar

import msgspec

from headrace.annex.llm.anthropic_form import chat_of, params_of
from headrace.annex.llm.batch_ledger import Part
from headrace.annex.llm.client import JSON, Client
from headrace.annex.llm.refusals import Again, Malformed, RateLimited, RowError, json_of
from headrace.core.process import backoff
from headrace.errors import EndpointRefused, EndpointUnavailable

CLOCKS_DIFFER = 86_400.0
"""Seconds: a batch is looked for among those made since it was begun, by a clock that may differ from ours."""
PAGE = 100


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its service says it is. ``why``: what it failed with; ``wrong``: which lines, by their places.

    ``full``: it was not taken as others wait already. ``results`` are where its answers and errors are.
    """

    id: str
    state: Literal["open", "ended", "failed", "cancelled", "gone"]
    done: int = 0
    results: tuple[str, ...] = ()
    why: str = ""
    wrong: Mapping[int, str] = field(default_factory=dict)
    full: bool = False


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """What became of one line, as a response to a request: status and content. Status 0: nobody has answered it."""

    name: str
    status: int
    data: Mapping[str, Any]


def _seconds(said: Any) -> float:
    """Return a time in seconds since 1970, of ISO 8601 too; now for what is none, so that the search goes on."""
    try:
        return (
            float(said) if isinstance(said, (int, float)) else datetime.fromisoformat(str(said)).timestamp()
        )
    except ValueError:
        return time.time()


def name_of(part: Part, number: int) -> str:
    """Return the ``custom_id`` of a line there, which says whose it is.

    >>> name_of(Part(3, "open", "headrace-ab12-3"), 17)
    'headrace-ab12-3-17'
    """
    return f"{part.tag}-{number}"


def number_of(part: Part, name: str) -> int | None:
    """Return the number of the line that was sent by this name; None for another's."""
    tag, _, number = name.rpartition("-")
    return int(number) if tag == part.tag and number.isascii() and number.isdigit() else None


class Unsure(Again):
    """A batch is at work that may be the one that is looked for: it can be seen once it has ended."""

    def __init__(self, batch: str) -> None:
        super().__init__(Malformed, f"the batch {batch} may be ours, and has not ended")


def table(read: bytes) -> dict[str, Any]:
    """Return the object that a server says; raises ``Again`` for something else."""
    data = json_of(read)
    if not isinstance(data, dict):
        raise Again(Malformed, f"200, and no JSON object ({len(read):,} bytes)")
    return data


def text(data: Mapping[str, Any], name: str) -> str:
    """Return a text of it that has to be there; raises ``Again`` where it is not."""
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise Again(Malformed, f"200, and no {name!r} in the answer")
    return value


def object_of(line: bytes) -> dict[str, Any]:
    """Return the object of a line; an empty one, of nobody's request, for what is none."""
    found = json_of(line)
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------- OpenAI


class OpenAIBatches:
    """OpenAI's: a file of requests is uploaded, a batch is made of it, its answers are files.

    Methods ask the server once, and raise ``Again`` where that may help. ``place``: the address of the batches.
    ``after``: the parameter by which a list goes on. ``uploads``: a file is sent before its batch is made. ``url``:
    where requests of batches go. https://platform.openai.com/docs/api-reference/batch
    """

    most_lines = 50_000
    most_bytes = 200_000_000
    uploads = True
    place = "/batches"
    after = "after"

    def __init__(self, client: Client, url: str) -> None:
        self._client, self._url = client, url

    async def _listed(self, path: str, since: float, **params: str) -> AsyncIterator[dict[str, Any]]:
        """Yield what is listed, the newest first, until it is older."""
        last: str | None = None
        while True:
            page = {**params, "limit": str(PAGE)} | ({self.after: last} if last else {})
            found = table(await self._client.call("GET", path, params=page))
            each: dict[str, Any] = {}
            for each in found.get("data") or ():
                if _seconds(each.get("created_at")) < since - CLOCKS_DIFFER:
                    return
                yield each
            if not found.get("has_more") or not each:
                return
            last = text(each, "id")

    async def look(self, batch: str) -> Batch:
        """Return how a batch is."""
        return self.batch_of(table(await self._client.call("GET", f"{self.place}/{batch}")))

    def write(self, file: IO[bytes], part: Part, requests: Iterable[tuple[int, bytes]]) -> None:
        """Write lines of JSON."""
        for number, body in requests:
            name = name_of(part, number)
            said = {"custom_id": name, "method": "POST", "url": self._url, "body": msgspec.Raw(body)}
            file.write(msgspec.json.encode(said) + b"\n")

    async def upload(self, part: Part, path: str) -> str:
        """Send a file."""
        import aiohttp

        with open(path, "rb") as file:
            form = aiohttp.FormData({"purpose": "batch"})
            form.add_field("file", file, filename=f"{part.tag}.jsonl", content_type="application/jsonl")
            headers = {"Idempotency-Key": f"{part.tag}-file"}
            return text(table(await self._client.call("POST", "/files", data=form, headers=headers)), "id")

    async def find_file(self, part: Part) -> str | None:
        """Look through the files for batches, the newest first."""
        async for each in self._listed("/files", part.since, purpose="batch"):
            if each.get("filename") == f"{part.tag}.jsonl":
                return text(each, "id")
        return None

    async def create(self, part: Part, path: str) -> Batch:
        """Make a batch of a file; its metadata say whose it is."""
        asked = {
            "input_file_id": part.file,
            "endpoint": self._url,
            "completion_window": "24h",
            "metadata": {"headrace": part.tag},
        }
        headers, content = {**JSON, "Idempotency-Key": part.tag}, msgspec.json.encode(asked)
        return self.batch_of(
            table(await self._client.call("POST", self.place, data=content, headers=headers))
        )

    async def find(self, part: Part, size: int, known: set[str]) -> Batch | None:
        """Look through the batches for the one with our metadata."""
        async for each in self._listed(self.place, part.since):
            metadata = each.get("metadata")
            if isinstance(metadata, dict) and metadata.get("headrace") == part.tag:
                return self.batch_of(each)
        return None

    async def download(self, batch: Batch, file: IO[bytes]) -> None:
        """Read the files of answers and of errors."""
        for name in batch.results:
            async for piece in self._client.stream("GET", f"/files/{name}/content"):
                file.write(piece)
            file.write(b"\n")

    async def forget(self, part: Part) -> None:
        """Delete the file that was uploaded."""
        await self._client.call("DELETE", f"/files/{part.file}")

    @staticmethod
    def batch_of(data: Mapping[str, Any]) -> Batch:
        """Read how a batch is."""
        status, counts = str(data.get("status")), data.get("request_counts")
        counts = counts if isinstance(counts, dict) else {}
        done = sum(value for name in ("completed", "failed") if isinstance(value := counts.get(name), int))
        files = tuple(str(data[name]) for name in ("output_file_id", "error_file_id") if data.get(name))
        id_ = text(data, "id")
        if status in ("completed", "expired"):
            return Batch(id_, "ended", done, files)
        if status == "cancelled":
            return Batch(id_, "cancelled", done, files)
        if status == "failed":
            errors = data.get("errors")
            listed = errors.get("data") if isinstance(errors, dict) else None
            found = [each for each in listed or () if isinstance(each, dict)]
            wrong = {
                each["line"]: f"{each.get('code') or 'error'}: {each.get('message')}"
                for each in found
                if isinstance(each.get("line"), int)
            }
            why = "; ".join(dict.fromkeys(f"{each.get('code')}: {each.get('message')}" for each in found[:3]))
            full = any(each.get("code") == "token_limit_exceeded" for each in found)
            return Batch(id_, "failed", done, files, why or "it does not say why", wrong, full)
        return Batch(id_, "open", done)

    @staticmethod
    def outcome(line: bytes) -> LineOutcome:
        """Read a line of the answers or the errors."""
        said = object_of(line)
        name, response = str(said.get("custom_id")), said.get("response")
        if not isinstance(response, dict):
            return LineOutcome(name, 0, {"error": said.get("error")})
        status, body = response.get("status_code"), response.get("body")
        if isinstance(status, int) and isinstance(body, dict):
            return LineOutcome(name, status, body)
        return LineOutcome(name, 0, {"error": f"{status}: {body}"})


# ---------------------------------------------------------------- Anthropic

_STATUS = {"api_error": 500, "overloaded_error": 529, "rate_limit_error": 429, "timeout_error": 504}


class AnthropicBatches(OpenAIBatches):
    """Anthropic's: a batch is made of requests in one body; nothing can be tagged but each request.

    A batch that was made without our hearing of it is looked for among those of that time and size, and known by the
    names of its requests once it has ended. https://docs.anthropic.com/en/api/creating-message-batches
    """

    most_lines = 100_000
    most_bytes = 256_000_000
    uploads = False
    place = "/messages/batches"
    after = "after_id"

    def write(self, file: IO[bytes], part: Part, requests: Iterable[tuple[int, bytes]]) -> None:
        """Write one object."""
        file.write(b'{"requests":[')
        for i, (number, body) in enumerate(requests):
            said = {"custom_id": name_of(part, number), "params": params_of(msgspec.json.decode(body))}
            file.write(b"," * (i > 0) + msgspec.json.encode(said))
        file.write(b"]}")

    async def create(self, part: Part, path: str) -> Batch:
        """Send the requests."""
        with open(path, "rb") as file:
            headers = {**JSON, "Idempotency-Key": part.tag}
            return self.batch_of(
                table(await self._client.call("POST", self.place, data=file, headers=headers))
            )

    async def find(self, part: Part, size: int, known: set[str]) -> Batch | None:
        """Look through the batches of that time for one of so many requests that is no other part's, and ours.

        Raises ``Again`` while one of them may be ours, and its requests cannot be seen yet.
        """
        unsure = ""
        async for each in self._listed(self.place, part.since):
            counts = each.get("request_counts")
            counts = counts.values() if isinstance(counts, dict) else ()
            batch = self.batch_of(each)
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

    async def _is_of(self, part: Part, batch: Batch) -> bool:
        """Look at the first of its results."""
        rest = b""
        pieces = self._client.stream("GET", f"{self.place}/{batch.id}/results")
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                rest += piece
                if b"\n" in rest:
                    break
        first = rest.partition(b"\n")[0]
        return bool(first) and number_of(part, self.outcome(first).name) is not None

    async def download(self, batch: Batch, file: IO[bytes]) -> None:
        """Read the results."""
        async for piece in self._client.stream("GET", f"{self.place}/{batch.id}/results"):
            file.write(piece)

    @staticmethod
    def batch_of(data: Mapping[str, Any]) -> Batch:
        """Read how a batch is."""
        counts = data.get("request_counts")
        counts = counts if isinstance(counts, dict) else {}
        done = sum(value for name, value in counts.items() if name != "processing" and isinstance(value, int))
        if data.get("processing_status") != "ended":
            return Batch(text(data, "id"), "open", done)
        return Batch(text(data, "id"), "cancelled" if counts.get("canceled") else "ended", done)

    @staticmethod
    def outcome(line: bytes) -> LineOutcome:
        """Read a line of the results."""
        said = object_of(line)
        name, result = str(said.get("custom_id")), said.get("result")
        result = result if isinstance(result, dict) else {}
        kind, message = result.get("type"), result.get("message")
        if kind == "succeeded" and isinstance(message, dict):
            return LineOutcome(name, 200, chat_of(message))
        if kind != "errored":
            return LineOutcome(name, 0, {"error": f"the request was {kind}"})
        error = result.get("error")
        error = error.get("error", error) if isinstance(error, dict) else error
        status = _STATUS.get(str(error.get("type")), 400) if isinstance(error, dict) else 400
        return LineOutcome(name, status, {"error": error})


SERVICES: dict[str, type[OpenAIBatches]] = {"openai": OpenAIBatches, "anthropic": AnthropicBatches}

# ---------------------------------------------------------------- calls: patient, and careful with what is done once

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
SETTLED = 15.0
"""Seconds after which what a server has done, without our hearing of it, is in its lists."""
UNSURE_WAIT = 60.0
SILENCE = 3600.0
"""Seconds without any answer after which the run ends; it may go on."""


class PatientCalls:
    """Calls to one server. One that never answered is tried ``tries`` times more."""

    def __init__(self, where: str, tries: int) -> None:
        self._where, self._tries = where, tries
        self._heard = time.monotonic()
        self._answered = False

    async def once(self, do: Callable[[], Awaitable[T]], find: Callable[[], Awaitable[T | None]]) -> T:
        """Have something done once: where nobody knows whether it was, it is looked for before it is done again."""
        for tries in itertools.count():
            done = await self._tried(do, tries)
            if not isinstance(done, Again):
                return done
            if done.kind is not RateLimited:  # else it is certainly not done
                found = await self.found(find, time.time())
                if found is not None:
                    return found
        raise AssertionError

    async def found(self, find: Callable[[], Awaitable[T | None]], since: float) -> T | None:
        """Look for something that may have been done; again once it has to be listed, if it is younger."""
        found = await self.patiently(find)
        left = since + SETTLED - time.time()
        if found is None and left > 0:
            await asyncio.sleep(left)
            found = await self.patiently(find)
        return found

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, and ask again while that may help."""
        for tries in itertools.count():
            said = await self._tried(ask, tries)
            if not isinstance(said, Again):
                return said
        raise AssertionError

    async def _tried(self, ask: Callable[[], Awaitable[T]], tries: int) -> T | Again:
        """Ask once; return what is said, or why to ask again, when it is time for that."""
        try:
            said = await ask()
        except Unsure as unsure:
            self._heard = time.monotonic()
            await asyncio.sleep(UNSURE_WAIT)
            return unsure
        except Again as again:
            await self._wait(again, tries)
            return again
        except RowError as error:
            raise EndpointRefused(
                f"{self._where} refuses the batch: {error}. What was answered before is kept: fix that, and run the "
                "same again."
            ) from None
        self._heard, self._answered = time.monotonic(), True
        return said

    async def _wait(self, again: Again, tries: int) -> None:
        """Wait before the next try; raises where nobody has answered for too long."""
        if again.kind is RateLimited and self._answered:
            self._heard = time.monotonic()
        silent = time.monotonic() - self._heard
        if silent > SILENCE or (not self._answered and tries >= self._tries):
            raise EndpointUnavailable(
                f"{self._where} does not answer: {again}. What was sent goes on there, and what was answered is "
                "kept: run the same again when it can be reached."
            )
        own = backoff(tries + 1, FIRST_WAIT, LONGEST_WAIT)
        await asyncio.sleep(own if again.wait is None else min(again.wait, SILENCE))
