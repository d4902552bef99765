"""Columns of one-dimensional arrays: rows show arrays in every batch, and list columns of files stay lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.dataset.dataset import Dataset

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
ROWS = 6


def array(i: int) -> np.ndarray[Any, Any] | None:
    """Rows 0 and 1 have one length, 2 has another, 3 has none, 4 is empty, 5 has one value."""
    return {0: np.array([1, 2]), 1: np.array([3, 4]), 2: np.array([5, 6, 7]), 3: None, 4: np.array([], np.int64)}.get(
        i, np.array([9])
    )  # fmt: skip


def arrays(batch: dict[str, Any]) -> list[Any]:
    return [array(int(i)) for i in batch["id"]]


def objects(values: list[Any]) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), object)
    for i, value in enumerate(values):
        made[i] = value
    return made


def torch_tensors(batch: dict[str, Any]) -> list[Any]:
    torch = pytest.importorskip("torch")
    return [each if each is None else torch.from_numpy(each) for each in arrays(batch)]


MADE: dict[str, Callable[[Dataset], Dataset]] = {
    "map": lambda data: data.map(lambda row: {**row, "x": array(row["id"])}),
    "flat_map": lambda data: data.flat_map(lambda row: [{**row, "x": array(row["id"])}]),
    "list": lambda data: data.map_batches(lambda batch: {**batch, "x": arrays(batch)}),
    "objects": lambda data: data.map_batches(lambda batch: {**batch, "x": objects(arrays(batch))}),
    "tensors": lambda data: data.map_batches(lambda batch: {**batch, "x": torch_tensors(batch)}),
    "pandas": lambda data: data.map_batches(
        lambda frame: frame.assign(x=arrays(frame)), batch_format="pandas"
    ),
    "predict": lambda data: data.predict(lambda batch: {"x": arrays(batch)}),
}

Step = Callable[[Dataset], Dataset]

PASSED: dict[str, Step] = {
    "nothing": lambda data: data,
    "select": lambda data: data.select_columns(["x", "id"]),
    "rename": lambda data: data.rename_columns({"x": "y"}).rename_columns({"y": "x"}),
    "expression": lambda data: data.filter(expr="id >= 0"),
    "not null": lambda data: data.filter(expr="x is not None or id >= 0"),
    "filter": lambda data: data.filter(lambda row: True),
    "map": lambda data: data.map(lambda row: {"id": row["id"], "x": row["x"]}),
    "numpy": lambda data: data.map_batches(lambda batch: {name: x[::-1][::-1] for name, x in batch.items()}),
    "copied": lambda data: data.map_batches(lambda batch: {name: x.copy() for name, x in batch.items()}),
    "pandas": lambda data: data.map_batches(lambda frame: frame.copy(), batch_format="pandas"),
    "pyarrow": lambda data: data.map_batches(
        lambda table: table.take(pa.array(range(len(table)))), batch_format="pyarrow"
    ),
    "predict": lambda data: data.predict(lambda batch: batch["id"], inputs=["id"], output="p"),
    "predicted": lambda data: (
        data.predict(lambda batch: {"y": batch["x"]}, inputs=["x"])
        .select_columns(["id", "y"])
        .rename_columns({"y": "x"})
    ),
    "batches": lambda data: data.map_batches(lambda batch: batch, batch_size=4),
    "materialize": lambda data: data.materialize(),
}


def check(rows: list[dict[str, Any]], times: int = 1) -> None:
    assert [row["id"] for row in rows] == list(range(ROWS))
    for row in rows:
        expected = array(row["id"])
        if expected is None:
            assert row["x"] is None
        else:
            assert isinstance(row["x"], np.ndarray), row
            assert row["x"].tolist() == (expected * times).tolist()


def doubled(data: Dataset, verb: str) -> list[dict[str, Any]]:
    """Compute with each row's ``x``; an array is doubled, a list would be repeated."""
    seen: list[dict[str, Any]] = []

    def look(row: dict[str, Any]) -> dict[str, Any]:
        seen.append({"id": row["id"], "x": None if row["x"] is None else row["x"] * 2})
        return row

    if verb == "map":
        data.map(look).filter(expr="id < 0").count()
    elif verb == "filter":
        data.filter(lambda row: bool(look(row))).count()
    else:
        data.flat_map(lambda row: [look(row)]).count()
    return seen


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("made", MADE)
def test_rows_show_arrays_in_every_batch(made: str, size: int) -> None:
    data = hr.range(ROWS).with_options(**QUIET).map_batches(lambda batch: batch, batch_size=size)
    for verb in ("map", "filter", "flat_map"):
        check(doubled(MADE[made](data), verb), 2)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("step", PASSED)
