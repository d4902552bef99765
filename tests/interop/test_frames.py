"""Data goes to other libraries and comes from them; where nothing should be copied, addresses tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace import interop as frames
from headrace.errors import ArgumentError, MissingLibrary

ROWS = {
    "n": pa.array([1, None, 3]),
    "x": pa.array([0.5, 1.5, 2.5]),
    "s": pa.array(["a", None, "ccc"]),
    "v": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
    "t": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(3, 2, 2)),
}
VALUES = {"n": [1, None, 3], "x": [0.5, 1.5, 2.5], "s": ["a", None, "ccc"], "v": [[1, 2], [3, 4], [5, 6]]}
TENSORS = np.arange(12.0).reshape(3, 2, 2).tolist()


@pytest.fixture
def table() -> pa.Table:
    return pa.table(ROWS)


def addresses(column: pa.ChunkedArray) -> set[int]:
    """Where a column's values lie."""
    return {chunk.buffers()[-1].address for chunk in column.chunks}


def held(data: hr.Dataset) -> pa.Table:
    """What a dataset holds, before anything is read from it."""
    table: pa.Table = data._plan.source._table
    return table


def test_to_polars(table: pa.Table) -> None:
    pl = pytest.importorskip("polars")
    frame = hr.from_arrow(table).to_polars()
    assert isinstance(frame, pl.DataFrame)
    assert {name: frame[name].to_list() for name in VALUES} == VALUES
    assert frame["t"].to_list() == TENSORS and frame.schema["t"] == pl.Array(pl.Float64, (2, 2))
    assert hr.range(3).filter(expr="id > 9").to_polars().schema == {"id": pl.Int64}


@pytest.mark.parametrize("type_", [pa.decimal256(60, 2), pa.month_day_nano_interval(), pa.decimal128(5, -1)])
def test_a_type_that_polars_does_not_know_is_named(type_: pa.DataType) -> None:
    pytest.importorskip("polars")
    table = pa.table({"fine": [1], "odd": pa.nulls(1, type_)})
    with pytest.raises(ArgumentError, match=r"to_polars: column 'odd' is of type .*drop_columns"):
        hr.from_arrow(table).to_polars()


def test_nothing_is_copied_to_polars() -> None:
    pytest.importorskip("polars")
    numbers = pa.table({"x": np.arange(100_000.0), "n": np.arange(100_000)})
    frame = frames.to_polars(numbers)
    for name in ("x", "n"):
        there = frame[name].to_numpy(allow_copy=False).__array_interface__["data"][0]
        assert {there} == addresses(numbers[name])


def test_from_polars() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {"x": [1.0, 2.0], "s": ["a", None], "v": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2))}
    )
    rows = hr.from_polars([frame, frame.lazy()]).take_all()
    assert [(row["x"], row["s"], row["v"].tolist()) for row in rows] == [
        (1.0, "a", [1, 2]),
        (2.0, None, [3, 4]),
    ] * 2
    assert hr.from_polars(frame).map_batches(lambda batch: {"y": batch["x"] * 2}).sum("y") == 6.0
    with pytest.raises(ArgumentError, match="pieces of equal columns"):
        hr.from_polars([frame, frame.drop("x")])


def test_nothing_is_copied_from_polars() -> None:
    pl = pytest.importorskip("polars")
    series = pl.Series("x", np.arange(100_000.0))
    data = hr.from_polars(series.to_frame())
    assert addresses(held(data)["x"]) == {series.to_numpy(allow_copy=False).__array_interface__["data"][0]}


def test_daft_there_and_back(table: pa.Table) -> None:
    daft = pytest.importorskip("daft")
    frame = hr.from_arrow(table).to_daft()
    assert isinstance(frame, daft.DataFrame)
    back = hr.from_daft(frame.where(daft.col("x") > 1))
    (first, second) = back.take_all()
    assert (first["n"], first["s"], first["v"].tolist()) == (None, None, [3, 4])
    assert second["t"].tolist() == TENSORS[2]


def test_nothing_is_copied_to_daft_and_back() -> None:
    daft = pytest.importorskip("daft")
    numbers = pa.table({"x": np.arange(100_000.0)})
    assert addresses(held(hr.from_daft(frames.to_daft(numbers)))["x"]) == addresses(numbers["x"])
    tensors = daft.from_pydict({"t": [np.ones((2, 2)), np.zeros((2, 2))]})
    fixed = tensors.with_column(
        "t", daft.col("t").cast(daft.DataType.tensor(daft.DataType.float64(), (2, 2)))
    )
    assert hr.from_daft(fixed).take_batch(2)["t"].shape == (2, 2, 2)


def test_ray_there_and_back(table: pa.Table) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        there = ray.data.from_arrow(hr.from_arrow(table.drop(["t"])).to_arrow())
        assert [row["n"] for row in there.take_all()] == [1, None, 3]
        back = hr.from_arrow(ray.get(there.to_arrow_refs())).take_all()
        assert [(row["x"], row["s"], row["v"].tolist()) for row in back] == [
            (0.5, "a", [1, 2]),
            (1.5, None, [3, 4]),
            (2.5, "ccc", [5, 6]),
        ]
        tensors = hr.from_arrow(ray.get(ray.data.range_tensor(5, shape=(2, 3)).to_arrow_refs()))
        assert tensors.take_batch(5)["data"].tolist() == [[[i] * 3] * 2 for i in range(5)]
    finally:
        ray.shutdown()


def test_huggingface() -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 2]})
    assert hr.from_huggingface(made).take_all() == [
        {"text": text, "label": i} for i, text in enumerate("abc")
    ]
    chosen = made.select([2, 0]).rename_column("text", "word")
    assert hr.from_huggingface(chosen).take_all() == [{"word": "c", "label": 2}, {"word": "a", "label": 0}]
    assert hr.from_huggingface(made.to_iterable_dataset()).count() == 3
    with pytest.raises(ArgumentError, match="has the splits 'train': give one of them"):
        hr.from_huggingface(datasets.DatasetDict(train=made))
    grid = datasets.Features({"m": datasets.Array2D((2, 2), "float32")})
    arrays = datasets.Dataset.from_dict({"m": [np.eye(2, dtype=np.float32)] * 3}, features=grid)
    assert hr.from_huggingface(arrays).take_batch(3)["m"].shape == (3, 2, 2)


def test_nothing_is_copied_from_huggingface() -> None:
    datasets = pytest.importorskip("datasets")
    numbers = pa.table({"x": np.arange(100_000.0)})
    data = hr.from_huggingface(datasets.Dataset(numbers))
    assert addresses(held(data)["x"]) == addresses(numbers["x"])


def test_an_array_that_may_change_is_copied_and_another_is_not() -> None:
    values = np.arange(100_000.0)
    data = hr.from_numpy([values])
    values[0] = 7
    assert data.take(1) == [{"data": 0.0}]
    values.flags.writeable = False
    at = values.__array_interface__["data"][0]
    assert addresses(held(hr.from_numpy([values, values]))["data"]) == {at}


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for verb, name in (("to_polars", "polars"), ("to_daft", "daft")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingLibrary, match=rf"{verb}\(\) needs {name}, .* pip install"):
            getattr(hr.range(1), verb)()


@pytest.mark.parametrize("value", [{"polars": 1}, [object()]])
def test_what_is_something_else(value: Any) -> None:
    with pytest.raises(ArgumentError, match="from_polars takes a Polars DataFrame"):
        hr.from_polars(value)
