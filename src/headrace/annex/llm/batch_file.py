"""Asks an endpoint for all requests of a batch file, in its order, with bounded memory; may be killed, and goes on.

``OUT`` and the file of errors are written as ``OUT.part`` and so on, and get their names when all is done. An answer
is kept in ``OUT.headrace`` before it is written, until it is.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from headrace.annex.llm.batch_lines import (
    BatchCounts,
    BatchFiles,
    BatchLine,
    Progress,
    WrittenLines,
    answered_line,
    check,
    failed_line,
    lines_of,
    tokens_in,
    tokens_written,
)
from headrace.annex.llm.client import Client
from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.engine_client import EngineClient
from headrace.annex.llm.engines import EngineModel
from headrace.annex.llm.refusals import RowError
from headrace.annex.llm.store import AnswerStore, key_of
from headrace.core import waiting
from headrace.core.files import safe_files
from headrace.core.files.safe_files import sync_fd
from headrace.core.waiting import when_free
from headrace.errors import ArgumentError, OutputExists, OutputWriteFailed, PlanChanged, RunLocked

WINDOW = 32
"""So many times the requests under way are lines read ahead, for the order."""
WINDOW_BYTES = 128 << 20
"""Of lines that were read, and of answers that wait for those before."""
FORGOTTEN_TOGETHER = 256


def run_batch(
    files: BatchFiles,
    model: Endpoint | EngineModel,
    *,
    overwrite: bool = False,
    via_batch_api: bool = False,
    progress: Progress = lambda done, lines, batches: None,
    alive: Callable[[], None] | None = None,
) -> BatchCounts:
    """Ask for all requests of a file; go on where an earlier process stopped. An engine answers chats only.

    ``via_batch_api``: the endpoint's batch service answers them, which may take a day. Meanwhile ``alive`` is called
    again and again; what it raises ends the wait.

    Raises ``UnreadableFile`` for an input that is no batch, ``OutputExists`` for an output that is there,
    ``PlanChanged`` where an output was begun for another input, ``RunLocked`` while another process works on it, and
    what ends a run of ``Dataset.prompt``.
    """
    if len({os.path.realpath(each) for each in (files.source, files.out, files.errors)}) < 3:
        raise ArgumentError("Input, output and the file of errors are three files; two of them are the same.")
    for path in (files.out, files.errors):
        if os.path.isdir(path) or not os.path.basename(path):
            raise ArgumentError(f"{path} is a folder, and the output is a file. Nothing was sent.")
    if not overwrite:
        _check_new(files)
    counts = BatchCounts(lines=check(files.source))
    try:
        safe_files.make_folder(files.state, 0o700)
        lock = safe_files.opened(os.path.join(files.state, "lock"), os.O_RDWR | os.O_CREAT)
        try:
            _lock(lock, files)
            if not overwrite:
                _check_new(files)  # again: another process may have made it until now
            _take_back_names(files)
            _check_same_input(files, via_batch_api)
            out, errors = (
                safe_files.opened(path + ".part", os.O_RDWR | os.O_CREAT, 0o666)
                for path in (files.out, files.errors)
            )
            try:
                if via_batch_api:
                    _via_batch_api(files, model, out, errors, counts, progress, alive)
                else:
                    asyncio.run(_Batch(files, model, out, errors, counts, progress).run())
                for fd in (out, errors):
                    sync_fd(fd)
            finally:
                os.close(out)
                os.close(errors)
            _finish(files)
        finally:
            os.close(lock)
    except OSError as error:
        raise OutputWriteFailed(
            f"{error.filename or files.out} cannot be written: {error.strerror or error}. What was "
            "answered is kept: make "
            "room, or have it writable, and run the same command again."
        ) from error
    except sqlite3.Error as error:
        raise OutputWriteFailed(
            f"What is known of {files.out} cannot be read or written in {files.state}: {error}. Make room, or have "
            "it writable, and run the same command again; or remove that folder to begin anew."
        ) from error
    return counts


def _check_new(files: BatchFiles) -> None:
    """Refuse an output that is there, unless it is ours and the process that gave it its name has died then."""
    if safe_files.size(_finishing(files)) >= 0:
        return
    for path in (files.out, files.errors):
        if os.path.lexists(path):
            raise OutputExists(
                f"{path} is there already. Nothing was sent: give another name, or say --overwrite to replace it."
            )


def _finishing(files: BatchFiles) -> str:
    """Return the file that is there while the output is given its names."""
    return os.path.join(files.state, "finishing")


def _take_back_names(files: BatchFiles) -> None:
    """Undo what a process has begun that died while it gave the output its names."""
    if safe_files.size(_finishing(files)) < 0:
        return
    for path in (files.out, files.errors):
        if os.path.lexists(path) and not os.path.lexists(path + ".part"):
            os.replace(path, path + ".part")
    os.unlink(_finishing(files))


def _lock(fd: int, files: BatchFiles) -> None:
    if not waiting.lock(fd):
        raise RunLocked(f"Another process is at work on {files.out}. Nothing was sent.")


def _via_batch_api(
    files: BatchFiles,
    model: Endpoint | EngineModel,
    out: int,
    errors: int,
    counts: BatchCounts,
    progress: Progress,
    alive: Callable[[], None] | None,
) -> None:
    from headrace.annex.llm.batch_api import BatchApi

    if not isinstance(model, Endpoint):
        raise ArgumentError("A batch service is at an endpoint, and this model is in the process itself.")
    asyncio.run(BatchApi(files, model, out, errors, counts, progress, alive).run())


def _check_same_input(files: BatchFiles, via_batch_api: bool) -> None:
    """Refuse to go on with another input, or in another way; note which it is."""
    status = os.stat(files.source)
    now = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "errors": os.path.abspath(files.errors)}
    if via_batch_api:
        now["way"] = "batch api"
    path = os.path.join(files.state, "input.json")
    if safe_files.size(path) < 0:
        safe_files.write(path, msgspec.json.encode(now))
        return
    before = msgspec.json.decode(safe_files.content(path))
    if isinstance(before, dict) and before.get("way") != now.get("way"):
        said = "without --via-batch-api" if via_batch_api else "with --via-batch-api"
        raise PlanChanged(
            f"{files.out} was begun {said}. Nothing was sent: go on as it was begun, or remove {files.state} to "
            "begin anew; what was answered is lost then."
        )
    if before != now:
        raise PlanChanged(
            f"{files.out} was begun for another input, or {files.source} has changed since, or the "
            "file of errors has "
            f"another name. Nothing was sent: give another output, or remove {files.state} to begin anew."
        )


def _finish(files: BatchFiles) -> None:
    """Give the files their names; a file of errors without any is none."""
    safe_files.write(_finishing(files), b"")
    if os.path.getsize(files.errors + ".part"):
        os.replace(files.errors + ".part", files.errors)
    else:
        os.unlink(files.errors + ".part")
        if os.path.lexists(files.errors):
            os.unlink(files.errors)
    os.replace(files.out + ".part", files.out)
    shutil.rmtree(files.state, ignore_errors=True)


class _Batch:
    """A batch on its way. One event loop, and all on it."""

    def __init__(
        self,
        files: BatchFiles,
        model: Endpoint | EngineModel,
        out: int,
        errors: int,
        counts: BatchCounts,
        progress: Progress,
    ) -> None:
        self._files, self._model, self._counts, self._progress = files, model, counts, progress
        self._out, self._errors = out, errors
        self._store = AnswerStore(files.state)
        self._written: list[bytes] = []  # keys of answers that are in the files
        self._window: deque[tuple[BatchLine, asyncio.Task[tuple[bool, bytes]]]] = deque()
        self._window_bytes = 0

    async def run(self) -> None:
        """Ask, and write in order."""
        lines = self._lines_left()
        first = next(lines, None)
        client: Client | EngineClient
        if isinstance(self._model, Endpoint):
            client = Client(self._model, anthropic=first is not None and first.is_anthropic)
        else:
            client = EngineClient(self._model)
        most = self._model.max_in_flight * WINDOW
        try:
            await client.open()
            line = first
            while line is not None:
                self._window.append((line, asyncio.ensure_future(self._outcome(client, line))))
                self._window_bytes += line.size
                while len(self._window) >= most or self._window_bytes > WINDOW_BYTES:
                    await self._write_next()
                line = next(lines, None)
                if len(self._window) % 64 == 0:
                    await asyncio.sleep(0)
            while self._window:
                await self._write_next()
        finally:
            tasks = [task for _, task in self._window]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()
            self._store.close()

    def _lines_left(self) -> Iterator[BatchLine]:
        """Yield the lines whose answers are not written; what was written of others is cut off."""
        out, errors = WrittenLines(self._out), WrittenLines(self._errors)
        lines = lines_of(self._files.source)
        for line in lines:
            if out.take(line.custom_id):
                self._counts.answered += 1
                self._count_tokens(*tokens_written(out.last))
            elif errors.take(line.custom_id):
                self._counts.failed += 1
            else:
                out.cut()
                errors.cut()
                self._counts.before = self._counts.answered + self._counts.failed
                yield line
                yield from lines
                return
        out.cut()
        errors.cut()
        self._counts.before = self._counts.answered + self._counts.failed

    async def _write_next(self) -> None:
        """Wait for the first of the window, and write what has become of it."""
        line, task = self._window[0]
        good, said = await task
        self._window.popleft()
        self._window_bytes -= line.size + len(said)
        data = memoryview(said)
        while data:
            data = data[os.write(self._out if good else self._errors, data) :]
        if good:
            self._counts.answered += 1
        else:
            self._counts.failed += 1
        self._written.append(_key(line))
        if len(self._written) >= FORGOTTEN_TOGETHER:
            await when_free(self._store.forget, self._written)
            self._written = []
        self._progress(self._counts.answered + self._counts.failed, self._counts.lines, ())

    async def _outcome(self, client: Client | EngineClient, line: BatchLine) -> tuple[bool, bytes]:
        """Return whether a request was answered, and its line of the output or of the errors."""
        key = _key(line)
        kept = (await when_free(self._store.find, [key])).get(key)
        if kept is None:
            try:
                reply = await client.ask(line.body, path=line.path)
            except RowError as error:
                said = failed_line(line, type(error).__name__, str(error))
                self._window_bytes += len(said)
                return False, said
            kept = answered_line(line, reply.data)
            await self._store.add(key, kept)
            self._count_tokens(*tokens_in(reply.data))
        else:
            self._count_tokens(*tokens_written(kept))
        self._window_bytes += len(kept)
        return True, kept

    def _count_tokens(self, read: int, written: int) -> None:
        self._counts.prompt_tokens += read
        self._counts.completion_tokens += written


def _key(line: BatchLine) -> bytes:
    return key_of({"line": line.number, "id": line.custom_id})
