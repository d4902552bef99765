"""The batch service of a server that plays a language model, with faults on demand."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from aiohttp import web

Fault = str | Callable[[], None]
Handler = Any


class Answering(Protocol):
    """Who answers the requests of a batch."""

    def said(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body."""
        ...

    def refused_key(self, request: web.Request) -> tuple[int, str, str] | None:
        """Say what is wrong with a key."""
        ...


@dataclass(slots=True)
class FakeBatch:
    """A batch: its requests, and what is to become of it. ``looks``: how often it is looked at until it has ended."""

    id: str
    requests: list[dict[str, Any]]
    end: str
    created: float
    looks: int
    endpoint: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False


class FakeBatches:
    """Files and batches under ``/v1/files``, ``/v1/batches`` and ``/v1/messages/batches``.

    ``faults`` holds, by the name of a call (``upload``, ``create``, ``look``, ``list``, ``download``), what happens
    to the next ones: ``""`` for nothing, ``"429"`` (with a ``Retry-After`` of a hundredth of a second), ``"500"``,
    ``"lost"`` (it is carried out, and the connection breaks), ``"cut"`` (a download breaks in the middle), or a
    function that is called when it has been carried out, before the answer. ``ends`` holds what becomes of the next
    batches: ``"completed"``, ``"expired"`` and ``"cancelled"`` (the first half of the requests is answered),
    ``"failed"`` (nothing is), ``"full"`` (too much waits), ``"wrong"`` (the first request makes no sense),
    ``"missing"`` (no word of the last request), ``"double"`` (each answer is there twice, and one of a stranger).
    ``services``: the forms of which it is, by default both, ``{"openai", "anthropic"}``. ``looks``: how often a batch
    is looked at until it has ended. ``all`` are the batches, ``files`` the files, ``calls`` counts the calls.
    """

    def __init__(self, server: Answering) -> None:
        self.faults: dict[str, deque[Fault]] = {}
        self.ends: deque[str] = deque()
        self.looks = 1
        self.services = {"openai", "anthropic"}
        self.all: list[FakeBatch] = []
        self.files: dict[str, tuple[str, bytes]] = {}
        self.deleted: list[str] = []
        self.calls: Counter[str] = Counter()
        self._server = server

    def add_routes(self, app: web.Application) -> None:
        """Serve them."""
        add = app.router.add_route
        add("POST", "/v1/files", self._call("upload", self._upload))
        add("GET", "/v1/files", self._call("list", self._files))
        add("GET", "/v1/files/{id}/content", self._call("download", self._content))
        add("DELETE", "/v1/files/{id}", self._call("delete", self._delete))
        add("POST", "/v1/batches", self._call("create", self._create))
        add("GET", "/v1/batches", self._call("list", self._listed))
        add("GET", "/v1/batches/{id}", self._call("look", self._look))
        add("POST", "/v1/messages/batches", self._call("create", self._create_messages))
        add("GET", "/v1/messages/batches", self._call("list", self._listed_messages))
        add("GET", "/v1/messages/batches/{id}", self._call("look", self._look_messages))
        add("GET", "/v1/messages/batches/{id}/results", self._call("download", self._results))

    def _call(self, name: str, handler: Handler) -> Handler:
        async def called(request: web.Request) -> web.StreamResponse:

            kind = "anthropic" if "/messages/" in request.path else "openai"
            if kind not in self.services:
                return _error(404, "there is nothing here", "not_found")
            self.calls[name] += 1
            waiting = self.faults.get(name)
            fault = waiting.popleft() if waiting else ""
            refused = self._server.refused_key(request)
            if refused is not None:
                return _error(*refused)
            if fault == "429":
                response = _error(429, "too many requests", "rate_limit")
                response.headers["Retry-After"] = "0.01"
                return response
            if fault == "500":
                return _error(500, "the server has failed", "server_error")
            made: web.Response = await handler(request)
            if callable(fault):
                fault()
            if fault == "cut":
                await _break_off(request, made)
            if fault == "lost":
                assert request.transport is not None
                request.transport.abort()
            return made

        return called

    # ------------------------------------------------------------ OpenAI's

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        file: Any = form["file"]
        name = f"file-{len(self.files)}"
        self.files[name] = file.filename, file.file.read()
        return _json(self._file(name))

    def _file(self, name: str) -> dict[str, Any]:
        file, data = self.files[name]
        return {
            "id": name,
            "object": "file",
            "filename": file,
            "bytes": len(data),
            "created_at": int(time.time()),
        }

    async def _files(self, request: web.Request) -> web.Response:
        return _json(_page([self._file(name) for name in reversed(self.files)], request, "after"))

    async def _content(self, request: web.Request) -> web.Response:
        from aiohttp import web

        kind, _, place = request.match_info["id"].partition("-of-")
        batch = self._batch(place)
        return web.Response(body=_lines(batch.answers if kind == "answers" else batch.errors))

    async def _delete(self, request: web.Request) -> web.Response:
        self.deleted.append(request.match_info["id"])
        return _json({"id": request.match_info["id"], "deleted": True})

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        _, data = self.files[body["input_file_id"]]
        batch = self._begin([json.loads(line) for line in data.splitlines()])
        batch.endpoint, batch.metadata = body["endpoint"], body.get("metadata") or {}
        return _json(self._plain(batch))

    async def _listed(self, request: web.Request) -> web.Response:
        return _json(_page([self._plain(batch) for batch in reversed(self.all)], request, "after"))

    async def _look(self, request: web.Request) -> web.Response:
        if all(batch.id != request.match_info["id"] for batch in self.all):
            return _error(404, "no such batch", "not_found")
        batch = self._batch(request.match_info["id"])
        self._looked_at(batch)
        return _json(self._plain(batch))

    def _plain(self, batch: FakeBatch) -> dict[str, Any]:
        status = "in_progress"
        if batch.ended:
            status = {"full": "failed", "wrong": "failed"}.get(batch.end, batch.end)
            status = status if status in ("failed", "expired", "cancelled") else "completed"
        errors = None
        if status == "failed":
            code = {"full": "token_limit_exceeded", "wrong": "invalid_request"}.get(
                batch.end, "invalid_model"
            )
            line = 1 if batch.end == "wrong" else None
            errors = {"data": [{"code": code, "line": line, "message": f"it is {batch.end}", "param": None}]}
        there = batch.ended and status != "failed"
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "status": status,
            "errors": errors,
            "created_at": int(batch.created),
            "metadata": batch.metadata,
            "output_file_id": f"answers-of-{batch.id}" if there and batch.answers else None,
            "error_file_id": f"errors-of-{batch.id}" if there and batch.errors else None,
            "request_counts": {
                "total": len(batch.requests),
                "completed": len(batch.answers),
                "failed": len(batch.errors),
            },
        }

    # ------------------------------------------------------------ Anthropic's

    async def _create_messages(self, request: web.Request) -> web.Response:
        batch = self._begin((await request.json())["requests"])
        return _json(self._plain_messages(batch))

    async def _listed_messages(self, request: web.Request) -> web.Response:
        for batch in self.all:
            self._looked_at(batch)
        found = [self._plain_messages(batch) for batch in reversed(self.all)]
        return _json(_page(found, request, "after_id"))

    async def _look_messages(self, request: web.Request) -> web.Response:
        batch = self._batch(request.match_info["id"])
        self._looked_at(batch)
        return _json(self._plain_messages(batch))

    async def _results(self, request: web.Request) -> web.Response:
        from aiohttp import web

        batch = self._batch(request.match_info["id"])
        return web.Response(body=_lines(batch.answers + batch.errors))

    def _plain_messages(self, batch: FakeBatch) -> dict[str, Any]:
        counts = Counter(each["result"]["type"] for each in batch.answers + batch.errors)
        named = ("succeeded", "errored", "canceled", "expired")
        kinds = {name: counts[name] for name in named} if batch.ended else dict.fromkeys(named, 0)
        left = 0 if batch.ended else len(batch.requests)
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(batch.created))
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if batch.ended else "in_progress",
            "request_counts": {"processing": left, **kinds},
            "created_at": created,
        }

    # ------------------------------------------------------------ work

    def _begin(self, requests: list[dict[str, Any]]) -> FakeBatch:
        end = self.ends.popleft() if self.ends else "completed"
        batch = FakeBatch(f"batch-{len(self.all)}", requests, end, time.time(), self.looks)
        self.all.append(batch)
        return batch

    def _batch(self, name: str) -> FakeBatch:
        return next(batch for batch in self.all if batch.id == name)

    def _looked_at(self, batch: FakeBatch) -> None:
        batch.looks -= 1
        if batch.looks > 0 or batch.ended:
            return
        batch.ended = True
        half = len(batch.requests) // 2
        if batch.end in ("failed", "full", "wrong"):
            return
        done = {"expired": half, "cancelled": half, "missing": len(batch.requests) - 1}
        for i, each in enumerate(batch.requests):
            self._answer(batch, each, answered=i < done.get(batch.end, len(batch.requests)))
        if batch.end == "double":
            batch.answers += [dict(each) for each in batch.answers]
            batch.answers.append({**batch.answers[0], "custom_id": "a-stranger"})

    def _answer(self, batch: FakeBatch, asked: dict[str, Any], *, answered: bool) -> None:
        name, anthropic = asked["custom_id"], "params" in asked
        if not answered and batch.end == "missing":
            return
        if anthropic:
            status, body = self._server.said("/v1/messages", asked["params"]) if answered else (0, {})
            error = {"type": "error", "error": {"type": "invalid_request_error", **body.get("error", {})}}
            kind = {0: batch.end.replace("cancelled", "canceled"), 200: "succeeded"}.get(status, "errored")
            more = {"message": body} if status == 200 else {"error": error} if status else {}
            line = {"custom_id": name, "result": {"type": kind, **more}}
            (batch.answers if status == 200 else batch.errors).append(line)
            return
        if not answered:
            error = {"code": f"batch_{batch.end}", "message": f"the batch has {batch.end}"}
            batch.errors.append({"id": f"r-{name}", "custom_id": name, "response": None, "error": error})
            return
        status, body = self._server.said(asked["url"], asked["body"])
        response = {"status_code": status, "request_id": f"q-{name}", "body": body}
        line = {"id": f"r-{name}", "custom_id": name, "response": response, "error": None}
        (batch.answers if status == 200 else batch.errors).append(line)


async def _break_off(request: web.Request, whole: web.Response) -> None:
    """Send half of an answer, and break the connection."""
    from aiohttp import web

    data = whole.body if isinstance(whole.body, bytes) else b""
    cut = web.StreamResponse(headers={"Content-Length": str(len(data))})
    await cut.prepare(request)
    await cut.write(data[: len(data) // 2])
    assert request.transport is not None
    request.transport.abort()


def _lines(each: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in each)


def _page(found: list[dict[str, Any]], request: web.Request, name: str) -> dict[str, Any]:
    """Return what follows the one that was named, a few at a time."""
    after, most = request.query.get(name), min(int(request.query.get("limit", "20")), 3)
    names = [each["id"] for each in found]
    start = names.index(after) + 1 if after in names else 0
    shown = found[start : start + most]
    last = shown[-1]["id"] if shown else None
    return {"object": "list", "data": shown, "has_more": start + most < len(found), "last_id": last}


def _json(data: dict[str, Any]) -> web.Response:
    from aiohttp import web

    return web.json_response(data)


def _error(status: int, message: str, code: str) -> web.Response:
    from aiohttp import web

    return web.json_response({"error": {"message": message, "code": code}}, status=status)
