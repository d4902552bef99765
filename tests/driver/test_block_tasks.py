"""The scheduler of several stages, driven by a world with its own clock: runs end, in order, within the budget."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossed import few
from headrace.driver.block_tasks import INITIAL_BYTES

from .world import Path, Plan, World


def world_of(draw: random.Random, *, deaths: int, steady: bool, reading: bool, joined: bool = False) -> World:
    stages = draw.choice([1, 1, 1, 2, 3])
    salt = draw.random()
    most = draw.choice([1, 2, 4])
    size = INITIAL_BYTES if steady else draw.choice([INITIAL_BYTES, INITIAL_BYTES // 8, 100])

    def fan(path: Path) -> int:
        return random.Random(hash((path, salt))).randrange(0, most + 1)

    def size_of(path: Path) -> int:
        return size if steady else random.Random(hash((path, salt, 1))).randrange(1, size + 1)

    speeds = [draw.choice([0.01, 0.1, 1.0]) for _ in range(stages)]
    use = draw.choice([0.01, 0.1, 1.0])
    plan = Plan(
        earlier=[draw.randrange(1, 5) for _ in range(stages)],
        last=draw.randrange(1, 4),
        shards=[draw.randrange(0, 5) for _ in range(draw.randrange(1, 12))],
        fan=fan,
        size=size_of,
        make_time=lambda stage: speeds[stage] * draw.random(),
        use_time=lambda: use * draw.random(),
        budget=draw.choice([0, size, 3 * size, 100 * size]),
        deaths=deaths,
        reading=reading,
        keeps=draw.choice([1, 2]),
    )
    if joined:
        plan.units = [draw.choice([0, 2, 5]) for _ in range(stages)]
    if not steady:
        plan.rows = lambda split: random.Random(hash((split, salt, 2))).randrange(0, 5)
        share = draw.choice([0.0, 0.0, 0.3])
        plan.rejects = lambda row: random.Random(hash((row, salt, 3))).random() < share
        plan.cut = draw.choice([1, 3])
        plan.units = [draw.choice([0, 0, 1, 2, 5, 40]) for _ in range(stages)]
        plan.whole = draw.random() < 0.1
    return World(plan, draw.randrange(1 << 30))


@settings(max_examples=few(24), suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 40), deaths=st.sampled_from([0, 0, 1, 3, 8]), reading=st.booleans())
def test_it_ends_with_every_block_in_order(seed: int, deaths: int, reading: bool) -> None:
    world = world_of(random.Random(seed), deaths=deaths, steady=False, reading=reading)
    world.run()
    for shard in range(len(world.shards)):
        streams, rejected = world.streams(shard)
        assert world.finished[shard] == streams[-1]
        assert sorted(world.rejected[shard]) == sorted(rejected)
    if not deaths:
        assert not world.blocks and not world.scheduler.blocks.held, "every block is dropped"
    assert world.scheduler.finished and world.scheduler.error is None


@settings(max_examples=few(24), suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 40), deaths=st.sampled_from([0, 0, 2]), reading=st.booleans())
def test_the_budget_is_exceeded_by_one_block_of_each_open_shard_at_most(
    seed: int, deaths: int, reading: bool
) -> None:
    world = world_of(random.Random(seed), deaths=deaths, steady=True, reading=reading)
    world.run()
    opened = min(len(world.shards), 2 * world.plan.last)
    unread = world.plan.last * world.plan.keeps * INITIAL_BYTES  # what attempts hold on to while they wait
    assert world.worst <= world.plan.budget + opened * INITIAL_BYTES + unread


@settings(max_examples=few(24), suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 40), deaths=st.sampled_from([0, 0, 2]), reading=st.booleans())
def test_where_blocks_are_joined_it_is_exceeded_by_the_blocks_of_one_task_at_most(
    seed: int, deaths: int, reading: bool
) -> None:
    world = world_of(random.Random(seed), deaths=deaths, steady=True, reading=reading, joined=True)
    world.run()
    opened = min(len(world.shards), 2 * world.plan.last)
    joined = 1 + sum(max(1, unit) for unit in world.plan.units[1:])
    unread = world.plan.last * world.plan.keeps * INITIAL_BYTES
    assert world.worst <= world.plan.budget + opened * joined * INITIAL_BYTES + unread


@pytest.mark.parametrize(
    ("earlier", "last", "make", "use"),
    [
        (2, 1, 1.0, 0.5),
        (2, 1, 1.0, 0.1),
        (2, 1, 0.2, 1.0),
        (4, 2, 1.0, 0.5),
        (1, 1, 1.0, 1.0),
        (8, 1, 1.0, 0.125),
    ],
)
def test_the_bottleneck_is_never_idle_for_long(earlier: int, last: int, make: float, use: float) -> None:
    ahead = 1 + math.ceil(2 * earlier / (4 * last))
    plan = Plan(
        earlier=[earlier],
        last=last,
        shards=[4] * 25,
        fan=lambda path: 4,
        size=lambda path: INITIAL_BYTES,
        make_time=lambda stage: make,
        use_time=lambda: use,
        budget=64 * INITIAL_BYTES,
        ahead=max(2, ahead),
    )
    world = World(plan)
    world.run()
    ideal = max(400 * make / earlier, 400 * use / last)
    assert world.now <= 1.05 * ideal + 4 * (make + use)


def test_a_chain_of_three_stages_is_as_fast_as_its_slowest() -> None:
    plan = Plan(
        earlier=[2, 2],
        last=1,
        shards=[4] * 20,
        fan=lambda path: 2,
        size=lambda path: INITIAL_BYTES,
        make_time=lambda stage: (0.2, 1.0)[stage],
        use_time=lambda: 0.1,
        budget=64 * INITIAL_BYTES,
    )
    world = World(plan)
    world.run()
    ideal = 20 * 4 * 2 * 2 * 1.0 / 2
    assert world.now <= 1.05 * ideal + 5
