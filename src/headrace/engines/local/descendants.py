"""The processes that a process has started, as the kernel lists them, and how they end with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and theirs; [] where the system has no list of them.

    Children of one that has ended are not among them: the system does not record where they come from.
    """
    found = [pid]
    for process in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                    found += map(int, file.read().split())
    return found[1:]


def end_descendants(pid: int) -> None:
    """Kill what a process has started, in whatever group or session it is by now."""
    for process in descendants(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends, where it can. A fork has to ask again."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