def test_they_stay_arrays_through_other_steps(step: str, size: int) -> None:
    if step == "materialize" and size < 4:
        pytest.skip("the first rows settle the type of the output")
    data = hr.range(ROWS).with_options(**QUIET).map_batches(lambda batch: batch, batch_size=size)
    check(doubled(PASSED[step](MADE["map"](data)), "map"), 2)


@pytest.mark.parametrize("step", ["nothing", "map", "numpy", "pyarrow"])
def test_they_are_arrays_for_who_reads_the_rows(step: str) -> None:
    data = PASSED[step](MADE["map"](hr.range(ROWS).with_options(**QUIET)))
    check(data.take_all())
    check(data.take(ROWS))
    check(list(data.iter_rows()))
    for format_ in ("numpy", "pandas"):
        batch = data.take_batch(ROWS, batch_format=format_)
        assert [type(each) for each in batch["x"][:3]] == [np.ndarray] * 3
    assert data.to_arrow().schema.equals(
        pa.schema({"id": pa.int64(), "x": pa.list_(pa.int64())}), check_metadata=True
    )
    assert not data.schema().field("x").metadata


def test_later_batches_of_equal_lengths_are_read_as_arrays_too() -> None:
    data = hr.range(4).with_options(**QUIET).map_batches(lambda batch: batch, batch_size=2)
    made = data.map(lambda row: {"x": array(3 - row["id"])})
    assert [type(row["x"]) for row in made.take_all()] == [type(None), *[np.ndarray] * 3]


@pytest.mark.parametrize("made", ["map", "list", "predict"])
def test_stages_and_process_borders_keep_them(made: str) -> None:
    data = MADE[made](
        hr.range(ROWS)
        .with_options(progress=False, engine="local")
        .map_batches(lambda batch: batch, batch_size=2)
    )
    data = data.map_batches(lambda batch: batch, batch_size=3, num_cpus=0.5)
    check(data.map(lambda row: {"id": row["id"], "x": None if row["x"] is None else row["x"] * 2},
                   num_cpus=0.6).take_all(), 2)  # fmt: skip


def test_rows_that_fail_keep_them() -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] % 2:
            raise ValueError("odd")
        return row

    data = MADE["map"](hr.range(ROWS).with_options(**QUIET, on_error="null")).map(fails)
    check(doubled(data.select_columns(["id", "x"]), "map")[::1], 2)


def test_a_dataset_of_items_has_them(tmp_path: Path) -> None:
    data = hr.from_items([{"id": i, "x": array(i)} for i in range(ROWS)]).with_options(**QUIET)
    check(doubled(data, "map"), 2)
    several = hr.from_numpy([np.ones((1, 2)), np.ones((1, 3))]).with_options(**QUIET)
    assert [type(row["data"]) for row in several.take_all()] == [np.ndarray] * 2
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"id": range(ROWS), "x": [array(i) for i in range(ROWS)]})
    check(doubled(hr.from_pandas(frame).with_options(**QUIET), "map"), 2)
    data.write_parquet(tmp_path / "out")
    assert pq.read_schema(next((tmp_path / "out").glob("part-*"))).field("x").type == pa.list_(pa.int64())


