"""Everything here needs a CUDA device, and is skipped where there is none."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@cache
def no_device() -> str | None:
    """Why there is no device to test on; torch, which takes seconds to import, is asked only where a driver is."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver"
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Called with the items of all folders.
    ours = [item for item in items if HERE in item.path.parents]
    reason = no_device() if ours else None
    if reason:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=reason))
