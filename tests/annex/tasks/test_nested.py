"""Calls that make calls and wait for them end, on however few workers, and whatever is killed."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import CallLost, HeadraceError

from .leftovers import workers

WITHIN = 240


def fib(n: int) -> int:
    executor = hr.connect()
    if n < 2:
        return n
    return sum(executor.get([executor.submit(fib, n - 1), executor.submit(fib, n - 2)]))


def tree(executor: hr.Executor, depth: int, width: int) -> int:
    """Count the tasks; the executor may be passed on."""
    if not depth:
        return 1
    return 1 + sum(executor.get([executor.submit(tree, executor, depth - 1, width) for _ in range(width)]))


def chain(n: int) -> int:
    executor = hr.connect()
    return 1 + executor.get(executor.submit(chain, n - 1)) if n else 0


def leaf(folder: str, name: str) -> str:
    """End the worker, once."""
    mark = Path(folder) / name
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return name


def branch(folder: str, name: str) -> list[str]:
    executor = hr.connect()
    leaf(folder, name)
    return executor.get([executor.submit(leaf, folder, f"{name}{i}") for i in range(2)])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("depth", "calls"), [(3, 1_111), pytest.param(4, 11_111, marks=pytest.mark.soak)])
def test_a_tree_of_thousands_of_calls_ends_on_two_workers(
    executor: hr.Executor, depth: int, calls: int
) -> None:
    assert executor.submit(fib, 12).result(WITHIN) == 144
    assert executor.submit(tree, executor, depth, 10).result(WITHIN) == calls
    assert len(workers()) <= 2 * 12 + 2, "the deepest come first, so few wait at a time"


def test_a_chain_of_calls_that_wait_has_a_worker_for_each(fresh: hr.Executor) -> None:
    depth = 37
    assert fresh.submit(chain, depth).result(WITHIN) == depth


def test_killed_workers_change_no_result(executor: hr.Executor, tmp_path: Path) -> None:
    def root(folder: str) -> list[list[str]]:
        executor = hr.connect()
        return executor.get([executor.submit(branch, folder, name) for name in "ab"])  # type: ignore[no-any-return]

    whole = executor.options(max_retries=-1)
    assert whole.submit(root, str(tmp_path)).result(WITHIN) == [["a0", "a1"], ["b0", "b1"]]
    assert sorted(mark.name for mark in tmp_path.iterdir()) == ["a", "a0", "a1", "b", "b0", "b1"]


def test_any_worker_may_be_killed_from_outside(fresh: hr.Executor) -> None:
    result = fresh.submit(tree, fresh, 3, 10)
    killed = threading.Event()

    def kill() -> None:
        for each in workers()[:2]:
            each.kill()
        killed.set()

    timer = threading.Timer(1.0, kill)
    timer.start()
    assert result.result(WITHIN) == 1_111
    timer.join()
    assert killed.is_set()


def test_a_call_that_always_dies_fails_alone(executor: hr.Executor) -> None:
    def dies() -> None:
        os._exit(1)

    def parent() -> str:
        executor = hr.connect()
        try:
            executor.options(max_retries=1).submit(dies).result()
        except CallLost:
            return "caught"
        return "none"

    assert executor.submit(parent).result(WITHIN) == "caught"


def test_calls_in_calls_raise_what_they_raised(executor: hr.Executor) -> None:
    def broken() -> int:
        return {}["key"]  # type: ignore[no-any-return]

    def parent() -> Any:
        executor = hr.connect()
        endless = executor.submit(signal.pause)
        with pytest.raises(TimeoutError):
            executor.get(endless, timeout=0.01)
        endless.cancel(force=True)
        return executor.get(executor.submit(broken))

    with pytest.raises(KeyError) as caught:
        executor.submit(parent).result(WITHIN)
    assert not isinstance(caught.value, HeadraceError)
    assert "in broken" in str(caught.value.__cause__)


def test_a_pool_in_a_call_lets_others_work(fresh: hr.Executor) -> None:
    """On one core: the pool's actors make calls, which need the core of the call that waits for the pool."""

    class Doubler:
        def double(self, x: int) -> int:
            executor = hr.connect()
            return executor.submit(lambda: 2 * x).result()

    def pooled() -> list[int]:
        executor = hr.connect()
        pool = hr.ActorPool([executor.actor(Doubler)])
        return list(pool.map(lambda actor, x: actor.double(x), [1, 2]))

    whole = fresh.options(num_cpus=2)
    assert whole.submit(pooled).result(WITHIN) == [2, 4]


def test_everything_is_let_go(fresh: hr.Executor) -> None:
    """What workers held is gone from the driver once they have dropped it."""

    class Keeper:
        def keep(self, refs: list[Any]) -> None:
            self.refs = refs

        def drop(self) -> None:
            self.refs = []

        def values(self) -> list[Any]:
            return [ref.get() for ref in self.refs]

    keeper = fresh.actor(Keeper)
    keeper.keep([fresh.put("a"), fresh.submit(str, "b")]).result(WITHIN)
    assert keeper.values().result(WITHIN) == ["a", "b"]
    keeper.drop().result(WITHIN)
    keeper.values().result(WITHIN)
    held = fresh._core.requests._held
    assert [things for things in held.values() if things] == []
    with pytest.raises(HeadraceError, match="means something only to its executor"):
        pickle.dumps(keeper)
