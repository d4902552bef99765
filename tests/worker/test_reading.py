"""Reading in order when the first rows leave a column's type open."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.work import Fault, Reject, Split
from headrace.worker.reading import Read, reads_in_window
from headrace.worker.rows import Rows, RowSpan

ROWS = 12


def late(row: dict[str, Any]) -> dict[str, Any]:
    """A column that holds nothing in the first rows."""
    return {"id": row["id"], "late": None if row["id"] < 6 else row["id"]}


@pytest.fixture(params=["inline", "local"])
def dataset(request: pytest.FixtureRequest) -> hr.Dataset:
    items = hr.from_items([{"id": i} for i in range(ROWS)])
    items._plan.source._rows_per_split = 2
    return items.map(late).with_options(engine=request.param, workers=2, shard_rows=2)


def test_all(dataset: hr.Dataset) -> None:
    assert [row["late"] for row in dataset.take_all()] == [None] * 6 + list(range(6, ROWS))


@pytest.mark.parametrize("limit", [1, 3, 8, 50])
def test_limited(dataset: hr.Dataset, limit: int) -> None:
    rows = dataset.limit(limit).take_all()
    assert [row["id"] for row in rows] == list(range(min(limit, ROWS)))
    assert dataset.take(limit) == rows


@pytest.mark.parametrize("unit", [1, 3, 7, 10, 20, 25])
def test_pieces_that_share_a_split_part_its_unreadable_rows(unit: int) -> None:
    splits = [Split(0, n, n + 1, 10) for n in range(2)]

    def reads(split: Split) -> Any:
        """Rows 4 to 7 cannot be read."""
        lost = Reject(split, 4, 7, Fault("read", "", ""), False, 4)
        yield Read(Rows(pa.record_batch({"x": range(4)}), (RowSpan(split, 0, 4),)))
        yield Read(Rows(pa.record_batch({"x": [8, 9]}), (RowSpan(split, 8, 2),)), (lost,))

    rows, lost = [], []
    for start in range(0, 20, unit):
        own = reads_in_window(((split, reads(split)) for split in splits), start, unit)
        for read in (read for each in own for read in each):
            rows += read.rows.batch.column(0).to_pylist() if len(read.rows) else []
            for reject in read.rejects:
                assert reject.count == reject.last - reject.row + 1 <= unit
                lost += range(reject.row, reject.last + 1)
    assert rows == 2 * [0, 1, 2, 3, 8, 9]
    assert lost == 2 * [4, 5, 6, 7]
