"""What a reader has of a shard is known by where its rows come from, however an attempt that begins anew goes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.core.work import Shard, Split
from headrace.errors import ShardFailed
from headrace.worker.rows import Rows, RowSpan, UndeliveredRows, delivered_after, rebatch

SHARD = Shard(0, (Split(0, 0, 20, 20), Split(1, 0, 20, 20)))


def outcome(seed: int, size: int) -> Iterator[Rows]:
    """What came of the rows of the source this time: of some nothing, of some several, in batches of ``size``."""
    chance = random.Random(seed)

    def whole() -> Iterator[Rows]:
        for split in SHARD.splits:
            numbers = np.arange(20)
            rows = Rows(
                pa.record_batch({"row": numbers + 20 * split.file, "seed": [seed] * 20}),
                (RowSpan(split, 0, 20),),
            )
            counts = [chance.choice([0, 1, 1, 3]) for _ in numbers]
            yield rows.repeated(rows.batch.take(pa.array(np.repeat(numbers, counts))), counts)

    return rebatch(whole(), size)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 9), st.integers(1, 9), st.integers(0, 15))
def test_no_row_comes_of_two_attempts(one: int, two: int, size: int, other: int, parts: int) -> None:
    got: list[tuple[int, int]] = []
    until = None
    for part, _ in zip(outcome(one, size), range(parts), strict=False):
        until = delivered_after(part, SHARD, until)
        got += [(row["row"], row["seed"]) for row in part.batch.to_pylist()]
    missing = UndeliveredRows(SHARD, until) if until is not None else None
    before = len(got)
    for part in outcome(two, other):
        part = missing.cut(part) if missing is not None else part
        got += [(row["row"], row["seed"]) for row in part.batch.to_pylist()]
    rows = [row for row, _ in got]
    assert rows == sorted(rows)
    if one == two:
        assert got == [(row["row"], one) for part in outcome(one, 7) for row in part.batch.to_pylist()]
    last = rows[before - 1] if before else -1
    again = [row["row"] for part in outcome(two, 7) for row in part.batch.to_pylist()]
    assert [row for row in rows[before:] if row > last] == [row for row in again if row > last]


def test_rows_of_a_batch_that_is_cut_otherwise_the_second_time_are_an_error() -> None:
    first = RowSpan(SHARD.splits[0], 0, 3, None, 9)
    batch = pa.record_batch({"x": [1, 2, 3]})
    until = delivered_after(Rows(batch, (first,)), SHARD, None)
    assert until is not None and (until.row, until.count) == (9, 3)
    assert not len(UndeliveredRows(SHARD, until).cut(Rows(batch, (first,))))
    with pytest.raises(ShardFailed, match="Set batch_size to a number"):
        UndeliveredRows(SHARD, until).cut(Rows(batch, (RowSpan(SHARD.splits[0], 0, 3, None, 15),)))


def test_a_reader_gets_each_row_once_although_the_function_changes_its_mind(tmp_path: Path) -> None:
    wide = 1 << 18  # bytes in a row: a block has 32 of them

    def chosen(row: dict[str, Any]) -> bool:
        return bool(row["id"] % 3 != (1 if (tmp_path / "died").exists() else 0))

    def wider(batch: dict[str, Any]) -> dict[str, Any]:
        again = (tmp_path / "died").exists()
        if batch["id"][0] >= 80 and not again:
            os.close(os.open(tmp_path / "died", os.O_CREAT))
            os._exit(9)
        return {"id": batch["id"], "x": np.zeros((len(batch["id"]), wide // 8))}

    data = hr.range(120).filter(chosen).map_batches(wider, batch_size=4, concurrency=1)
    data = data.with_options(engine="local", workers=1, shard_rows=120)
    ids = [int(row) for batch in data.iter_batches() for row in batch["id"]]
    assert (tmp_path / "died").exists()
    assert ids == sorted(set(ids))
    border = max(i for i in ids if i % 3 == 1)  # what the reader had of the first attempt
    first, second = [i for i in ids if i <= border], [i for i in ids if i > border]
    assert first == [i for i in range(border + 1) if i % 3]
    assert [i for i in second if i > border + 2] == [i for i in range(border + 3, 120) if i % 3 != 1]
