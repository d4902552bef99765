"""Splits become shards: in order, each once, none empty, several for each worker where there is enough."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.work import Shard, Split
from headrace.plan.compile import SMALL, SMALL_UNCOUNTED, make_shards
from headrace.sources.range import RangeSource

SPLITS = st.builds(
    Split,
    file=st.integers(0, 3),
    start=st.integers(0, 100),
    stop=st.integers(100, 200),
    rows=st.one_of(st.just(-1), st.integers(1, 10**6)),
    bytes=st.integers(0, 100 << 20),
)


def rows_of(shards: list[Shard]) -> list[int]:
    return [shard.rows for shard in shards]


@given(st.lists(SPLITS, max_size=60), st.integers(1, 64), st.one_of(st.none(), st.integers(1, 10**6)))
def test_every_split_once_in_order_and_no_shard_empty(
    splits: list[Split], workers: int, shard_rows: int | None
) -> None:
    shards = make_shards(splits, workers, shard_rows)
    assert [split for shard in shards for split in shard.splits] == splits
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert all(shard.splits for shard in shards)
    assert shards == make_shards(splits, workers, shard_rows)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=80), st.integers(1, 5000))
def test_shard_rows_is_met_within_half_a_split_at_either_side(rows: list[int], shard_rows: int) -> None:
    shards = make_shards(
        [Split(0, n, n + 1, count, 8 * count) for n, count in enumerate(rows)], 4, shard_rows
    )
    for shard in shards[:-1]:
        assert len(shard.splits) == 1 or shard.rows < shard_rows + shard.splits[-1].rows / 2
    for shard, after in pairwise(shards):
        assert shard.rows + after.splits[0].rows / 2 >= shard_rows


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_little_data_gives_every_worker_several_shards(workers: int) -> None:
    shards = make_shards(RangeSource(6400).splits(), workers)
    assert len(shards) >= min(7, 3 * workers)
    assert min(rows_of(shards)[:-1]) >= 1024
    assert len(make_shards(RangeSource(6400).splits(), 2)) == 7


@pytest.mark.parametrize("workers", [1, 2, 64])
def test_a_hundred_rows_are_one_shard(workers: int) -> None:
    assert len(make_shards(RangeSource(100).splits(), workers)) == 1
    cut = [Split(0, n, n + 1, 1, 10_000) for n in range(100)]
    assert len(make_shards(cut, workers)) == 1


def test_the_least_shard_is_a_mebibyte_or_1024_rows_or_128_kib() -> None:
    wide = make_shards([Split(0, n, n + 1, 1, 100_000) for n in range(200)], 64)
    assert {len(shard.splits) for shard in wide[:-1]} == {10}  # about a MiB
    narrow = make_shards([Split(0, n, n + 1, 256, 2048) for n in range(40)], 64)
    assert set(rows_of(narrow)) == {1024}
    uncounted = make_shards([Split(0, n, n + 1, bytes=32 << 10) for n in range(40)], 64)
    assert {len(shard.splits) for shard in uncounted} == {4}


def test_big_shards_come_first() -> None:
    sizes = rows_of(make_shards(RangeSource(1_000_000).splits(), 2))
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert 10 <= len(sizes) <= 30
    assert sizes[0] == pytest.approx(1_000_000 / 6, rel=0.1)


def test_no_shard_is_much_more_than_64_mebibytes() -> None:
    shards = make_shards([Split(0, n, n + 1, 1000, 8 << 20) for n in range(1000)], 2)
    assert max(len(shard.splits) for shard in shards) == 8


def test_shard_rows_where_rows_are_not_known_goes_by_a_guess() -> None:
    splits = [Split(0, n, n + 1, bytes=131_072) for n in range(14)]
    assert len(make_shards(splits, 2, 500)) == 14
    assert [len(shard.splits) for shard in make_shards(splits, 2, 4000)] == [3, 3, 3, 3, 2]


@given(st.lists(SPLITS, max_size=60), st.integers(1, 64))
def test_a_small_input_is_as_few_shards_as_can_be(splits: list[Split], workers: int) -> None:
    shards = make_shards(splits, workers, few=True)
    assert [split for shard in shards for split in shard.splits] == splits
    most = SMALL_UNCOUNTED if any(split.rows < 0 for split in splits) else SMALL
    total = sum(split.bytes for split in splits)
    if total <= most * workers:
        assert len(shards) <= max(1, -(-total // most)) + 1  # splits are not cut
    else:
        assert shards == make_shards(splits, workers)


def test_a_small_input_is_divided_evenly() -> None:
    splits = [Split(0, n, n + 1, 1_000, 1 << 20) for n in range(28)]
    assert [len(shard.splits) for shard in make_shards(splits, 2, few=True)] == [14, 14]
    assert [len(shard.splits) for shard in make_shards(splits[:14], 2, few=True)] == [14]
    assert len(make_shards(splits, 1, few=True)) > 3
    assert len(make_shards(splits, 2, 1_000, few=True)) == 28


def test_no_splits_no_shards() -> None:
    assert make_shards([], 4) == []
    assert len(make_shards([Split(0, 0, 1, 1, 0), Split(0, 1, 2, 1, 0)], 4)) == 1
