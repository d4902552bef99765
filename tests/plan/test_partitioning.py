"""Work is cut so that batches of a size that the user said stay whole, and no row is nobody's or two pieces'."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.core.source_ports import Source
from headrace.core.work import Split
from headrace.options import RunOptions
from headrace.plan.compile import make_shards
from headrace.plan.partitioning import MODEL_ROWS, MOST_READ_TWICE, Partitioning, row_ranges
from headrace.session.execution_plan import ExecutionPlan
from headrace.sources.range import RangeSource


def splits_of(rows: list[int]) -> list[Split]:
    return [Split(0, n, n + 1, count, 8 * count) for n, count in enumerate(rows)]


class FakeSource(Source):
    def __init__(self, splits: list[Split]) -> None:
        self._splits = splits

    def splits(self) -> list[Split]:
        return self._splits

    def splits_in_batches(self, rows: int) -> list[Split]:
        return self._splits


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 100), st.booleans())
def test_every_row_is_in_one_piece_and_pieces_end_where_batches_do(
    rows: list[int], unit: int, whole: bool
) -> None:
    numbered = [(n, row) for n, count in enumerate(rows) for row in range(count)]
    found = []
    for extent in row_ranges(splits_of(rows), unit, whole=whole):
        own = [(split.start, row) for split in extent.splits for row in range(split.rows)][extent.skip :]
        own = own if extent.rows is None else own[: extent.rows]
        found += own
        assert not unit or whole or len(found) % unit == 0 or len(found) == len(numbered)
        spare = sum(split.rows for split in extent.splits) - len(own)
        assert not spare or extent.rows is not None or extent.skip
    assert found == numbered


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=60), st.integers(1, 100))
def test_pieces_of_what_is_left_of_a_shard_end_where_batches_do(
    sizes: list[tuple[int, int]], unit: int
) -> None:
    splits = [
        Split(0, n, n + 1, count, 8 * count, low=min(left, count - 1))
        for n, (count, left) in enumerate(sizes)
    ]
    numbered = [(split.start, row) for split in splits for row in range(split.low, split.rows)]
    found = []
    for extent in row_ranges(splits, unit):
        own = [(split.start, row) for split in extent.splits for row in range(split.low, split.rows)]
        own = own[extent.skip :] if extent.rows is None else own[extent.skip : extent.skip + extent.rows]
        found += own
        assert len(found) % unit == 0 or len(found) == len(numbered)
    assert found == numbered


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 100))
def test_little_is_read_twice(rows: list[int], unit: int) -> None:
    cut = list(row_ranges(splits_of(rows), unit))
    for before, after in pairwise(cut):
        if before.splits[-1] == after.splits[0]:
            assert before.rows is not None and 4 * before.splits[-1].rows <= before.rows


def test_small_splits_are_joined_up_to_a_batch() -> None:
    assert [len(each.splits) for each in row_ranges(splits_of([4] * 300), 256)] == [64] * 4 + [44]
    assert [len(each.splits) for each in row_ranges(splits_of([4] * 300), 0)] == [1] * 300


def test_the_least_shard_is_a_batch_and_shards_end_where_batches_do() -> None:
    images = [Split(0, n, n + 4, 4, 600_000) for n in range(0, 300, 4)]
    assert [shard.rows for shard in make_shards(images, 2, None, 256)] == [256, 44]
    assert [shard.rows for shard in make_shards(RangeSource(1000).splits_in_batches(20), 16, None, 20)] == [
        20
    ] * 50
    many = [shard.rows for shard in make_shards(RangeSource(200_000).splits_in_batches(5000), 1, None, 5000)]
    assert len(many) > 5 and not any(rows % 5000 for rows in many)


@given(st.integers(0, 300_000), st.integers(1, 100_000))
def test_splits_of_ranges_are_of_multiples_of_a_batch(rows: int, batch: int) -> None:
    splits = RangeSource(rows).splits_in_batches(batch)
    assert sum(split.rows for split in splits) == rows
    assert batch > 65_536 or not any(split.rows % batch for split in splits[:-1])
    assert max((split.rows for split in splits), default=0) <= max(65_536, batch)


@given(
    st.lists(st.integers(0, 900), max_size=12),
    st.sampled_from([0, 1, 7, 32, 256, 300]),
    st.integers(1, 9),
    st.sampled_from([1, 40, MODEL_ROWS]),
)
def test_few_rows_for_models_go_to_all_workers(rows: list[int], batch: int, workers: int, few: int) -> None:
    """Each row is in one shard, in order, and shards have whole batches."""
    least = max(batch, few)
    plan = Partitioning((batch,), False, batch, batch, True, workers, few=least)
    shards = plan.shards(FakeSource(splits_of(rows)))
    found = [
        (split.start, row)
        for shard in shards
        for split in shard.splits
        for row in range(split.low, split.low + split.length)
    ]
    assert found == [(n, row) for n, count in enumerate(rows) for row in range(count)]
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert {split.start for shard in shards for split in shard.splits} == set(range(len(rows)))
    assert len(shards) >= min(workers, sum(rows) // (2 * least))
    assert all(shard.rows >= batch for shard in shards[:-1])


@pytest.mark.parametrize(
    "changed",
    [{"few": 0}, {"shard_rows": 5_000}, {"workers": 1}, {"bytes": MOST_READ_TWICE + 1}, {"rows": -1}],
)
def test_other_shards_are_left_as_they_are(changed: dict[str, int]) -> None:
    options = {"workers": 4, "few": MODEL_ROWS, **changed}
    split = Split(0, 0, 1, options.pop("rows", 1_000), options.pop("bytes", 8_000))
    shards = Partitioning((0,), False, 0, 0, True, **options).shards(FakeSource([split]))
    assert [shard.splits for shard in shards] == [(split,)]


def test_a_model_that_gets_one_row_group_is_with_each_worker() -> None:
    split = Split(0, 0, 1, 500, 8_000)
    shards = Partitioning((256,), False, 256, 256, True, 2, few=256).shards(FakeSource([split]))
    assert [(part.low, part.high) for shard in shards for part in shard.splits] == [(0, 256), (256, 500)]


@given(
    st.lists(st.integers(0, 900), max_size=12),
    st.sampled_from([0, 32]),
    st.integers(1, 9),
    st.integers(1, 3_000),
    st.sampled_from([0, 40]),
)
def test_the_rows_that_a_limit_may_let_pass_have_shards_of_their_own(
    rows: list[int], batch: int, workers: int, first: int, few: int
) -> None:
    plan = Partitioning((batch,), False, batch, batch, True, workers, few=few, first=first)
    shards = plan.shards(FakeSource(splits_of(rows)))
    found = [
        (split.start, row)
        for shard in shards
        for split in shard.splits
        for row in range(split.low, split.low + split.length)
    ]
    assert found == [(n, row) for n, count in enumerate(rows) for row in range(count)]
    assert [shard.index for shard in shards] == list(range(len(shards)))
    needed = plan.needed(shards)
    assert sum(shard.rows for shard in shards[:needed]) == min(first, sum(rows))
    assert needed == len(shards) or sum(shard.rows for shard in shards[: needed - 1]) < first


def test_a_limit_leaves_what_nobody_has_counted_as_it_is() -> None:
    plan = Partitioning((0,), False, 0, 0, True, 2, first=10)
    shards = plan.shards(FakeSource([Split(0, 0, 1, -1, 8_000), Split(0, 1, 2, 100, 8_000)]))
    assert [shard.splits for shard in shards] == [(Split(0, 0, 1, -1, 8_000), Split(0, 1, 2, 100, 8_000))]
    assert plan.needed(shards) == 1


class Model:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


def pieces(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row] * 30


@pytest.mark.parametrize("declared", [{}, {"concurrency": 2}])
def test_a_batch_size_behind_a_flat_map_says_nothing_about_rows_of_input(declared: dict[str, int]) -> None:
    data = hr.range(125).flat_map(pieces).map_batches(Model, batch_size=512, **declared)
    execution = ExecutionPlan(data._plan, RunOptions(workers=None if declared else 2))
    assert [shard.rows for shard in execution.shards] == [62, 63]
    plain = hr.range(125).map_batches(Model, batch_size=512, **declared)
    assert len(ExecutionPlan(plain._plan, RunOptions(workers=None if declared else 2)).shards) == 1


@pytest.mark.parametrize("sized", [{}, {"batch_size": 20}])
def test_a_small_input_of_which_parts_are_handed_on_is_as_few_files_as_workers(sized: dict[str, int]) -> None:
    data = hr.range(4_000).map_batches(Model, concurrency=2, **sized)
    written = ExecutionPlan(data._plan, RunOptions(), writes=True)
    assert [shard.rows for shard in written.shards] == [2_000, 2_000]
