"""Waiting longer each time, and for locks: with real files, which two holders open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.process import backoff, lock, unlock


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[tuple[int, int]]:
    opened = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2)]
    yield opened[0], opened[1]
    for fd in opened:
        os.close(fd)


def test_each_wait_is_in_its_bounds() -> None:
    for tries in range(1, 200):
        whole = backoff(tries, 0.5, 60.0, spread=0.0)
        assert whole == min(60.0, 0.5 * 2.0 ** (tries - 1))
        assert 0.5 * whole <= backoff(tries, 0.5, 60.0) <= whole
        assert 0.0 <= backoff(tries, 0.5, 60.0, spread=1.0) <= whole


def test_a_lock_is_held_by_one(holders: tuple[int, int]) -> None:
    one, other = holders
    assert lock(one)
    assert not lock(other) and not lock(other, shared=True) and not lock(other, patience=0.01)
    unlock(one)
    assert lock(other, patience=None)


def test_a_lock_may_be_shared(holders: tuple[int, int]) -> None:
    one, other = holders
    assert lock(one, shared=True) and lock(other, shared=True)
    assert not lock(one), "the other has it, too"
