"""The cores, memory and GPUs of this machine, or of the container that we run in."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from headrace.core.engine_ports import Capacity, Devices
from headrace.errors import ResourcesUnavailable

# ---------------------------------------------------------------- memory of control groups

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


_NVIDIA: str | os.PathLike[str] = "/proc/driver/nvidia/gpus"


def capacity() -> Capacity:
    """Return cores by affinity and cgroup quota, 80 % of the memory that the container allows, and GPUs."""
    return Capacity(_cpus(), int(_memory() * 0.8), len(devices()))


def devices() -> tuple[str, ...]:
    """Return the GPUs that we may use, by the names that ``CUDA_VISIBLE_DEVICES`` takes.

    If it is set, CUDA looks at its entries up to the first that means nothing; so do we.
    """
    found = len(os.listdir(_NVIDIA)) if os.path.isdir(_NVIDIA) else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not found:
        return tuple(map(str, range(found)))
    names = itertools.takewhile(partial(_is_device, found), map(str.strip, visible.split(",")))
    return tuple(dict.fromkeys(names))


def _is_device(found: int, name: str) -> bool:
    return int(name) < found if name.isdigit() else name.startswith(("GPU-", "MIG-"))


def _cpus() -> int:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cpus = min(cpus, max(1, -(-int(quota[0]) // int(quota[1]))))
    return cpus


def _memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, memory_limit() or total)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


# ---------------------------------------------------------------- private memory of processes

_ANONYMOUS = b"\nRssAnon:"
_SWAPPED = b"\nVmSwap:"
_SHARE = b"\nPss_Anon:"
_SWAPPED_SHARE = b"\nSwapPss:"


def private_memory(pid: int) -> int:
    """Return the private memory of a process in bytes: anonymous pages, those swapped out among them.

    Files that are mapped do not count, nor does shared memory, be it mapped for writing.
    """
    status = _read_bytes(f"/proc/{pid}/status")
    return _kib(status, _ANONYMOUS) + _kib(status, _SWAPPED)


def family_memory(pid: int) -> int:
    """Return the private memory of a process and of those that its main thread started, each page once."""
    return memory_of(_family(pid))


def memory_of(members: Sequence[int]) -> int:
    """Return the private memory of some processes, each page once."""
    if len(members) == 1:
        return private_memory(members[0])
    # Slow, but it knows what forks share.
    shares = [_read_bytes(f"/proc/{member}/smaps_rollup") for member in members]
    return sum(_kib(share, _SHARE) + _kib(share, _SWAPPED_SHARE) for share in shares)


def _family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        members += map(int, _read_bytes(f"/proc/{member}/task/{member}/children").split())
    return members


def _kib(text: bytes, name: bytes) -> int:
    """Return the bytes of a line of the form ``name: 12 kB``."""
    at = text.find(name)
    return int(text[at + len(name) : text.index(b"kB", at)]) << 10 if at >= 0 else 0


def _read_bytes(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""  # the process has just ended
    finally:
        os.close(fd)


# ---------------------------------------------------------------- GPUs for workers

Visible = tuple[str, ...] | None  # the names of devices; None: whatever the driver sees


class Gpus:
    """An engine's devices, by the names that CUDA knows, and which of them pools have reserved."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._devices = Devices(len(names))

    def reserve(self, share: float | None, least: int, most: int) -> Seats:
        """Reserve ``share`` devices for each worker of a pool: for ``most`` of them, or as many as there is room for.

        ``ResourcesUnavailable`` if there is none for ``least``.
        """
        if not share:
            return Seats(None if share is None else ())
        for workers in range(max(least, most), least - 1, -1):
            seats = self._devices.take(share, workers)
            if seats is not None:
                visible = [tuple(self._names[device] for device in seat) for seat in seats]
                return Seats((), visible, partial(self._devices.give, seats, share))
        raise ResourcesUnavailable(
            f"{least} × {share:g} GPUs are not free: there are {len(self._names)}, and other workers have some."
        )


class Seats:
    """What the workers of one pool may see: each a seat of its own, or all the same."""

    def __init__(
        self, same: Visible, seats: Sequence[Visible] | None = None, release: Callable[[], None] | None = None
    ) -> None:
        self._same = same
        self._free = None if seats is None else list(seats)
        self._count = None if seats is None else len(seats)
        self._release = release

    def room(self, workers: int) -> int:
        """Return how many of ``workers`` workers there can be."""
        return workers if self._count is None else min(workers, self._count)

    def acquire(self) -> Visible:
        """Return what a new worker may see: what was released last, if anything was."""
        return self._same if self._free is None else self._free.pop(0)

    def release(self, visible: Visible) -> None:
        """A worker is gone: another may have its seat."""
        if self._free is not None:
            self._free.insert(0, visible)

    def close(self) -> None:
        """Release all of it for other pools."""
        if self._release is not None:
            self._release()
            self._release = None
