from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

import headrace as hr
from headrace.engines.local.spawner import Spawner

from .leftovers import children, memory_files


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process, no thread and no memory file outlives the executors of a module's tests."""
    threads, before = set(threading.enumerate()), set(children())
    yield
    gc.collect()
    Spawner.end_kept()
    assert set(children()) <= before
    assert set(threading.enumerate()) <= threads
    assert memory_files() == {}


@pytest.fixture(scope="module")
def executor(nothing_is_left: None) -> Iterator[hr.Executor]:
    """One for all tests of a module that do not mind."""
    yield from _executor()


@pytest.fixture
def fresh(nothing_is_left: None) -> Iterator[hr.Executor]:
    """One that nobody has used."""
    yield from _executor()


def _executor() -> Iterator[hr.Executor]:
    executor = hr.connect(workers=2)
    yield executor
    executor._core.shutdown(kill=True)  # a test that failed may have left calls that never end
    executor._core.join()
