"""What an engine starts ends with the process that has the engine, however that ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence

_GUARD = """
import os, signal, sys
guarded = []
for word in sys.stdin.readline().split():
    try:
        guarded.append((int(word), os.pidfd_open(int(word)) if hasattr(os, "pidfd_open") else None))
    except OSError:
        pass
print("on guard", flush=True)
sys.stdin.read()
for pid, fd in guarded:
    try:
        if fd is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        pass
"""


class ChildGuard:
    """A small process that waits for the end of this one, and then kills ``pids``; ``close`` has it do so at once."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, pids)) + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()  # it has hold of them: whoever gets their numbers later is safe
        self._process.stdout.close()

    def close(self) -> None:
        """Kill those that are left, and wait for the guard's end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
