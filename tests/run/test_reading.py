"""Reading in order when the first rows leave a column's type open."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr

ROWS = 12


def late(row: dict[str, Any]) -> dict[str, Any]:
    """A column that holds nothing in the first rows."""
    return {"id": row["id"], "late": None if row["id"] < 6 else row["id"]}


@pytest.fixture(params=["inline", "local"])
def dataset(request: pytest.FixtureRequest) -> mr.Dataset:
    items = mr.from_items([{"id": i} for i in range(ROWS)])
    items._plan.source._rows_per_split = 2
    return items.map(late).with_options(engine=request.param, workers=2, shard_rows=2)


def test_all(dataset: mr.Dataset) -> None:
    assert [row["late"] for row in dataset.take_all()] == [None] * 6 + list(range(6, ROWS))


@pytest.mark.parametrize("limit", [1, 3, 8, 50])
def test_limited(dataset: mr.Dataset, limit: int) -> None:
    rows = dataset.limit(limit).take_all()
    assert [row["id"] for row in rows] == list(range(min(limit, ROWS)))
    assert dataset.take(limit) == rows
