"""What the control groups around this process say of memory, in both versions of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeAlias

_Path: TypeAlias = "str | os.PathLike[str]"


def memory_limit(root: _Path = "/") -> int | None:
    """Return how many bytes the tightest of the groups around this process allows; None without a limit."""
    limits = []
    for folder in _groups(root):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            text = _read(os.path.join(folder, name)).strip()
            if text.isdigit():
                limits.append(int(text))
    return min(limits, default=None)


def oom_kills(root: _Path = "/") -> int | None:
    """Return a count that grows whenever the kernel ends a process because memory ran out; None if none is kept.

    It counts in this process's own groups, and on the whole machine where that can be seen.
    """
    counts = []
    names = ("memory.events", "memory.oom_control")
    files = [os.path.join(folder, name) for folder in _groups(root) for name in names]
    for path in (*files, os.path.join(root, "proc/vmstat")):
        for line in _read(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                counts.append(int(value))
    return sum(counts) if counts else None


def _groups(root: _Path) -> Iterator[str]:
    """Yield the folders of the memory groups around this process, the innermost first."""
    mounts = os.path.join(root, "sys/fs/cgroup")
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(","):
            yield from _upwards(os.path.join(mounts, "memory"), path)
        elif not controllers:
            yield from _upwards(mounts, path)


def _upwards(mount: str, path: str) -> Iterator[str]:
    """Yield a group and those around it. In a container only its own may be seen, at the mount itself."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    while parts:
        group = os.path.join(mount, *parts)
        if parts[-1] != ".." and os.path.isdir(group):
            yield group
        parts.pop()
    yield mount


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
