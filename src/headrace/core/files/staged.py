"""The stream that a part is written through: counted, checksummed, and under a name of its own."""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from typing import Any, Literal

import msgspec

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.files.safe_files import sync_fd, write_failed
from headrace.core.work import FLEET, HOME, StagedFile
from headrace.errors import OutputWriteFailed


class KeptBytes(io.BytesIO):
    """A stream in memory, whose bytes can be had once the library that encodes into it has closed it."""

    def close(self) -> None:
        """Keep the bytes."""


class StagedStream:
    """A binary stream into a new file, written front to back once.

    Everything that reaches the file is counted in ``size`` and in ``crc32``. A stream that failed or was
    discarded swallows further writes in silence: libraries flush their footers when they are let go, and
    that must neither raise nor reach the disk.
    """

    def __init__(self, path: str, label: str = "") -> None:
        """``label``: shard and number of the part, as in its name; empty for other files."""
        self.path = path
        self.label = label
        self.size = 0
        self.crc32 = 0
        self.error: OutputWriteFailed | None = None
        self._state: Literal["open", "closed", "discarded"] = "open"
        try:
            self._fd = safe_files.opened(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except OSError as error:
            self._fd = -1
            raise write_failed(error, path, "create") from error

    def write(self, data: bytes | memoryview) -> int:
        """Write all of ``data``, in as many calls as the operating system wants."""
        view = memoryview(data).cast("B")
        if self._state == "discarded" or self.error is not None:
            return len(view)
        try:
            failpoints.hit("stage.write")
            done = 0
            while done < len(view):
                done += os.write(self._fd, view[done:])
        except OSError as error:
            raise self._failed(error, "write") from error
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size += len(view)
        return len(view)

    def finish(self, *, keep_open: bool) -> None:
        """End writing. ``keep_open`` holds the descriptor for ``sync``: the system reports lost writes to it only."""
        if self.error is not None:
            raise self.error
        self._state = "closed"
        try:
            if not keep_open:
                self._release()
            failpoints.hit("stage.closed")
        except OSError as error:
            raise self._failed(error, "close") from error

    def sync(self) -> None:
        """Make the bytes outlive a loss of power, once, and let the descriptor go."""
        if self._fd < 0:
            return
        try:
            failpoints.hit("stage.sync")
            sync_fd(self._fd)
            self._release()
        except OSError as error:
            raise self._failed(error, "sync") from error

    def discard(self) -> None:
        """Remove the file, whatever state it is in; never raises."""
        if self._state == "discarded":
            return
        self._state = "discarded"
        with contextlib.suppress(OSError):
            self._release()
        with contextlib.suppress(OSError):  # gone already, or the sweep at the next start takes it
            os.unlink(self.path)

    def _release(self) -> None:
        fd, self._fd = self._fd, -1  # never closed twice: after a failed close the number may be another's
        if fd >= 0:
            os.close(fd)

    def _failed(self, error: OSError, doing: str) -> OutputWriteFailed:
        self.error = write_failed(error, self.path, doing)
        return self.error

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._release()

    # What pyarrow asks of a Python file besides ``write``.

    @property
    def closed(self) -> bool:
        return self._state != "open"

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Ending the part is its writer's decision, not that of the library that encodes it."""


# ---------------------------------------------------------------- parts that workers upload

# Workers that do not see the driver's folder upload their parts. Such a file goes up under a name that no other
# attempt has, where no reader looks: ``_headrace/<run>/parts/``. The driver journals the name, and has the store copy
# what a record names to its place. Why: docs/decisions/0048.

PARTS = "parts"
"""The folder, in that of a run, with parts that no reader sees yet."""

RUN_NOTE, CRC_NOTE = "headracerun", "headracecrc32"  # letters and digits: Azure takes no others


def notes_of(run: str, file: StagedFile) -> dict[str, str]:
    """Return what is noted with a part: whose it is, and what its bytes are."""
    return {RUN_NOTE: run, CRC_NOTE: f"{file.crc32:08x}"}


def is_uploaded(file: StagedFile) -> bool:
    """Say whether a worker has uploaded a file; its staged name is then that of an object in the run's folder."""
    return file.staged.startswith(f"{PARTS}/")


def uploaded_name(run: str, file: StagedFile) -> str:
    """Return the name of the object that a worker has uploaded, or a machine of a fleet, from the output on."""
    machine, _, name = file.staged.removeprefix(f"{PARTS}/").rpartition(":")
    if not machine:
        return f"{HOME}/{run}/{file.staged}"
    from urllib.parse import unquote  # which a driver does not need before its first worker starts

    return f"{HOME}/{FLEET}/{machine}/{unquote(name)}"


def of_machine(machine: str, file: StagedFile, name: str) -> StagedFile:
    """Return a file of a machine's part of the output as one that is to be copied from there, and to have a name.

    >>> file = of_machine("k3f9a2xq", StagedFile("", "day=1/part-00000-r.csv", 1, 9, 0), "day=1/part-00007-r.csv")
    >>> uploaded_name("r", file), is_uploaded(file)
    ('_headrace/fleet/k3f9a2xq/day=1/part-00000-r.csv', True)
    """
    from urllib.parse import quote

    staged = f"{PARTS}/{machine}:{quote(file.name, safe='')}"
    return msgspec.structs.replace(file, staged=staged, name=name)


class Uploads(msgspec.Struct, frozen=True):
    """What a worker has to know for it.

    ``sees``: a file that is there for all who see the driver's folder; "" if none does. ``mark``: an object of the
    output, by which a worker knows that it has come to the same store. ``options``: those of the store, none secret.
    """

    address: str
    options: tuple[tuple[str, Any], ...]
    run: str
    mark: str
    sees: str = ""
