"""When a pool is given up whose workers die before they can work, and when it is given time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.core.engine_ports import PoolSpec, WorkerContext
from headrace.engines import deaths as restart_policy
from headrace.engines.deaths import Death, RestartPolicy
from headrace.engines.local.pool import LocalEngine, LocalPool
from headrace.errors import WorkerDied
from headrace.testing.engines import Hosted

DEATH = Death(1, -9, "starting", "")


def die(pool: RestartPolicy, times: int, *, together: bool = False) -> None:
    """Let workers die, each the replacement of the one before, or all of one time."""
    started = pool.round
    for _ in range(times):
        pool.on_death(DEATH, started if together else pool.round)


@pytest.mark.parametrize(("size", "deaths"), [(1, 3), (2, 3), (8, 8)])
def test_a_pool_that_never_worked_is_given_up_soon(size: int, deaths: int) -> None:
    pool = RestartPolicy()
    die(pool, deaths - 1)
    assert not pool.should_give_up(size) and pool.pause == 0
    die(pool, 1)
    assert pool.should_give_up(size)


def test_a_pool_that_worked_is_given_time() -> None:
    pool = RestartPolicy()
    pool.on_answer()
    pauses = []
    while not pool.should_give_up(1):
        pauses.append(pool.pause)
        die(pool, 1)
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30]


def test_workers_that_die_together_are_one_round() -> None:
    pool = RestartPolicy()
    pool.on_answer()
    die(pool, 16, together=True)
    assert not pool.should_give_up(16) and pool.pause == 0.5
    die(pool, 16, together=True)
    assert pool.pause == 1


def test_an_answer_makes_up_for_all() -> None:
    pool = RestartPolicy()
    pool.on_answer()
    die(pool, restart_policy.MAX_ROUNDS - 1)
    pool.on_answer()
    assert pool.pause == 0 and not pool.deaths
    die(pool, restart_policy.MAX_ROUNDS - 1)
    assert not pool.should_give_up(1)


# ---------------------------------------------------------------- with processes


def needs_luck(unlucky: Path, context: WorkerContext) -> Any:
    """Host something, or die, if the file is there."""
    if unlucky.exists():
        os._exit(9)
    return Hosted("", context)


@pytest.fixture
def unlucky(tmp_path: Path) -> Path:
    return tmp_path / "unlucky"


@pytest.fixture
def pool(unlucky: Path) -> Iterator[LocalPool]:
    """A pool that has worked."""
    engine = LocalEngine()
    pool = engine.start(PoolSpec("stage 1", partial(needs_luck, unlucky)), lambda *note: None)
    assert pool.submit("echo", 1).result() == 1
    yield pool
    engine.close(kill=True)


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


def strike(pool: LocalPool, unlucky: Path) -> None:
    """End the worker, and let its replacements die as they start."""
    unlucky.touch()
    with pytest.raises(WorkerDied):
        pool.submit("die").result()


def test_replacements_are_tried_until_one_can_work(
    pool: LocalPool, unlucky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_policy, "PAUSE", 0.01)
    strike(pool, unlucky)
    until(lambda: pool._restarts.round >= 5)
    unlucky.unlink()

    def answers() -> bool:
        try:
            return bool(pool.submit("echo", True).result())
        except WorkerDied as error:
            assert "in a row" not in str(error)
            return False

    until(answers)


def test_a_pool_is_given_up_in_the_end(
    pool: LocalPool, unlucky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_policy, "PAUSE", 0.01)
    strike(pool, unlucky)
    with pytest.raises(WorkerDied, match="8 workers of stage 1 in a row ended before they could work"):
        until(lambda: not pool.loads())


def test_a_worker_that_waits_for_its_time_ends_at_once(
    pool: LocalPool, unlucky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("PAUSE", "MAX_PAUSE"):
        monkeypatch.setattr(restart_policy, pause, 1e6)
    strike(pool, unlucky)
    until(lambda: pool._restarts.round >= 1)
    pool.close(kill=False)