LISTS: dict[str, Step] = {
    "nothing": PASSED["nothing"],
    "map": PASSED["map"],
    "numpy": lambda data: data.map_batches(lambda batch: {name: x[::-1] for name, x in batch.items()}),
    "some": lambda data: data.map_batches(
        lambda batch: {name: x[batch["id"] < 2] for name, x in batch.items()}
    ),
    "listed": lambda data: data.map_batches(lambda batch: {name: list(x) for name, x in batch.items()}),
    "pandas": lambda data: data.map_batches(lambda frame: frame[frame["id"] < 2], batch_format="pandas"),
    "pyarrow": lambda data: data.map_batches(lambda table: table.slice(1), batch_format="pyarrow"),
}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("step", LISTS)
def test_lists_of_files_stay_lists(step: str, size: int, tmp_path: Path) -> None:
    table = pa.table({"id": [0, 1, 2], "x": [[1, 2], [3, 4], [5]]})
    pq.write_table(table, tmp_path / "a.parquet")
    seen: set[type] = set()

    def look(row: dict[str, Any]) -> dict[str, Any]:
        seen.add(type(row["x"]))
        return row

    for data in (hr.read_parquet(tmp_path / "a.parquet"), hr.from_items(table.to_pylist())):
        cut = data.with_options(**QUIET).map_batches(lambda batch: batch, batch_size=size)
        rows = LISTS[step](cut).map(look).take_all()
        assert seen == {list} and all(type(row["x"]) is list for row in rows)


@pytest.mark.parametrize("form", ["dict", "list", "pandas", "row"])
def test_arrays_within_dicts_and_lists_may_have_other_lengths_in_later_rows(
    form: str, tmp_path: Path
) -> None:
    """Those of the first rows all have one length, those of the second shard do not."""

    def within(i: int) -> Any:
        values = np.arange(3 if i < 4 else i % 3)
        return [values] if form == "list" else {"y": values}

    def made(batch: dict[str, Any]) -> Any:
        column = [within(int(i)) for i in batch["id"]]
        return pd.DataFrame({"x": column}) if form == "pandas" else {"x": column}

    pd = pytest.importorskip("pandas")
    data = hr.range(8).with_options(**QUIET, shard_rows=4)
    named = data.map(lambda row: {"x": within(row["id"])}) if form == "row" else data.map_batches(made)
    named.write_parquet(tmp_path / "out")
    read = hr.read_parquet(tmp_path / "out")
    lists = [list(range(3 if i < 4 else i % 3)) for i in range(8)]
    assert [row["x"] for row in read.take_all()] == [[x] if form == "list" else {"y": x} for x in lists]


@pytest.mark.parametrize("axes", [(0, 3, 2, 1), (0, 1, 3, 2), (0, 2, 1, 3)])
def test_arrays_whose_axes_arrow_swaps_come_as_they_were_made(axes: tuple[int, ...], tmp_path: Path) -> None:
    images = np.arange(48).reshape(2, 2, 3, 4).transpose(axes)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(images)
    assert column.type.permutation == [axis - 1 for axis in axes[1:]]
    column = pa.concat_arrays([pa.nulls(1, column.type), column])
    data = hr.from_arrow(pa.table({"x": column})).with_options(**QUIET)

    def seen(batch: Any) -> Any:
        for image, before in zip(batch["x"], [None, *images], strict=True):
            assert image is before or np.array_equal(image, before)
        return {"x": [image if image is None else image.copy() for image in batch["x"]]}

    for batch_format in ("numpy", "pandas"):
        made = data.map_batches(seen, batch_format=batch_format).take_all()
        assert np.array_equal([row["x"] for row in made[1:]], images)
    assert np.array_equal([row["x"] for row in data.take(3)[1:]], images)
    data.write_json(tmp_path / "json")
    (path,) = (tmp_path / "json").glob("*.json")
    assert [json.loads(line)["x"] for line in path.read_text().splitlines()] == [None, *images.tolist()]
    assert data.to_arrow()["x"].type.equals(column.type)


def test_axes_that_pyarrow_itself_mixes_up_are_refused() -> None:
    images = np.arange(48).reshape(2, 2, 3, 4).transpose(0, 3, 1, 2)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(images)
    assert column.to_numpy_ndarray().shape != images.shape, "pyarrow does no more: see in_order"
    data = hr.from_arrow(pa.table({"x": column})).with_options(**QUIET)
    with pytest.raises(hr.errors.BadInput, match=r"permuted in a circle.*ascontiguousarray"):
        data.map_batches(lambda batch: batch).take_all()
