"""The policy of memory against runs of every size: who waits, who goes, and that it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.run.pressure import PAUSE, STOP, TRIES, End, Pressure, Sample

LIMIT = 1_000
MEMORY = st.integers(0, 600)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    sizes = draw(st.lists(st.lists(MEMORY, max_size=4), min_size=1, max_size=3))
    numbers = iter(range(100))
    stages = [{next(numbers): size for size in stage} for stage in sizes]
    return Sample(draw(MEMORY), draw(MEMORY), stages)


@given(samples())
def test_the_biggest_goes_if_there_is_too_much_and_only_then(sample: Sample) -> None:
    pressure = Pressure(LIMIT)
    end = pressure.judge(sample)
    workers = {worker: taken for stage in sample.stages for worker, taken in stage.items()}
    assert pressure.paused == (sample.total > PAUSE * LIMIT)
    assert (end is not None) == (sample.total > STOP * LIMIT and bool(workers))
    assert not pressure.hopeless
    if end is not None:
        pool = sample.stages[end.stage]
        assert workers[end.worker] == pool[end.worker] == max(workers.values()) == end.taken
        assert end.replaced == (len(pool) == 1), "a pool shrinks, but not below one"
        assert end.alone == (sample.total - sum(pool.values()) + end.taken > STOP * LIMIT)
        assert end.fresh
        assert "memory_limit" in end.reason


@given(samples(), samples())
def test_who_is_about_to_end_takes_nothing_more_and_is_not_ended_twice(first: Sample, then: Sample) -> None:
    pressure = Pressure(LIMIT)
    end = pressure.judge(first)
    again = pressure.judge(first)
    if end is None:
        assert again is None
        return
    assert end.worker not in pressure.live(dict.fromkeys(range(100), 0))
    left = first.total - end.taken
    assert pressure.total == (left if again is None else pressure.total)
    assert (again is not None) == (left > STOP * LIMIT and sum(map(len, first.stages)) > 1)
    assert again is None or again.worker != end.worker
    gone = Sample(first.driver, first.blocks, [{} for _ in first.stages])
    assert pressure.judge(gone) is None
    assert pressure.live({end.worker: 0}) == {end.worker: 0}, "numbers of the dead are forgotten"
    assert isinstance(pressure.judge(then), End | None)


@given(st.lists(st.integers(0, 949), min_size=1, max_size=30))
def test_before_that_it_gets_smaller_batches_twice(taken: list[int]) -> None:
    pressure = Pressure(LIMIT)
    squeezed = []
    for size in taken:
        assert pressure.judge(Sample(0, 0, [{1: size, 2: 0}])) is None
        squeezed += [size] if pressure.squeeze == (0, 1) else []
        assert pressure.squeeze in (None, (0, 1))
    first = next((i for i, size in enumerate(taken) if size > 850), len(taken))
    again = [size for size in taken[first + 1 :] if size > 900]
    assert squeezed == taken[first : first + 1] + again[:1]


def test_where_the_driver_takes_it_all_nobody_is_ended() -> None:
    pressure = Pressure(LIMIT)
    assert pressure.judge(Sample(960, 0, [{1: 10}])) is None
    assert "this process alone takes" in pressure.hopeless


@pytest.mark.parametrize("workers", [1, 3])
def test_trying_ends_where_nothing_gets_done(workers: int) -> None:
    pressure = Pressure(LIMIT)
    for start in range(100):
        stage = {start * workers + i: 600 for i in range(workers)}
        if pressure.judge(Sample(400, 0, [stage])) is None and pressure.hopeless:
            break
    assert start <= TRIES + workers
    assert "nothing done between" in pressure.hopeless


def test_trying_goes_on_where_something_gets_done() -> None:
    pressure = Pressure(LIMIT)
    for start in range(100):
        pressure.worked(start)
        assert pressure.judge(Sample(0, 0, [{start: 990}])) is not None
    assert not pressure.hopeless


def test_a_worker_that_has_done_something_is_not_fresh() -> None:
    pressure = Pressure(LIMIT)
    pressure.judge(Sample(0, 0, [{1: 100}]))
    pressure.worked(1)
    end = pressure.judge(Sample(0, 0, [{1: 990}]))
    assert end is not None and not end.fresh


def test_once_a_shard_did_not_fit_workers_that_keep_much_are_not_used_again() -> None:
    pressure = Pressure(LIMIT)
    pressure.worked(1)
    full = Sample(100, 0, [{1: 500, 2: 10}])
    assert pressure.judge(full, idle=[1, 2]) is None
    pressure.tight = True
    assert pressure.judge(full, idle=[2]) is None, "it is at work, or has done nothing yet"
    end = pressure.judge(full, idle=[1, 2])
    assert end is not None and end.worker == 1 and end.idle and end.replaced
