"""What the control groups around this process say of memory, in both versions of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def memory_limit(root: Path = ROOT) -> int | None:
    """Return how many bytes the tightest of the groups around this process allows; None without a limit."""
    limits = []
    for folder in _groups(root):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit():
                limits.append(int(text))
    return min(limits, default=None)


def oom_kills(root: Path = ROOT) -> int | None:
    """Return a count that grows whenever the kernel ends a process because memory ran out; None if none is kept.

    It counts in this process's own groups, and on the whole machine where that can be seen.
    """
    counts = []
    files = [folder / name for folder in _groups(root) for name in ("memory.events", "memory.oom_control")]
    for path in (*files, root / "proc/vmstat"):
        for line in _read(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                counts.append(int(value))
    return sum(counts) if counts else None


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the memory groups around this process, the innermost first."""
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(","):
            yield from _upwards(mounts / "memory", path)
        elif not controllers:
            yield from _upwards(mounts, path)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group and those around it. In a container only its own may be seen, at the mount itself."""
    inner = PurePosixPath(path.lstrip("/"))
    for part in (inner, *inner.parents):
        if part.name and part.name != ".." and (mount / part).is_dir():
            yield mount / part
    yield mount


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
