"""What executors take of the machine."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import psutil


def memory_files(pid: int | None = None) -> dict[int, int]:
    """Return the memory files that a process has open: their sizes by inode. {} where there is no /proc."""
    held: dict[int, int] = {}
    if sys.platform == "linux":
        for file in Path(f"/proc/{pid or 'self'}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(file).startswith("/memfd:headrace"):
                    held[file.stat().st_ino] = file.stat().st_size
    return held


def private_memory() -> int:
    """Return the bytes of memory that this process has for itself and no file: what it wrote, or copied."""
    rollup = Path("/proc/self/smaps_rollup").read_text().split()
    return int(rollup[rollup.index("Anonymous:") + 1]) * 1024


def children() -> list[psutil.Process]:
    """Return the processes that this one has started, and theirs, without servers that other tests share."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends just now
            words = " ".join(child.cmdline())
            if "moto_server" not in words and "forked.serve" not in words:
                found.append(child)
    return found


def workers() -> list[psutil.Process]:
    """Return the workers that this process has started, without the one that watches over them."""
    found = []
    for child in children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.ppid() == os.getpid() and child.name() not in ("sh", "headrace-fork"):
                found.append(child)
    return found
