from __future__ import annotations

import pytest

from headrace.driver.policies.workers import Autoscaler


def play(pool: Autoscaler, moments: list[tuple[float, int, int]]) -> list[int]:
    """What is wanted at each moment: (seconds, calls of each worker, tasks that wait)."""
    return [
        pool.wanted(dict.fromkeys(range(pool.size), calls), waiting=waiting, now=now)
        for now, calls, waiting in moments
    ]


def test_it_doubles_while_work_waits() -> None:
    pressed = [(i / 4, 2, 100) for i in range(12)]
    assert play(Autoscaler(1, 8), pressed) == [1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 8, 8]


def test_it_grows_by_no_more_than_there_is_work_for() -> None:
    assert play(Autoscaler(4, 8), [(0, 1, 1), (1, 1, 1), (2, 1, 1)]) == [4, 5, 6]


def test_it_does_not_grow_while_somebody_is_free_or_nothing_waits() -> None:
    assert play(Autoscaler(1, 8), [(0, 1, 5), (0.4, 0, 5), (0.6, 1, 5), (1.0, 1, 5)]) == [1, 1, 1, 1]
    assert play(Autoscaler(1, 8), [(i, 1, 0) for i in range(5)]) == [1] * 5


def test_it_grows_at_once_for_work_that_is_worth_it() -> None:
    pool = Autoscaler(1, 8)
    pool.expect_work()
    assert play(pool, [(0, 1, 1), (0.1, 1, 1), (0.4, 1, 1), (0.7, 1, 1)]) == [2, 2, 2, 3]
    pool.expect_work()
    assert play(pool, [(1.0, 0, 1), (1.1, 1, 1)]) == [3, 3]  # somebody was free


def test_it_loses_one_at_a_time_while_nothing_is_to_do() -> None:
    pool = Autoscaler(2, 8)
    play(pool, [(i / 4, 2, 100) for i in range(12)])
    assert pool.size == 8
    assert play(pool, [(10 + i, 0, 0) for i in range(0, 40, 5)]) == [8, 7, 6, 5, 4, 3, 2, 2]


def test_a_moment_of_work_keeps_them() -> None:
    pool = Autoscaler(1, 2)
    play(pool, [(0, 1, 9), (1, 1, 9)])
    assert play(pool, [(10, 0, 0), (14, 1, 1), (16, 0, 0), (20, 0, 0), (21, 0, 0)]) == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("calls", [0, 1])
def test_fixed_bounds_are_kept(calls: int) -> None:
    assert set(play(Autoscaler(3, 3), [(i, calls, 5 * calls) for i in range(30)])) == {3}
