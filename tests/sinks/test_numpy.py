"""numpy's files keep the contract, and numpy.load reads back what was written."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.arrow.values import column_from
from headrace.errors import SinkError, UnknownColumn
from headrace.sinks.files import FileSink
from headrace.sinks.numpy import Numpy
from headrace.sources.range import RangeSource, RangeTensorSource
from headrace.testing.sinks import FormatContract, bound, task


class TestNumpy(FormatContract):
    """The contract, on .npz files."""

    def make(self) -> Numpy:
        return Numpy()

    def read(self, path: Path) -> pa.Table:
        with np.load(path, allow_pickle=False) as arrays:
            return pa.table({name: arrays[name].tolist() for name in arrays.files}).cast(
                pa.schema([("id", pa.int64()), ("word", pa.string()), ("score", pa.float64())])
            )


def written(tmp_path: Path, *columns: pa.Array, rows: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    """Write the columns in slices of ``rows`` rows, and return the arrays of the one part."""
    sink = bound(FileSink(str(tmp_path), Numpy()), tmp_path, "process")
    batch = pa.RecordBatch.from_arrays(list(columns), [f"c{i}" for i in range(len(columns))])
    sink.check_schema(batch.schema)
    writer = sink.open(task(), batch.schema)
    for start in range(0, batch.num_rows, rows):
        writer.write(batch.slice(start, rows))
    (file,) = writer.close()
    with np.load(Path(sink.staging, file.staged), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.mark.parametrize(
    "type_",
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64()),
    ],
    ids=str,
)
def test_numbers_keep_their_dtypes(tmp_path: Path, type_: pa.DataType) -> None:
    found = written(tmp_path, pa.array([1, 0, 127, 3, 5], type_))["c0"]
    assert found.dtype == type_.to_pandas_dtype() and found.tolist() == [1, 0, 127, 3, 5]


def test_what_else_has_a_dtype(tmp_path: Path) -> None:
    day, moment = dt.date(1900, 2, 28), dt.datetime(2024, 2, 29, 12, 0, 0, 1)
    found = written(
        tmp_path,
        pa.array([True, False, True]),
        pa.array([day, None, day], pa.date32()),
        pa.array([moment, None, moment], pa.timestamp("us")),
        pa.array([dt.timedelta(seconds=1)] * 3, pa.duration("ms")),
        pa.array(["ä", "", "long text 😀"]),
        pa.array([b"\0x", b"", b"y"]),
        pa.array([1.5, None, float("inf")]),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array(np.array([1.5, 2, 3], np.float16)),
        pa.array([1, 0, 1], pa.bool8()),
    )
    assert found["c0"].dtype == bool and found["c0"].tolist() == [True, False, True]
    assert found["c1"].dtype == "<M8[D]" and found["c1"].tolist() == [day, None, day]
    assert found["c2"].dtype == "<M8[us]" and found["c2"].tolist() == [moment, None, moment]
    assert found["c3"].dtype == "<m8[ms]" and found["c3"][2] == np.timedelta64(1000, "ms")
    assert found["c4"].dtype == "<U11" and found["c4"].tolist() == ["ä", "", "long text 😀"]
    assert found["c5"].dtype == "S2" and found["c5"].tolist() == [b"\0x", b"", b"y"]
    assert np.array_equal(found["c6"], [1.5, np.nan, np.inf], equal_nan=True)
    assert found["c7"].tolist() == ["a", "b", "a"] and found["c8"].dtype == np.float16
    assert found["c9"].tolist() == [True, False, True]


def test_tensors_keep_their_shapes(tmp_path: Path) -> None:
    flat = np.arange(24, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat[:12]), 3)
    nested = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pa.array(flat), 2), 3)
    images = pa.FixedShapeTensorArray.from_numpy_ndarray(flat.reshape(4, 3, 2))
    found = written(tmp_path, vectors, nested, images, rows=3)
    assert found["c0"].tolist() == flat[:12].reshape(4, 3).tolist() and found["c0"].dtype == np.float32
    assert found["c1"].tolist() == found["c2"].tolist() == flat.reshape(4, 3, 2).tolist()
    alike = column_from(list(flat.reshape(4, 3, 2)), ragged=True)  # whose shapes might have differed
    assert written(tmp_path, alike, rows=3)["c0"].tolist() == flat.reshape(4, 3, 2).tolist()


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1, None]), "holds a null"),
        (pa.array([True, None]), "holds a null"),
        (pa.array(["a", None]), "holds a null"),
        (pa.array(["a", "b\0"]), "ends in a NUL"),
        (pa.array([b"a\0"]), "ends in a NUL"),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), "holds a null"),
        (pa.array([[1, None]], pa.list_(pa.int64(), 2)), "holds a null"),
        (pa.array([[1], [1, 2]]), "differ in length"),
        (column_from([np.zeros((1, 2)), np.zeros((2, 2))]), r"the shape \(2, 2\), and a file"),
        (column_from([np.zeros((1, 2)), None], ragged=True), "an array is null"),
        (pa.array([{"a": 1}]), "no dtype"),
        (pa.array([None]), "no dtype"),
        (pa.array([dt.time(1)]), "no dtype"),
        (pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("us", "UTC")), "no zone"),
    ],
)
def test_what_numpy_cannot_hold_is_refused(tmp_path: Path, column: pa.Array, words: str) -> None:
    with pytest.raises(SinkError, match=rf"'c0'.*{words}"):
        written(tmp_path, column)


def test_columns_that_do_not_fit_into_memory_wait_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sinks.numpy._IN_MEMORY", 1000)
    numbers = list(range(5000))
    found = written(tmp_path, pa.array(numbers), pa.array([str(n) for n in numbers]), rows=700)
    assert found["c0"].tolist() == numbers and found["c1"].tolist() == [str(n) for n in numbers]


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    source = RangeSource(100, rows_per_split=50)
    data = hr.Dataset.from_source(source).with_options(engine="inline", progress=False, shard_rows=50)
    for name in ("a", "b"):
        data.write_numpy(tmp_path / name)
    first, second = ([p.read_bytes() for p in sorted((tmp_path / n).glob("part-*"))] for n in ("a", "b"))
    assert first == second and len(first) == 2
    with np.load(io.BytesIO(first[1])) as arrays:
        assert arrays["id"].tolist() == list(range(50, 100))


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_one_column_there_and_back(tmp_path: Path, engine: Any) -> None:
    source = RangeTensorSource(100, (2, 3), rows_per_split=30)
    data = hr.Dataset.from_source(source).with_column("x", lambda b: 5, batch_format="numpy")
    data = data.with_options(engine=engine, progress=False, shard_rows=30)
    result = data.write_numpy(tmp_path / "out", column="data")
    assert result.rows == 100 and result.files > 1 and data.stats() == str(result)
    again = hr.read_numpy(tmp_path / "out")
    assert again.schema().field("data").type == pa.fixed_shape_tensor(pa.int64(), (2, 3))
    assert again.take_batch(100)["data"].tolist() == data.take_batch(100)["data"].tolist()
    assert hr.verify(tmp_path / "out").good and hr.verify(tmp_path / "out").rows == 100
    assert data.write_numpy(tmp_path / "out", column="data").run == result.run
    with pytest.raises(hr.errors.PlanChanged):
        data.write_numpy(tmp_path / "out", column="x")
    with pytest.raises(UnknownColumn):
        data.write_numpy(tmp_path / "new", column="y")
    empty = data.limit(0).write_numpy(tmp_path / "empty")
    assert empty.files == 1 and hr.read_numpy(tmp_path / "empty").schema().names == ["data", "x"]
