"""Shards in parts: every row is in one of them, and their names sort as the rows do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.work import Remainder, Shard, Split
from headrace.driver.scheduler import Scheduler
from headrace.driver.shards import DEFAULT_ROWS, MAX_PARTS, parts_of, split_off
from headrace.output.journal_state import Divided, divided
from headrace.output.names import is_part
from headrace.plan.physical import SavedPlan
from headrace.worker.reading import SplitReader

COUNTS = st.lists(st.integers(0, 50), min_size=1, max_size=4)


class Numbers:
    """A source whose splits have the rows 0, 1, …; some cannot be read."""

    def __init__(self, bad: Sequence[int] = (), batch: int = 7) -> None:
        self._bad = bad
        self._batch = batch

    def forms(self) -> dict[str, str]:
        return {}

    def read(
        self, split: Split, columns: Any, batch_rows: int, bad: Callable[..., None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert (split.low, split.high) == (0, -1), "a source reads whole splits"
        count = split.stop
        for at in range(0, max(count, 1), self._batch):
            rows = range(at, min(at + self._batch, count))
            for row in rows:
                if row in self._bad and bad is not None:
                    bad(row, 1, ValueError("bad"))
            yield pa.record_batch({"row": pa.array([r for r in rows if r not in self._bad], pa.int64())})


def splits_of(counts: Sequence[int], known: Sequence[bool]) -> tuple[Split, ...]:
    return tuple(
        Split(i, 0, n, n if knows else -1) for i, (n, knows) in enumerate(zip(counts, known, strict=True))
    )


def rows_in(shard: Shard, source: Numbers) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the rows of a shard that are read and those that are reported as bad, as (split, number)."""
    good, bad = [], []
    for split in shard.splits:
        reading = SplitReader(source, split, None, tolerant=True)  # type: ignore[arg-type]
        schemas = 0
        while (read := reading.next()) is not None:
            schemas += "row" in read.rows.batch.schema.names
            numbers = [int(n) for span in read.rows.spans for n in span.numbers()]
            if len(read.rows):
                assert numbers == read.rows.batch.column("row").to_pylist()
            good += [(split.file, number) for number in numbers]
            bad += [(split.file, reject.row) for reject in read.rejects]
            assert all(reject.row == reject.last and reject.split == split for reject in read.rejects)
        assert schemas, "a part without rows still has the schema"
    return good, bad


@given(COUNTS, st.data())
def test_every_row_is_in_one_part_and_in_order(counts: list[int], data: st.DataObject) -> None:
    known = data.draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts)))
    source = Numbers(data.draw(st.sets(st.integers(0, 50))), data.draw(st.integers(1, 60)))  # type: ignore[arg-type]
    shards = [Shard(0, (Split(9, 0, 3, 3),)), Shard(1, splits_of(counts, known)), Shard(2, ())]
    whole = rows_in(shards[1], source)
    plan = SavedPlan("r", "", {}, [], list(shards), 0.0, "")
    for _ in range(data.draw(st.integers(1, 4))):
        victim = data.draw(st.sampled_from([s for s in plan.shards if s.place[0] == 1]))
        parts = parts_of(victim, data.draw(st.integers(0, 60)), len(plan.shards))
        if len(parts) > 1:
            record = msgspec.msgpack.decode(msgspec.msgpack.encode(Divided(tuple(parts))), type=Divided)
            plan = divided(plan, record)
            assert divided(plan, record) is plan, "a plan that was saved with the parts stays as it is"
    assert [shard.index for shard in plan.shards] == list(range(len(plan.shards)))
    assert plan.digits() == 5
    ordered = sorted((s for s in plan.shards if s.place[0] == 1), key=lambda shard: shard.place)
    found = [rows_in(shard, source) for shard in ordered]
    assert ([r for good, _ in found for r in good], [r for _, bad in found for r in bad]) == whole
    names = [
        f"part-{shard.label(5)}-abcdefgh.parquet" for shard in sorted(plan.shards, key=lambda s: s.place)
    ]
    assert names == sorted(names)
    assert all(is_part(name, {"abcdefgh"}) for name in names)


@given(st.randoms(use_true_random=False))
def test_the_rest_of_a_shard_stands_right_behind_it_whatever_was_divided_before(
    chance: random.Random,
) -> None:
    shards = [Shard(0, (Split(9, 0, 3, 3),)), Shard(1, (Split(0, 0, 500, 500),)), Shard(2, ())]
    scheduler = Scheduler(shards, merge=lambda known, proposed: (proposed, True))
    for _ in range(40):
        victim = scheduler.shard_of(chance.choice([1, *range(3, scheduler.count)]))
        family = scheduler.family(victim.index)
        if victim.rows > 1 and chance.random() < 0.7:
            rows = chance.randrange(1, victim.rows)
            rest = Remainder(0, victim.splits[0].low + rows, rows)
            scheduler.divide(split_off(victim, rest, scheduler.count, family))
        else:
            parts = parts_of(victim, chance.randrange(victim.rows + 1), scheduler.count, family)
            if len(parts) > 1:
                scheduler.divide(parts)
    ordered = sorted((scheduler.shard_of(i) for i in range(scheduler.count)), key=lambda shard: shard.place)
    windows = [split for shard in ordered for split in shard.splits if split.file == 0]
    assert [row for split in windows for row in range(split.low, split.low + split.length)] == list(
        range(500)
    )
    names = [f"part-{shard.label(5)}-abcdefgh.parquet" for shard in ordered]
    assert names == sorted(set(names))
    assert scheduler.family(1) == {shard.place for shard in ordered if shard.place[0] == 1} | (
        set() if len(ordered) > 3 else scheduler.family(1)
    )


def test_names_stay_short_however_often_a_rest_is_split_off() -> None:
    shard, family = Shard(7, (Split(0, 0, 10**6, 10**6),)), {(7,)}
    for row in range(1, 2_500):
        _, shard = split_off(shard, Remainder(0, row, 1), 7 + row, family)
        family.add(shard.place)
    assert shard.name == "7.999.999.501"


def test_parts_have_half_the_rows_that_the_worker_read() -> None:
    parts = parts_of(Shard(7, (Split(0, 0, 100, 100),)), 40, 12)
    assert [part.index for part in parts] == [7, 12, 13, 14, 15]
    assert [part.name for part in parts] == ["7.0", "7.1", "7.2", "7.3", "7.4"]
    assert [part.rows for part in parts] == [20] * 5
    again = parts_of(parts[0], 0, 16)
    assert [(part.name, part.rows) for part in again] == [("7.0.0", 10), ("7.0.1", 10)]


def test_a_shard_of_one_row_is_not_divided_and_parts_are_limited() -> None:
    one = Shard(3, (Split(0, 0, 100, 100, low=5, high=6),))
    assert parts_of(one, 0, 9) == [one]
    many = parts_of(Shard(3, (Split(0, 0, 10**6, 10**6),)), 2, 9)
    assert len(many) == MAX_PARTS
    assert sum(part.rows for part in many) == 10**6
    assert many[-1].name == "3.999"


@pytest.mark.parametrize(("rows", "size"), [(0, DEFAULT_ROWS), (100, 50)])
def test_a_split_of_unknown_rows_is_cut_into_windows_and_a_rest(rows: int, size: int) -> None:
    parts = parts_of(Shard(0, (Split(0, 0, 1),)), rows, 1)
    windows = [(split.low, split.high) for part in parts for split in part.splits]
    assert windows == [*((i * size, (i + 1) * size) for i in range(8)), (8 * size, -1)]
