"""The memory policy against runs of every size: what is paused, which worker ends, and that this ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.driver.policies.memory import END, PAUSE, TRIES, MemoryPolicy, MemorySample, Retirement

LIMIT = 1_000
MEMORY = st.integers(0, 600)


@st.composite
def samples(draw: st.DrawFn) -> MemorySample:
    sizes = draw(st.lists(st.lists(MEMORY, max_size=4), min_size=1, max_size=3))
    numbers = iter(range(100))
    stages = [{next(numbers): size for size in stage} for stage in sizes]
    return MemorySample(draw(MEMORY), draw(MEMORY), stages)


@given(samples())
def test_the_biggest_worker_ends_if_memory_is_short_and_only_then(sample: MemorySample) -> None:
    policy = MemoryPolicy(LIMIT)
    end = policy.judge(sample)
    workers = {worker: taken for stage in sample.stages for worker, taken in stage.items()}
    assert policy.paused == (sample.total > PAUSE * LIMIT)
    assert (end is not None) == (sample.total > END * LIMIT and bool(workers))
    assert not policy.hopeless
    if end is not None:
        pool = sample.stages[end.stage]
        assert workers[end.worker] == pool[end.worker] == max(workers.values()) == end.taken
        assert end.replaced == (len(pool) == 1), "a pool shrinks, but not below one"
        assert end.alone == (sample.total - sum(pool.values()) + end.taken > END * LIMIT)
        assert end.fresh
        assert "memory_limit" in end.reason


@given(samples(), samples())
def test_a_worker_that_is_ending_is_not_ended_twice(first: MemorySample, then: MemorySample) -> None:
    policy = MemoryPolicy(LIMIT)
    end = policy.judge(first)
    again = policy.judge(first)
    if end is None:
        assert again is None
        return
    assert policy.ending == {end.worker} | ({again.worker} if again is not None else set())
    left = first.total - end.taken
    assert policy.total == (left if again is None else policy.total)
    assert (again is not None) == (left > END * LIMIT and sum(map(len, first.stages)) > 1)
    assert again is None or again.worker != end.worker
    gone = MemorySample(first.driver, first.blocks, [{} for _ in first.stages])
    assert policy.judge(gone) is None
    assert not policy.ending, "the dead are forgotten"
    assert isinstance(policy.judge(then), Retirement | None)


@given(st.lists(st.integers(0, 949), min_size=1, max_size=30))
def test_before_that_the_biggest_worker_gets_smaller_batches_twice(taken: list[int]) -> None:
    policy = MemoryPolicy(LIMIT)
    shrunk = []
    for size in taken:
        assert policy.judge(MemorySample(0, 0, [{1: size, 2: 0}])) is None
        shrunk += [size] if policy.shrink == (0, 1) else []
        assert policy.shrink in (None, (0, 1))
    first = next((i for i, size in enumerate(taken) if size > 850), len(taken))
    again = [size for size in taken[first + 1 :] if size > 900]
    assert shrunk == taken[first : first + 1] + again[:1]


def test_no_worker_is_ended_where_the_driver_uses_all_memory() -> None:
    policy = MemoryPolicy(LIMIT)
    assert policy.judge(MemorySample(960, 0, [{1: 10}])) is None
    assert "this process alone takes" in policy.hopeless


@pytest.mark.parametrize("workers", [1, 3])
def test_the_run_ends_where_nothing_is_completed(workers: int) -> None:
    policy = MemoryPolicy(LIMIT)
    for start in range(100):
        stage = {start * workers + i: 600 for i in range(workers)}
        if policy.judge(MemorySample(400, 0, [stage])) is None and policy.hopeless:
            break
    assert start <= TRIES + workers
    assert "no work was finished in between" in policy.hopeless


def test_the_run_goes_on_where_something_is_completed() -> None:
    policy = MemoryPolicy(LIMIT)
    for start in range(100):
        policy.worked(start)
        assert policy.judge(MemorySample(0, 0, [{start: 990}])) is not None
    assert not policy.hopeless


def test_a_worker_that_has_completed_something_is_not_fresh() -> None:
    policy = MemoryPolicy(LIMIT)
    policy.judge(MemorySample(0, 0, [{1: 100}]))
    policy.worked(1)
    end = policy.judge(MemorySample(0, 0, [{1: 990}]))
    assert end is not None and not end.fresh


def test_once_a_shard_did_not_fit_idle_workers_that_use_much_are_replaced() -> None:
    policy = MemoryPolicy(LIMIT)
    policy.worked(1)
    full = MemorySample(100, 0, [{1: 500, 2: 10}])
    assert policy.judge(full, idle=[1, 2]) is None
    policy.shard_too_big = True
    assert policy.judge(full, idle=[2]) is None, "it is at work, or has done nothing yet"
    end = policy.judge(full, idle=[1, 2])
    assert end is not None and end.worker == 1 and end.idle and end.replaced
