"""Actors and pools of them: order, deaths, room, and Ray's manners."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import headrace as hr
from headrace.annex.tasks.hosting.task_host import Coroutines
from headrace.errors import (
    ActorDied,
    ArgumentError,
    BadReturn,
    NotOffered,
    NotPicklable,
    ResourcesUnavailable,
    TimedOut,
    UnknownArgument,
)

from .leftovers import private_memory
from .test_calls import WITHIN, fifo, let_through, through
from .test_put import until


class Scorer:
    """Remembers what it was asked."""

    def __init__(self, offset: Any = 0, *, log: str | None = None) -> None:
        self.offset = offset
        self.seen: list[Any] = []
        if log is not None:
            with open(log, "a") as file:
                print(os.getpid(), file=file)

    def score(self, value: Any) -> Any:
        self.seen.append(value)
        return value + self.offset

    def history(self) -> list[Any]:
        return self.seen

    def pid(self) -> int:
        return os.getpid()

    def nap(self, seconds: float) -> None:
        time.sleep(seconds)

    async def later(self) -> int:
        return 1

    def fail(self, value: int) -> float:
        return 1 / value

    def wait(self, gate: str, value: Any) -> Any:
        return through(gate, value)

    def die(self, _: Any = None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_once(self, mark: str) -> str:
        if not os.path.exists(mark):
            Path(mark).touch()
            self.die()
        return "alive"

    def __call__(self, value: Any) -> Any:
        return value, self.offset


def test_methods_run_in_the_order_of_the_calls(executor: hr.Executor) -> None:
    actor = executor.actor(Scorer, 10)
    slow = executor.submit(lambda: (time.sleep(0.05), 1)[1])
    futures = [actor.score(slow), actor.score.remote(2), actor.score(value=3)]
    assert executor.get(futures) == [11, 12, 13]
    assert actor.history().result() == [1, 2, 3]
    assert actor(4).result() == (4, 10)
    assert actor.__call__.remote(5).result() == (5, 10)
    with pytest.raises(ZeroDivisionError):
        actor.fail(0).result()
    assert actor.pid().result() == actor.pid().result() != os.getpid()


def test_async_methods_are_awaited_and_functions_are_not(executor: hr.Executor) -> None:
    assert executor.actor(Scorer).later().result(WITHIN) == 1
    with pytest.raises(BadReturn, match=r"later is async, and only methods of actors may be async"):
        executor.submit(Scorer.later, None).result(WITHIN)


def test_a_method_that_is_cancelled_before_its_first_step_ends() -> None:
    side, begun, go_on = Coroutines(2), threading.Event(), threading.Event()

    def hold() -> None:  # in the loop: nothing else runs there
        begun.set()
        go_on.wait(WITHIN)

    first = side.submit(1, hold, lambda action, sent: action(), None)
    assert begun.wait(WITHIN)
    second = side.submit(2, Scorer().later, lambda action, sent: action(), None)
    side.cancel(2)
    go_on.set()
    assert first.result(WITHIN) is None
    with pytest.raises(CancelledError):
        second.result(WITHIN)
    side._loop.close()


def test_arguments_of_the_constructor_may_be_refs_and_futures(executor: hr.Executor) -> None:
    actor = executor.actor(Scorer, executor.put(np.ones(100_000)))
    assert actor.score(1).result().sum() == 200_000
    assert executor.actor(Scorer, executor.submit(abs, -5)).score(1).result() == 6
    assert executor.actor(lambda x: Scorer(x), 3).score(1).result() == 4
    broken = executor.actor(Scorer, executor.submit(lambda: 1 // 0))
    with pytest.raises(ZeroDivisionError):
        broken.score(1).result(WITHIN)


def test_a_constructor_that_raises(executor: hr.Executor) -> None:
    def broken() -> Any:
        raise LookupError("no such model")

    actor = executor.actor(broken)
    for _ in range(2):
        with pytest.raises(LookupError, match="no such model"):
            actor.anything().result(WITHIN)
    until(lambda: executor.available == executor.limits)


def test_mistakes_are_told_at_once(executor: hr.Executor) -> None:
    with pytest.raises(UnknownArgument, match=r"Scorer\(…\).*'num_gpu'.* Did you mean 'num_gpus'"):
        executor.actor(Scorer, num_gpu=1)
    with pytest.raises(TypeError, match="too many positional"):
        executor.actor_pool(Scorer, 1, 2, 3)
    actor = executor.actor(Scorer)
    with pytest.raises(NotOffered, match=r"no method 'scores'\. Did you mean 'score'"):
        actor.scores(1)
    assert not hasattr(actor, "nothing")
    with pytest.raises(NotPicklable, match="means something only to its executor"):
        pickle.dumps(actor)
    with pytest.raises(ArgumentError, match="size=0"):
        executor.actor_pool(Scorer, size=0)


def test_an_actor_ends_with_its_last_handle(executor: hr.Executor) -> None:
    pid = executor.actor(Scorer, 1).pid().result(WITHIN)
    gc.collect()
    until(lambda: not psutil.pid_exists(pid))


def test_an_actor_that_dies_is_dead(executor: hr.Executor) -> None:
    actor = executor.actor(Scorer)
    with pytest.raises(ActorDied, match=r"Scorer\.die: the actor's process ended: .*(SIGKILL|ended)"):
        actor.die().result(WITHIN)
    with pytest.raises(ActorDied):
        actor.score(1).result(WITHIN)
    until(lambda: executor.available == executor.limits)


def test_an_actor_that_may_be_made_again(executor: hr.Executor, tmp_path: Path) -> None:
    actor = executor.actor(Scorer, 5, max_restarts=2, max_retries=1)
    assert actor.score(1).result() == 6
    assert actor.die_once(str(tmp_path / "mark")).result(WITHIN) == "alive"
    assert actor.history().result() == [], "it is a new object"
    psutil.Process(actor.pid().result()).kill()
    assert actor.score(2).result(WITHIN) == 7, "it was killed while it had nothing to do"
    with pytest.raises(ActorDied):
        actor.die().result(WITHIN)


def test_memory_of_actors_is_hard() -> None:
    with hr.connect(workers=2, memory_limit="1GiB") as executor:
        with pytest.raises(ResourcesUnavailable, match=r"Scorer can never run here: it needs 4 × 300 MiB"):
            executor.actor_pool(Scorer, size=4, memory="300MiB")
        pool = executor.actor_pool(Scorer, size=3, memory="300MiB")
        assert list(pool.map(lambda actor, v: actor.score(v), range(4))) == [0, 1, 2, 3]
        later = executor.actor(Scorer, memory="500MiB")
        asked = later.score(1)
        assert not asked.done()
        del pool
        gc.collect()
        assert asked.result(WITHIN) == 1


# ---------------------------------------------------------------- pools


def score(actor: Any, value: Any) -> Any:
    return actor.score(value)


def test_results_in_order(executor: hr.Executor, tmp_path: Path) -> None:
    pool = executor.actor_pool(Scorer, size=2)
    gate = fifo(tmp_path)
    pool.submit(lambda actor, value: actor.wait(gate, value), "slow")
    pool.submit(score, 1)
    assert pool.has_next() and not pool.has_free() and pool.pop_idle() is None
    with pytest.raises(TimedOut):
        pool.get_next(timeout=0.01)
    assert pool.get_next_unordered() == 1
    assert pool.has_free()
    let_through(gate)
    with pytest.raises(ValueError, match="not in order any more"):
        pool.get_next()
    assert pool.get_next_unordered(timeout=WITHIN) == "slow"
    assert not pool.has_next()
    with pytest.raises(StopIteration):
        pool.get_next()
    with pytest.raises(StopIteration):
        pool.get_next_unordered()


def test_more_items_than_actors(executor: hr.Executor) -> None:
    pool = executor.actor_pool(Scorer, 100, size=2)
    assert list(pool.map(score, range(40))) == [100 + i for i in range(40)]
    assert sorted(pool.map_unordered(score, range(40))) == [100 + i for i in range(40)]
    assert list(pool.map(lambda actor, v: actor.score.remote(v), [])) == []


def test_what_is_passed_over(executor: hr.Executor, tmp_path: Path) -> None:
    pool = executor.actor_pool(Scorer, size=1)
    gate = fifo(tmp_path)
    pool.submit(lambda actor, value: actor.wait(gate, value), "slow")
    pool.submit(score, 2)
    with pytest.raises(TimeoutError, match="passed over"):
        pool.get_next(timeout=0.01, ignore_if_timedout=True)
    let_through(gate)
    assert pool.get_next(timeout=WITHIN) == 2
    pool.submit(score, 3)
    assert list(pool.map(score, [4])) == [4], "earlier results are dropped"


def test_order_cannot_be_had_after_disorder(executor: hr.Executor, tmp_path: Path) -> None:
    pool = executor.actor_pool(Scorer, size=2)
    gate = fifo(tmp_path)
    pool.submit(lambda actor, value: actor.wait(gate, value), "slow")
    pool.submit(score, 1)
    assert pool.get_next_unordered() == 1
    let_through(gate)
    assert pool.get_next_unordered() == "slow"
    pool.submit(score, 2)
    assert pool.get_next() == 2


def test_actors_come_and_go(executor: hr.Executor) -> None:
    one, two = executor.actor(Scorer, 1), executor.actor(Scorer, 2)
    pool = hr.ActorPool([one])
    pool.push(two)
    with pytest.raises(ValueError, match="is in this pool already"):
        pool.push(one)
    found = {pool.pop_idle(), pool.pop_idle()}
    assert found == {one, two} and pool.pop_idle() is None and not pool.has_free()
    pool.submit(score, 5)
    assert pool.has_next()
    pool.push(one)
    assert pool.get_next() == 6


def test_what_is_no_call_is_refused(executor: hr.Executor) -> None:
    pool = executor.actor_pool(Scorer, size=1)
    with pytest.raises(ArgumentError, match=r"returned a int.*lambda actor, value: actor\.predict"):
        pool.submit(lambda actor, value: value, 1)


def test_a_pool_of_nobody_does_not_wait(executor: hr.Executor) -> None:
    pool = hr.ActorPool([])
    pool.submit(score, 1)
    with pytest.raises(ArgumentError, match="There is no actor in this pool"):
        pool.get_next()
    with pytest.raises(ArgumentError, match="A pool takes actors, and 1 is not one"):
        pool.push(1)  # type: ignore[arg-type]
    pool.push(executor.actor(Scorer))
    assert pool.get_next(WITHIN) == 1


def test_an_item_whose_actor_died_is_tried_on_the_next(executor: hr.Executor, tmp_path: Path) -> None:
    pool = executor.actor_pool(Scorer, log=str(tmp_path / "log"), size=2)
    mark = str(tmp_path / "mark")
    for i in range(8):
        pool.submit((lambda a, v: a.die_once(mark)) if i == 3 else score, i)
    assert [pool.get_next(WITHIN) for _ in range(8)] == [0, 1, 2, "alive", 4, 5, 6, 7]
    assert len((tmp_path / "log").read_text().split()) == 3


def test_an_item_that_always_kills_fails_alone(executor: hr.Executor) -> None:
    pool = executor.actor_pool(Scorer, size=2, max_retries=1)
    for i in range(6):
        pool.submit((lambda a, v: a.die(v)) if i == 2 else score, i)
    found: list[Any] = []
    while pool.has_next():
        try:
            found.append(pool.get_next(WITHIN))
        except ActorDied as error:
            assert "Scorer.die ended its actor's process 2 times" in str(error)
            found.append("died")
    assert found == [0, 1, "died", 3, 4, 5]


def test_a_constructor_that_kills(executor: hr.Executor) -> None:
    pool = executor.actor_pool(os._exit, 7, size=2)
    pool.submit(score, 1)
    with pytest.raises(ActorDied, match=r"_exit ended its worker 3 times, the last time: .*(status 7|ended)"):
        pool.get_next(WITHIN)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_actors_of_a_pool_share_the_arguments_of_the_constructor(executor: hr.Executor) -> None:
    class Private:
        def __init__(self, array: Any) -> None:
            self.array = array

        def private(self, _: Any) -> int:
            assert self.array.sum() == len(self.array)
            return private_memory()

    pool = executor.actor_pool(Private, np.ones(32 << 20), size=2)
    found = list(pool.map(lambda actor, v: actor.private(v), range(4)))
    assert max(found) < 200 << 20
