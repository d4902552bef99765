"""The type of a column is the same in every batch, whatever the values of one batch happen to be."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.core.batch import concat
from millrace.errors import BadReturn

UTC = dt.timezone.utc
TABLE = pa.table(
    {
        "count": pa.array([1, 2**60 + 1, None, 4], pa.int64()),
        "small": pa.array([1, 2, 3, None], pa.int8()),
        "price": pa.array([Decimal("1.5"), None, Decimal("100.25"), Decimal(0)], pa.decimal128(12, 4)),
        "tags": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int32())),
        "lists": pa.array([[], [], [1], None], pa.list_(pa.int16())),
        "kind": pa.array(["x", None, "y", "x"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
        "at": pa.array([dt.datetime(2020, 1, 1, tzinfo=UTC), None, None, None], pa.timestamp("ns", "Asia/Tokyo")),
        "flag": pa.array([True, None, False, None]),
        "deep": pa.array([{"a": None}, {"a": [1]}, None, {"a": []}], pa.struct([("a", pa.list_(pa.int8()))])),
        "many": pa.array([[{"a": 1}], [], None, [None]], pa.list_(pa.struct([("a", pa.int8())]))),
        "vector": pa.array([[1, 2]] * 4, pa.list_(pa.float32(), 2)),
        "holes": pa.array([[1, 2], None, None, [3, 4]], pa.list_(pa.int8(), 2)),
        "word": pa.array(["a", None, "b", "c"], pa.large_string()),
        "day": pa.array([dt.date(2020, 1, 1), None, None, None], pa.date64()),
        "never": pa.nulls(4, pa.int32()),
    }
)  # fmt: skip


@pytest.fixture
def data() -> mr.Dataset:
    return mr.from_arrow(TABLE)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "carry",
    [
        lambda data, size: data.map_batches(lambda b: {**b, "new": b["small"]}, batch_size=size),
        lambda data, size: data.map_batches(
            lambda b: {**{k: v[:] for k, v in b.items()}, "new": b["small"]}, batch_size=size
        ),
        lambda data, size: data.map_batches(
            lambda t: t.append_column("new", t["small"]), batch_size=size, batch_format="pyarrow"
        ),
        lambda data, size: data.map_batches(lambda b: b, batch_size=size).map(
            lambda row: {**row, "new": row["small"]}
        ),
        lambda data, size: data.map_batches(lambda b: b, batch_size=size).flat_map(
            lambda row: [{**row, "new": row["small"]}]
        ),
    ],
    ids=["numpy", "views", "pyarrow", "map", "flat_map"],
)
def test_columns_that_are_only_carried_keep_their_type(data: mr.Dataset, carry: Any, size: int) -> None:
    made = carry(data, size).to_arrow()
    assert made.drop_columns("new").cast(TABLE.schema).to_pylist() == TABLE.to_pylist()
    assert made.drop_columns("new").schema.remove_metadata() == TABLE.schema


@pytest.mark.parametrize("size", [1, 2, 4])
def test_pandas_keeps_integers_decimals_and_maps(data: mr.Dataset, size: int) -> None:
    columns = ["count", "small", "price", "tags"]
    made = data.map_batches(
        lambda frame: frame.assign(new=1), columns=columns, batch_format="pandas", batch_size=size
    ).to_arrow()
    assert made.drop_columns("new").to_pylist() == TABLE.select(columns).to_pylist()
    assert made.drop_columns("new").schema.remove_metadata() == TABLE.select(columns).schema


def test_decimals_and_maps_of_some_rows_keep_their_type(data: mr.Dataset) -> None:
    made = data.map_batches(
        lambda b: {name: b[name][b["vector"][:, 0] > 0] for name in ("price", "tags")}, batch_size=1
    ).to_arrow()
    assert made.to_pylist() == TABLE.select(["price", "tags"]).to_pylist()


def test_what_was_changed_is_not_taken_for_what_it_was(data: mr.Dataset) -> None:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        batch["deep"][1]["a"] = [7, 8]
        return {"deep": batch["deep"], "small": batch["small"][::-1], "count": batch["count"] + 1}

    made = data.map_batches(change).to_arrow().to_pydict()
    assert made["deep"][1] == {"a": [7, 8]}
    assert made["small"][1:] == [3, 2, 1] and made["count"][0] == 2

    def change_row(row: dict[str, Any]) -> dict[str, Any]:
        if row["lists"] is not None:
            row["lists"].append(5)
        return {"lists": row["lists"]}

    assert data.map(change_row).to_arrow()["lists"].to_pylist() == [[5], [5], [1, 5], None]


def test_flat_map_takes_carried_values_as_often_as_they_come(data: mr.Dataset) -> None:
    made = data.flat_map(lambda row: [row] * ((row["count"] or 0) % 3)).to_arrow()
    assert made.schema.remove_metadata() == TABLE.schema
    assert made.to_pylist() == TABLE.take([0, 1, 1, 3]).to_pylist()


def test_types_that_arrow_cannot_take_from() -> None:
    views = mr.from_arrow(pa.table({"a": pa.array(["a" * 20, None], pa.string_view())}))
    assert views.map(lambda row: row).to_arrow()["a"].type == pa.string_view()
    assert [row["a"] for row in views.flat_map(lambda row: [row, row]).take_all()] == ["a" * 20] * 2 + [
        None
    ] * 2


# ---------------------------------------------------------------- dictionaries, indexes


def test_batches_of_different_dictionaries_are_joined() -> None:
    def batch(words: list[str]) -> pa.RecordBatch:
        column = pa.array(words).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
        return pa.RecordBatch.from_arrays([column], names=["x"])

    assert concat([batch(["a", "b"]), batch(["c", "a"])]).to_pydict() == {"x": ["a", "b", "c", "a"]}
    some, others = [f"a{i}" for i in range(100)], [f"b{i}" for i in range(100)]
    joined = concat([batch(some), batch(others)])
    assert joined.to_pydict() == {"x": some + others}
    assert joined.schema.field("x").type == joined.column(0).type


def test_int8_dictionaries_are_joined_by_batch_size(tmp_path: Path) -> None:
    for i in range(2):
        words = pa.array([f"{i}.{j}" for j in range(100)]).dictionary_encode()
        pq.write_table(
            pa.table({"x": words.cast(pa.dictionary(pa.int8(), pa.string()))}), tmp_path / f"{i}.parquet"
        )
    data = mr.read_parquet(tmp_path).map_batches(lambda b: {"x": b["x"]}, batch_size=200)
    assert len({row["x"] for row in data.take_all()}) == 200


def test_named_levels_of_an_index_become_columns() -> None:
    def sums(frame: pd.DataFrame) -> Any:
        return frame.assign(odd=frame["id"] % 2, half=frame["id"] // 4).groupby(["odd", "half"]).sum()

    made = mr.range(8).map_batches(sums, batch_format="pandas").take_all()
    assert made[0] == {"odd": 0, "half": 0, "id": 2} and len(made) == 4
    unnamed = mr.range(4).map_batches(lambda frame: frame[frame["id"] > 1], batch_format="pandas")
    assert unnamed.take_all() == [{"id": 2}, {"id": 3}]
    clash = mr.range(4).map_batches(lambda frame: frame.set_index("id", drop=False), batch_format="pandas")
    with pytest.raises(BadReturn, match=r"index is named 'id', and so is a column.*drop=True"):
        clash.take_all()


# ---------------------------------------------------------------- weight


def test_rows_that_weigh_much_come_in_small_batches() -> None:
    sizes: list[int] = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(batch["image"]))
        return {"n": batch["image"][:, 0, 0]}

    big = np.zeros((1024, 1024), np.uint8)
    mr.range(40).map(lambda row: {"image": big}).map_batches(look, batch_size=None).take_all()
    assert max(sizes) <= 17 and sum(sizes) == 40
    sizes.clear()
    made = mr.range(3).flat_map(lambda row: ({"image": big + row["id"]} for _ in range(20))).map_batches(look)
    assert [row["n"] for row in made.take_all()] == [0] * 20 + [1] * 20 + [2] * 20
    assert max(sizes) <= 17
