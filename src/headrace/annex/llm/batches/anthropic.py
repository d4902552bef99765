"""Anthropic's batch service."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import IO, Any

import msgspec

from headrace.annex.llm.batch_lines import BatchLine
from headrace.annex.llm.batches.journal import Part
from headrace.annex.llm.batches.service import (
    CLOCKS_DIFFER,
    PAGE,
    Batch,
    LineOutcome,
    Unsure,
    name_of,
    number_of,
    object_of,
    table,
    text,
)
from headrace.annex.llm.client import JSON, Client

_AGAIN_TYPES = ("api_error", "overloaded_error", "rate_limit_error", "timeout_error")


class AnthropicBatches:
    """Anthropic's: a batch is made of requests in one body; nothing can be tagged but each request.

    A batch that was made without our hearing of it is looked for among those of that time and size, and known by the
    names of its requests once it has ended. https://docs.anthropic.com/en/api/creating-message-batches
    """

    most_lines = 100_000
    most_bytes = 256_000_000
    uploads = False

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(self, file: IO[bytes], part: Part, lines: Iterable[BatchLine]) -> None:
        """Write one object."""
        file.write(b'{"requests":[')
        for i, line in enumerate(lines):
            said = {"custom_id": name_of(part, line.number), "params": line.body}
            file.write(b"," * (i > 0) + msgspec.json.encode(said))
        file.write(b"]}")

    async def upload(self, part: Part, path: str) -> str:
        """Nothing is uploaded by itself."""
        raise AssertionError

    async def find_file(self, part: Part) -> str | None:
        """Nothing is uploaded by itself."""
        return None

    async def create(self, part: Part, path: str) -> Batch:
        """Send the requests."""
        with open(path, "rb") as file:
            headers = {**JSON, "Idempotency-Key": part.tag}
            return _anthropic_batch(
                table(await self._client.call("POST", "/messages/batches", data=file, headers=headers))
            )

    async def find(self, part: Part, size: int, known: set[str]) -> Batch | None:
        """Look through the batches of that time for one of so many requests that is no other part's, and ours.

        Raises ``Again`` while one of them may be ours, and its requests cannot be seen yet.
        """
        unsure = ""
        async for each in self._listed(part.since):
            counts = each.get("request_counts")
            counts = counts.values() if isinstance(counts, dict) else ()
            batch = _anthropic_batch(each)
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

    async def look(self, batch: str) -> Batch:
        """Ask how it is."""
        return _anthropic_batch(table(await self._client.call("GET", f"/messages/batches/{batch}")))

    async def _is_of(self, part: Part, batch: Batch) -> bool:
        """Look at the first of its results."""
        rest = b""
        pieces = self._client.stream("GET", f"/messages/batches/{batch.id}/results")
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                rest += piece
                if b"\n" in rest:
                    break
        first = rest.partition(b"\n")[0]
        return bool(first) and number_of(part, self.outcome(first).name) is not None

    async def download(self, batch: Batch, file: IO[bytes]) -> None:
        """Read the results."""
        async for piece in self._client.stream("GET", f"/messages/batches/{batch.id}/results"):
            file.write(piece)

    def outcome(self, line: bytes) -> LineOutcome:
        """Read a line of them."""
        return _anthropic_outcome(object_of(line))

    async def forget(self, part: Part) -> None:
        """Leave the batch there: it ends by itself after 29 days."""

    async def _listed(self, since: float) -> AsyncIterator[dict[str, Any]]:
        after: str | None = None
        while True:
            page = {"limit": str(PAGE)} | ({"after_id": after} if after else {})
            found = table(await self._client.call("GET", "/messages/batches", params=page))
            for each in found.get("data") or ():
                if _seconds(each.get("created_at")) < since - CLOCKS_DIFFER:
                    return
                yield each
            if not found.get("has_more"):
                return
            after = text(found, "last_id")


def _anthropic_batch(data: Mapping[str, Any]) -> Batch:
    counts = data.get("request_counts")
    counts = counts if isinstance(counts, dict) else {}
    done = sum(value for name, value in counts.items() if name != "processing" and isinstance(value, int))
    if data.get("processing_status") != "ended":
        return Batch(text(data, "id"), "open", done)
    return Batch(text(data, "id"), "cancelled" if counts.get("canceled") else "ended", done)


def _anthropic_outcome(line: Mapping[str, Any]) -> LineOutcome:
    name, result = str(line.get("custom_id")), line.get("result")
    result = result if isinstance(result, dict) else {}
    kind, message = result.get("type"), result.get("message")
    if kind == "succeeded" and isinstance(message, dict):
        return LineOutcome(name, message)
    if kind == "errored":
        error = result.get("error")
        error = error.get("error", error) if isinstance(error, dict) else {}
        code = str(error.get("type") or "error") if isinstance(error, dict) else "error"
        said = str(error.get("message") or error) if isinstance(error, dict) else str(error)
        return LineOutcome(name, None, code, said, code in _AGAIN_TYPES)
    return LineOutcome(name, None, str(kind), f"the request was {kind}", again=True)


def _seconds(said: Any) -> float:
    """Return a time of ISO 8601 in seconds since 1970; now for what is none, so that the search goes on."""
    try:
        return datetime.fromisoformat(str(said)).timestamp()
    except ValueError:
        return time.time()
