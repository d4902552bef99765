"""Whether a driver holds the lock of an output, without taking it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from headrace.core.files import safe_files


def holder(root: Path) -> str | None:
    """Return the holder of an output's lock, such as ``process 17 on host``; None if it is free."""
    try:
        lock = safe_files.opened(root / "_headrace" / "lock", os.O_RDONLY)
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
    """Look in the kernel's list, where there is one: trying would hold the lock when a driver may start."""
    with contextlib.suppress(OSError):
        found = os.fstat(lock)
        device = found.st_dev
        inode = f" {os.major(device):02x}:{os.minor(device):02x}:{found.st_ino} "
        locks = Path("/proc/locks").read_text()
        return any("FLOCK" in line and inode in line for line in locks.splitlines())
    return False


def _is_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released at once, by closing
    except BlockingIOError:
        return True
    return False
