"""Whether a driver holds the lock of an output, without taking it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from headrace.core.files import safe_files
from headrace.core.waiting import lock


def holder(root: Path) -> str | None:
    """Return the holder of an output's lock, such as ``process 17 on host``; None if it is free."""
    try:
        opened = safe_files.opened(root / "_headrace" / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        if _is_listed(opened) or not lock(opened, shared=True):
            return os.pread(opened, 100, 0).decode(errors="replace").strip() or "another process"
    except OSError:
        return None
    finally:
        os.close(opened)
    return None


def _is_listed(opened: int) -> bool:
    """Look in the kernel's list, where there is one: trying would hold the lock when a driver may start."""
    with contextlib.suppress(OSError):
        found = os.fstat(opened)
        device = found.st_dev
        inode = f" {os.major(device):02x}:{os.minor(device):02x}:{found.st_ino} "
        locks = Path("/proc/locks").read_text()
        return any("FLOCK" in line and inode in line for line in locks.splitlines())
    return False
