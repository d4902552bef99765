"""Whether somebody works on an output, without getting into the way of who does."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from millrace.core import regular


def holder(root: Path) -> str | None:
    """Say who works on an output at this moment, such as ``process 17 on host``; None if nobody does."""
    try:
        lock = regular.opened(root / "_millrace" / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        if _is_listed(lock) or _is_taken(lock):
            return os.pread(lock, 100, 0).decode(errors="replace").strip() or "another process"
    except OSError:
        return None
    finally:
        os.close(lock)
    return None


def _is_listed(lock: int) -> bool:
    """Look in the kernel's list, where there is one: to look is better than to try, a driver might come just then."""
    with contextlib.suppress(OSError):
        found = os.fstat(lock)
        device = found.st_dev
        inode = f" {os.major(device):02x}:{os.minor(device):02x}:{found.st_ino} "
        locks = Path("/proc/locks").read_text()
        return any("FLOCK" in line and inode in line for line in locks.splitlines())
    return False


def _is_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # given back at once, by closing
    except BlockingIOError:
        return True
    return False
