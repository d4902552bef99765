"""A shard's rows in several files, none of them with more than so many rows."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headrace.core.ports import Writer
from headrace.core.work import StagedFile


class RowLimitWriter:
    """Begins a new file wherever one has ``most`` rows; ``open_file(number)`` begins the one with this number.

    A file that is full is closed and synced at once: neither memory nor descriptors grow with their number.
    """

    def __init__(self, open_file: Callable[[int], Writer], most: int) -> None:
        self._open_file = open_file
        self._most = most
        self._writer: Writer | None = None
        self._rows = 0  # in the file that is open
        self._begun: list[Writer] = []
        self._files: list[StagedFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next rows, in order."""
        at = 0
        while at < batch.num_rows:
            if self._writer is not None and self._rows == self._most:
                self._close_file()
            writer = self._opened()
            count = min(self._most - self._rows, batch.num_rows - at)
            writer.write(batch.slice(at, count))
            self._rows += count
            at += count

    def close(self) -> tuple[StagedFile, ...]:
        """End the last file; one without rows if there were none."""
        if self._writer is not None or not self._files:
            self._files += self._opened().close()
        return tuple(self._files)

    def sync(self) -> None:
        """Make the last file outlive a loss of power; the others were synced when they were full."""
        if self._writer is not None:
            self._writer.sync()

    def abort(self) -> None:
        """Drop all files."""
        for writer in self._begun:
            writer.abort()

    def _opened(self) -> Writer:
        if self._writer is None:
            self._writer = self._open_file(len(self._begun))
            self._begun.append(self._writer)
        return self._writer

    def _close_file(self) -> None:
        assert self._writer is not None
        self._files += self._writer.close()
        self._writer.sync()
        self._writer, self._rows = None, 0
