"""Functions, classes and predictors that write to what they were handed: what is read again stays as it was."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr


@pytest.fixture(autouse=True)
def as_in_a_worker() -> Iterator[None]:
    """Leave out what torch says of read-only arrays, as workers do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        yield


def add_100(array: Any) -> None:
    import torch

    torch.as_tensor(array).add_(100)


def table() -> pa.Table:
    return pa.table({"id": list(range(8)), "x": np.arange(8.0)})


def rows_of(data: hr.Dataset) -> list[float]:
    return [float(row["x"]) for row in data.take_all()]


class FailsOnce:
    """Adds 100 where it was told to keep its hands off; the first call fails when it has done so."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        add_100(batch["x"])
        self.calls += 1
        if self.calls == 1:
            raise self.error("once")
        return {"x": batch["x"]}


@pytest.mark.parametrize("error", [MemoryError, ConnectionError])
def test_a_batch_that_is_tried_again(error: type[Exception], engine: str) -> None:
    data = hr.from_arrow(table()).with_options(engine=engine, retry_on=ConnectionError, workers=1)
    made = data.map_batches(FailsOnce, fn_constructor_args=(error,), batch_size=8)
    assert rows_of(made) == [100.0 + i for i in range(8)]


def test_frames_and_tables_that_are_tried_again() -> None:
    def of_frames(frame: Any) -> Any:
        add_100(frame["x"].to_numpy())
        failing.append(1)
        if len(failing) == 1:
            raise MemoryError
        return frame

    def of_tables(table: Any) -> Any:
        add_100(table["x"].chunk(0).to_numpy())
        failing.append(1)
        if len(failing) == 1:
            raise MemoryError
        return table

    for function, batch_format in ((of_frames, "pandas"), (of_tables, "pyarrow")):
        failing: list[int] = []
        given = table()
        made = hr.from_arrow(given).map_batches(function, batch_format=batch_format, batch_size=8)  # type: ignore[arg-type]
        assert rows_of(made) == [100.0 + i for i in range(8)]
        assert given == table()


def test_the_callers_own_table() -> None:
    def spoils(batch: dict[str, Any]) -> dict[str, Any]:
        add_100(batch["x"])
        return batch

    def spoils_row(row: dict[str, Any]) -> dict[str, Any]:
        add_100(row["v"])
        return row

    given = table().append_column("v", pa.array([[1.0, 2.0]] * 8, pa.list_(pa.float64(), 2)))
    before = given.to_pydict()
    data = hr.from_arrow(given)
    assert rows_of(data.map_batches(spoils)) == [100.0 + i for i in range(8)]
    kept = data.materialize()
    for source in (data, kept):
        mapped = source.map(spoils_row).take_all()
        assert [row["v"].tolist() for row in mapped] == [[101.0, 102.0]] * 8
        assert [row["id"] for row in source.filter(lambda row: spoils_row(row) is not None).take_all()]
        for batch in source.iter_batches(batch_size=3):
            add_100(batch["x"])
        for row in (*source.take(3), *source.iter_rows(), *source.take_all()):
            add_100(row["v"])
        add_100(source.take_batch(4)["x"])
        add_100(source.take_batch(4, batch_format="pyarrow")["x"].chunk(0).to_numpy())
    assert given.to_pydict() == kept.to_arrow().to_pydict() == before


class Spoils:
    """A predictor as anybody writes it."""

    def load(self) -> None:
        pass

    def predict(self, batch: dict[str, Any]) -> Any:
        add_100(batch["x"])
        return batch["x"].copy()

    def close(self) -> None:
        pass


def test_a_predictor_of_ones_own_leaves_the_carried_column_as_it_is(engine: str) -> None:
    made = hr.from_arrow(table()).with_options(engine=engine).predict(Spoils(), inputs=["x"], output="y")
    rows = made.take_all()
    assert [row["x"] for row in rows] == [float(i) for i in range(8)]
    assert [row["y"] for row in rows] == [100.0 + i for i in range(8)]


def test_an_estimator_that_overwrites_its_input() -> None:
    from scipy.linalg import blas
    from sklearn.preprocessing import FunctionTransformer

    def doubled(matrix: Any) -> Any:
        blas.dscal(2.0, matrix.reshape(-1))  # writes, read-only or not
        return matrix

    estimator = FunctionTransformer(doubled)
    predictor = hr.SklearnPredictor(estimator, method="transform")
    rows = hr.from_arrow(table()).predict(predictor, inputs=["x"], output="y").take_all()
    assert [(row["x"], row["y"]) for row in rows] == [(float(i), 2.0 * i) for i in range(8)]


class Writes:
    """A metric of one's own that writes to the column that it reads."""

    columns = ("x",)

    def __init__(self) -> None:
        self.total = 0.0

    def empty(self) -> Writes:
        return Writes()

    def update(self, batch: pa.RecordBatch) -> None:
        values = batch.column("x").to_numpy()
        self.total += float(values.sum())
        add_100(values)

    def merge(self, other: Any) -> None:
        self.total += other.total

    def result(self) -> float:
        return self.total

    def to_bytes(self) -> bytes:
        return str(self.total).encode()

    def from_bytes(self, data: bytes) -> Writes:
        made = Writes()
        made.total = float(data)
        return made


def test_metrics_change_neither_one_another_nor_what_is_written(tmp_path: Any) -> None:
    data = hr.from_arrow(table()).accumulate(first=Writes(), second=Writes())
    result = data.write_parquet(str(tmp_path / "out"))
    assert result.metrics == {"first": 28.0, "second": 28.0}
    assert rows_of(hr.read_parquet(str(tmp_path / "out"))) == [float(i) for i in range(8)]


def test_a_row_that_is_tried_again_is_as_it_was() -> None:
    tried: list[int] = []

    def twice(row: dict[str, Any]) -> dict[str, Any]:
        row["x"] *= 2
        row["tags"].append("seen")
        add_100(row["v"])
        tried.append(row["id"])
        if tried.count(row["id"]) == 1:
            raise ConnectionError
        return row

    items = [{"id": i, "x": float(i), "tags": ["a"], "v": np.arange(2.0)} for i in range(2)]
    made = hr.from_items(items).with_options(retry_on=ConnectionError).map(twice).take_all()
    assert [(row["x"], row["tags"], row["v"].tolist()) for row in made] == [
        (2.0 * i, ["a", "seen"], [100.0, 101.0]) for i in range(2)
    ]


def test_a_row_that_fails_and_is_kept_is_as_it_was() -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        row["x"] *= 2
        if row["id"] == 1:
            raise ValueError("no")
        return row

    kept = hr.from_arrow(table()).with_options(on_error="null").map(fails).take_all()
    assert [row["x"] for row in kept] == [0.0, 1.0, *(2.0 * i for i in range(2, 8))]
