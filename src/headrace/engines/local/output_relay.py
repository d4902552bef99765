"""What workers print reaches the driver's own ``sys.stdout`` and ``sys.stderr``: terminal, notebook or file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from typing import IO, Literal

_CHUNK = 64 << 10


class Relay:
    """Passes on one stream of one worker, whole lines at a time, and remembers the last few.

    A line that is redrawn (it ends in a carriage return) and one longer than 64 KiB are passed on as they are.
    """

    def __init__(self, pipe: IO[bytes] | None, name: Literal["stdout", "stderr"]) -> None:
        assert pipe is not None
        self._pipe = pipe
        self._name = name
        self._rest = b""
        self._last: deque[str] = deque(maxlen=40)
        os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._pipe.fileno()

    def pump(self) -> bool:
        """Pass on some of what is there; False when the worker closed its end."""
        if self._pipe.closed:
            return False
        try:
            data = os.read(self._pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(data) >= _CHUNK:
            end = len(data)
        self._rest = data[end:]
        self._emit(data[:end])
        return True

    def finish(self) -> None:
        """Pass on the rest, half a line included, and close."""
        if self._pipe.closed:
            return
        self._drain()
        self._emit(self._rest)
        self._rest = b""
        self._pipe.close()

    def tail(self) -> str:
        """The last lines, for an error message."""
        self._drain()
        lines = [line.strip() for line in self._last if line.strip() and not _is_noise(line)]
        crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
        return " / ".join(lines[-6:] if crash is None else lines[max(0, crash - 2) : crash + 6])[:600]

    def _drain(self) -> None:
        """Pass on what the pipe still holds; it holds 64 KiB, unless something goes on writing."""
        for _ in range(16):
            before = self._rest
            with contextlib.suppress(ValueError, OSError):
                if not self.pump():
                    return
            if self._rest == before and not self._waiting():
                return

    def _waiting(self) -> bool:
        import select

        return bool(select.select([self._pipe.fileno()], [], [], 0)[0])

    def _emit(self, data: bytes) -> None:
        if not data:
            return
        text = data.decode(errors="replace")
        self._last.extend(text.splitlines()[-40:])
        stream = getattr(sys, self._name)
        with contextlib.suppress(Exception):  # a closed terminal must not take the run down
            stream.write(text)
            stream.flush()


def _is_noise(line: str) -> bool:
    """Of the stack that a crash leaves behind, our own frames and the list of modules do not help."""
    return (
        line.startswith(("Extension modules:", "Current thread"))
        or "/headrace/" in line
        or "<string>" in line
    )
