"""What workers print reaches the driver's own ``sys.stdout`` and ``sys.stderr``: terminal, notebook or file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from typing import IO, Literal


class Relay:
    """Passes on one stream of one worker, whole lines at a time, and remembers the last few."""

    def __init__(self, pipe: IO[bytes] | None, name: Literal["stdout", "stderr"]) -> None:
        assert pipe is not None
        self._pipe = pipe
        self._name = name
        self._rest = b""
        self._last: deque[str] = deque(maxlen=3)
        os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._pipe.fileno()

    def pump(self) -> bool:
        """Pass on what is there; False when the worker closed its end."""
        while not self._pipe.closed:
            try:
                data = os.read(self._pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            lines, newline, rest = (self._rest + data).rpartition(b"\n")
            self._rest = rest
            self._emit(lines + newline)
        return False

    def finish(self) -> None:
        """Pass on the rest, half a line included, and close."""
        if self._pipe.closed:
            return
        self.pump()
        self._emit(self._rest)
        self._rest = b""
        self._pipe.close()

    def tail(self) -> str:
        """The last lines, for an error message."""
        with contextlib.suppress(ValueError, OSError):
            self.pump()
        return " / ".join(line.strip() for line in self._last if line.strip())[-300:]

    def _emit(self, data: bytes) -> None:
        if not data:
            return
        text = data.decode(errors="replace")
        self._last.extend(text.splitlines())
        stream = getattr(sys, self._name)
        with contextlib.suppress(Exception):  # a closed terminal must not take the run down
            stream.write(text)
            stream.flush()
