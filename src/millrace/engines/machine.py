"""What this machine, or the container around us, has to give."""

from __future__ import annotations

import os
from pathlib import Path

from millrace.core.ports import Capacity
from millrace.engines.cgroups import memory_limit


def capacity() -> Capacity:
    """Return cores by affinity and cgroup quota, 80 % of the memory that the container allows, and GPUs."""
    return Capacity(_cpus(), int(_memory() * 0.8), _gpus())


def _cpus() -> int:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cpus = min(cpus, max(1, -(-int(quota[0]) // int(quota[1]))))
    return cpus


def _memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, memory_limit() or total)


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if visible is not None:
        return min(found, len([part for part in visible.split(",") if part.strip() not in ("", "-1")]))
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
