"""The cores, memory and GPUs of this machine, or of the container that we run in."""

from __future__ import annotations

import itertools
import os
from functools import partial

from headrace.core.engine_ports import Capacity
from headrace.engines.local.cgroups import memory_limit

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
