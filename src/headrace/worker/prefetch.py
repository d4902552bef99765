"""Prefetching reads and an asynchronous writer: threads of their own, where cores are idle or reads wait.

With as many workers as cores they cost more than they save (2–10 % of wall time), so a plan that fills the machine
runs without them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar, cast

import pyarrow as pa

from headrace.core.parquet.chunks import Chunks
from headrace.core.ports import JoinedWriter, Writer
from headrace.core.work import StagedFile

T = TypeVar("T")

_DEPTH = 2
_END = object()


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """Produce the next items in a thread while the current one is processed; ends with its consumer."""
    ready: queue.Queue[object] = queue.Queue(_DEPTH)
    stopped = threading.Event()

    def put(item: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(_END)
        except BaseException as error:
            put(_Raised(error))

    thread = threading.Thread(target=produce, name="headrace-read", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not _END:
            if isinstance(item, _Raised):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
        close = getattr(items, "close", None)
        if close is not None:
            close()


class _Raised:
    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class AsyncWriter:
    """A writer that encodes in a thread of its own; an error there surfaces at the next call."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._todo: queue.Queue[Callable[[], None] | None] = queue.Queue(_DEPTH)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._encode, name="headrace-encode", daemon=True)
        self._thread.start()

    def _encode(self) -> None:
        while (write := self._todo.get()) is not None:
            if self._error is None:
                try:
                    write()
                except BaseException as error:
                    self._error = error

    def write(self, batch: pa.RecordBatch) -> None:
        """Queue the next rows."""
        self._check()
        self._todo.put(partial(self._writer.write, batch))

    def write_group(self, file: Chunks, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Queue a row group; see ``JoinedWriter``."""
        self._check()
        self._todo.put(partial(cast("JoinedWriter", self._writer).write_group, file, number, batches))

    def close(self) -> tuple[StagedFile, ...]:
        """Wait for the queued rows, then end the part."""
        self._todo.put(None)
        self._thread.join()
        self._check()
        return self._writer.close()

    def sync(self) -> None:
        """See ``Writer.sync``."""
        self._writer.sync()

    def abort(self) -> None:
        """Drop everything."""
        if self._thread.is_alive():
            self._error = self._error or RuntimeError("aborted")
            self._todo.put(None)
            self._thread.join()
        self._writer.abort()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
