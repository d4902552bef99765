"""This process is the first worker, and hands over once others can work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from headrace.core.engine_ports import Engine, Pool, PoolSpec
from headrace.core.messages import EndEarly
from headrace.engines.inline import DriverFirstEngine
from headrace.engines.local.pool import LocalEngine
from headrace.errors import EngineError
from headrace.testing.engines import Hosted, until

Start = Callable[..., Pool]


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[Engine] = []

    def start(patience: float, open_others: Callable[[], Engine] = LocalEngine) -> Pool:
        engine = DriverFirstEngine(open_others, patience)
        engines.append(engine)
        return engine.start(PoolSpec("pool", partial(Hosted, ""), 2), lambda worker, message: None)

    yield start
    for engine in engines:
        engine.close(kill=True)


def process(pool: Pool) -> int:
    found: int = pool.submit("about").result()[2]
    return found


def test_all_is_done_here_while_there_is_patience(start: Start) -> None:
    pool = start(3600.0)
    assert process(pool) == os.getpid()
    assert len(pool.loads()) == 1


def test_others_take_over_and_what_is_done_here_is_ended(start: Start) -> None:
    pool = start(0.0)
    (here,) = pool.loads()
    until(lambda: here not in pool.loads())
    assert len(pool.loads()) == 2
    assert process(pool) != os.getpid()
    fed = pool.submit("next_fed", worker=here).result()
    assert isinstance(fed[-1], EndEarly)


def test_an_attempt_that_waits_goes_on_where_it_began(start: Start) -> None:
    pool = start(0.0)
    (here,) = pool.loads()
    until(lambda: here not in pool.loads())
    assert pool.submit("about", worker=here).result()[2] == os.getpid()


def test_others_that_cannot_start_end_the_run(start: Start) -> None:
    def none() -> Any:
        raise EngineError("no process could be started")

    pool = start(0.0, none)

    def fails() -> bool:
        try:
            pool.loads()
        except EngineError:
            return True
        return False

    until(fails)
