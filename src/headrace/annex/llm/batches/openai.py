"""OpenAI's batch service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import IO, Any

import msgspec

from headrace.annex.llm.batch_lines import BatchLine
from headrace.annex.llm.batches.journal import Part
from headrace.annex.llm.batches.service import (
    CLOCKS_DIFFER,
    PAGE,
    Batch,
    LineOutcome,
    name_of,
    object_of,
    table,
    text,
)
from headrace.annex.llm.client import JSON, Client

_AGAIN_STATUS = (408, 409, 425, 429)


class OpenAIBatches:
    """OpenAI's: a file of requests is uploaded, a batch is made of it, its answers are files.

    https://platform.openai.com/docs/api-reference/batch
    """

    most_lines = 50_000
    most_bytes = 200_000_000
    uploads = True

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(self, file: IO[bytes], part: Part, lines: Iterable[BatchLine]) -> None:
        """Write lines of JSON."""
        for line in lines:
            name = name_of(part, line.number)
            said = {"custom_id": name, "method": "POST", "url": part.url, "body": line.body}
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
            "endpoint": part.url,
            "completion_window": "24h",
            "metadata": {"headrace": part.tag},
        }
        headers = {**JSON, "Idempotency-Key": part.tag}
        return _openai_batch(
            table(
                await self._client.call("POST", "/batches", data=msgspec.json.encode(asked), headers=headers)
            )
        )

    async def find(self, part: Part, size: int, known: set[str]) -> Batch | None:
        """Look through the batches for the one with our metadata."""
        async for each in self._listed("/batches", part.since):
            metadata = each.get("metadata")
            if isinstance(metadata, dict) and metadata.get("headrace") == part.tag:
                return _openai_batch(each)
        return None

    async def look(self, batch: str) -> Batch:
        """Ask how it is."""
        return _openai_batch(table(await self._client.call("GET", f"/batches/{batch}")))

    async def download(self, batch: Batch, file: IO[bytes]) -> None:
        """Read the files of answers and of errors."""
        for name in batch.results:
            async for piece in self._client.stream("GET", f"/files/{name}/content"):
                file.write(piece)
            file.write(b"\n")

    def outcome(self, line: bytes) -> LineOutcome:
        """Read a line of either."""
        return _openai_outcome(object_of(line))

    async def forget(self, part: Part) -> None:
        """Delete the file that was uploaded."""
        await self._client.call("DELETE", f"/files/{part.file}")

    async def _listed(self, path: str, since: float, **params: str) -> AsyncIterator[dict[str, Any]]:
        """Yield what is listed, the newest first, until it is older."""
        after: str | None = None
        while True:
            page = {**params, "limit": str(PAGE)} | ({"after": after} if after else {})
            found = table(await self._client.call("GET", path, params=page))
            each: dict[str, Any] = {}
            for each in found.get("data") or ():
                yield each
            made = each.get("created_at")
            if not found.get("has_more") or not each:
                return
            if isinstance(made, (int, float)) and made < since - CLOCKS_DIFFER:
                return
            after = text(each, "id")


def _openai_batch(data: Mapping[str, Any]) -> Batch:
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


def _openai_outcome(line: Mapping[str, Any]) -> LineOutcome:
    name, response, error = str(line.get("custom_id")), line.get("response"), line.get("error")
    if isinstance(response, dict):
        status, body = response.get("status_code"), response.get("body")
        if status == 200 and isinstance(body, dict):
            return LineOutcome(name, body)
        failed = body.get("error") if isinstance(body, dict) else None
        failed = failed if isinstance(failed, dict) else {}
        again = not isinstance(status, int) or status >= 500 or status in _AGAIN_STATUS or status == 200
        code = str(failed.get("code") or failed.get("type") or f"status_{status}")
        return LineOutcome(name, None, code, f"{status}: {failed.get('message') or body}", again)
    error = error if isinstance(error, dict) else {}
    code = str(error.get("code") or "unanswered")
    return LineOutcome(name, None, code, str(error.get("message") or "no answer"), again=True)
