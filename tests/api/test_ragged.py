"""Arrays that differ in shape go through functions, stages and files: boxes per image, crops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import OutputSchemaChanged

QUIET = {"engine": "inline", "progress": False}


def boxes(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "boxes": np.full((row["id"] % 3, 4), row["id"], np.float32)}


def right(rows: list[dict[str, Any]], times: int = 1) -> bool:
    return all(
        each["boxes"].dtype == np.float32
        and each["boxes"].shape == (each["id"] % 3, 4)
        and (each["boxes"] == each["id"] * times).all()
        for each in rows
    )


def double(batch: dict[str, Any]) -> dict[str, Any]:
    made = np.empty(len(batch["id"]), object)
    for i, each in enumerate(batch["boxes"]):
        made[i] = each * 2
    return {"id": batch["id"], "boxes": made}


WAYS = {
    "map": lambda data: data.map(lambda row: {"id": row["id"], "boxes": row["boxes"] * 2}),
    "flat_map": lambda data: data.flat_map(lambda row: [{"id": row["id"], "boxes": row["boxes"] * 2}]),
    "numpy": lambda data: data.map_batches(double, batch_size=1),
    "list": lambda data: data.map_batches(
        lambda batch: {"id": batch["id"], "boxes": [each * 2 for each in batch["boxes"]]}, batch_size=2
    ),
    "pandas": lambda data: data.map_batches(
        lambda frame: frame.assign(boxes=[each * 2 for each in frame["boxes"]]), batch_format="pandas", batch_size=1
    ),
    "predict": lambda data: data.predict(
        lambda batch: {"boxes": double(batch)["boxes"]}, batch_size=1, replace=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_any_shape_go_through_functions_and_files(way: str, tmp_path: Path) -> None:
    data = hr.range(7).with_options(**QUIET).map(boxes)
    WAYS[way](data).write_parquet(tmp_path / "out")
    read = hr.read_parquet(tmp_path / "out").with_options(**QUIET)
    assert read.schema().field("boxes").type == hr.RaggedTensorType(pa.float32(), 2)
    assert right(read.take_all(), 2)
    assert right(read.to_pandas().to_dict("records"), 2)
    assert pq.read_table(tmp_path / "out")["boxes"].to_pylist()[1] == {"data": [2.0] * 4, "shape": [1, 4]}


def test_batches_of_a_size_hold_arrays_of_one_shape_and_of_several() -> None:
    sizes: list[int] = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(batch["id"]))
        return {"id": batch["id"], "boxes": batch["boxes"]}

    one_by_one = hr.range(7).with_options(**QUIET).map_batches(lambda batch: batch, batch_size=1).map(boxes)
    assert right(one_by_one.map_batches(look, batch_size=3).take_all())
    assert sizes == [3, 3, 1]


def test_blocks_between_stages_hold_them() -> None:
    data = hr.range(7).with_options(progress=False).map(boxes, num_cpus=0.5)
    assert right(data.map_batches(double, batch_size=2, num_cpus=0.6).take_all(), 2)


def test_other_shapes_than_those_of_the_first_rows_are_explained_and_the_advice_helps(tmp_path: Path) -> None:
    def crops(batch: dict[str, Any]) -> dict[str, Any]:
        return {"crop": [np.ones((1 + i // 2, 4), np.float32) for i in batch["id"]]}

    def told(batch: dict[str, Any]) -> dict[str, Any]:
        column = np.empty(len(batch["id"]), object)
        column[:] = crops(batch)["crop"]
        return {"crop": column}

    data = hr.range(4).with_options(**QUIET)
    with pytest.raises(
        OutputSchemaChanged, match=r"settled as arrays of shape \(1, 4\).*numpy.empty\(n, object\)"
    ):
        data.map_batches(crops, batch_size=2).write_parquet(tmp_path / "a")
    shapes = [(1, 4), (1, 4), (2, 4), (2, 4)]
    named = pa.schema([("crop", hr.RaggedTensorType(pa.float32(), 2))])
    data.map_batches(crops, batch_size=2).write_parquet(tmp_path / "b", schema=named)
    rows = hr.read_parquet(tmp_path / "b").take_all()
    assert [row["crop"].shape for row in rows] == shapes
    assert [row["crop"].shape for row in data.map_batches(told, batch_size=1).take_all()] == shapes


def test_lists_of_one_length_are_what_a_model_takes(tmp_path: Path) -> None:
    given: list[np.ndarray[Any, Any]] = []

    class Model:
        def load(self) -> None:
            pass

        def predict(self, batch: dict[str, np.ndarray[Any, Any]]) -> Any:
            given.append(batch["e"])
            return np.array([sum(each) for each in batch["e"]])

        def close(self) -> None:
            pass

    table = pa.table({"e": pa.array([[1, 2], [3, 4], [5, 6], [7]], pa.list_(pa.float32()))})
    pq.write_table(table, tmp_path / "a.parquet")
    data = hr.read_parquet(tmp_path / "a.parquet").with_options(**QUIET)
    rows = data.predict(Model(), inputs=["e"], batch_size=2).take_all()
    assert [row["prediction"] for row in rows] == [3, 7, 11, 7]
    assert (given[0].shape, given[0].dtype) == ((2, 2), np.float32) and given[1].dtype == object


def test_arrays_that_a_function_brings_to_one_shape_are_one_array_in_the_next() -> None:
    sizes = hr.range(6).map(boxes).map(lambda row: {**row, "boxes": np.resize(row["boxes"], (2, 4))})
    shapes = sizes.map_batches(lambda b: {"shape": [b["boxes"].shape] * len(b["id"])}, batch_size=3)
    assert [row["shape"] for row in shapes.with_options(**QUIET).take_all()] == [[3, 2, 4]] * 6
