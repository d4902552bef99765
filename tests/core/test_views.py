"""What is handed out of a batch: nobody can change the batch through it, whatever he does to read-only memory."""

from __future__ import annotations

import ctypes
import datetime
import decimal
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace.core.arrow import views
from headrace.core.arrow.batch_formats import BatchFormat, to_numpy
from headrace.core.arrow.forms import RaggedTensorType, ragged_column
from headrace.core.arrow.layout import own
from headrace.core.arrow.values import from_result
from headrace.core.arrow.views import make_rows_view, make_view, with_copies

TENSORS = pa.ExtensionArray.from_storage(
    pa.fixed_shape_tensor(pa.float32(), (2, 2)),
    pa.array([[1, 2, 3, 4]] * 3, pa.list_(pa.float32(), 4)),
)
RAGGED = ragged_column(
    np.arange(15, dtype=np.uint8),
    np.array([[1, 2, 3], [1, 1, 3], [2, 1, 3]]),
    RaggedTensorType(pa.uint8(), 3),
)
COLUMNS: dict[str, pa.Array] = {
    "numbers": pa.array([1, 2, 3]),
    "floats": pa.array([1.0, 2, 3], pa.float32()),
    "nulls": pa.array([1, None, 3]),
    "bools": pa.array([True, False, True]),
    "times": pa.array([1, 2, 3], pa.timestamp("us")),
    "zoned": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
    "dates": pa.array([datetime.date(2020, 1, 1)] * 3),
    "spans": pa.array([1, 2, 3], pa.duration("ms")),
    "lists": pa.array([[1, 2], None, [4]]),
    "large lists": pa.array([[1, 2], [3], [4]], pa.large_list(pa.float64())),
    "lists of lists": pa.array([[[1], [2]], [[3]], [[4]]]),
    "vectors": pa.array([[1.0, 2], [3, 4], [5, 6]], pa.list_(pa.float64(), 2)),
    "vectors and a null": pa.array([[1.0, 2], None, [5, 6]], pa.list_(pa.float64(), 2)),
    "matrices": pa.array([[[1, 2]], [[3, 4]], [[5, 6]]], pa.list_(pa.list_(pa.int16(), 2), 1)),
    "tensors": TENSORS,
    "ragged": RAGGED,
    "codes": pa.array(["a", "b", "a"]).dictionary_encode(),
    "coded numbers": pa.array([1.5, 2.5, 1.5]).dictionary_encode(),
    "texts": pa.array(["a", "bb", None]),
    "structs": pa.array([{"a": 1, "l": [1, 2]}] * 3),
    "decimals": pa.array([decimal.Decimal("1.5")] * 3),
}


def scribble(view: Any) -> None:
    """Write to all memory that a view shows, as a library does that takes its address and never asks."""
    if isinstance(view, np.ndarray) and view.dtype != object:
        ctypes.memset(view.ctypes.data, 0x2A, view.nbytes if view.flags.c_contiguous else view.itemsize)
    elif isinstance(view, np.ndarray | list | tuple):
        for cell in view:
            scribble(cell)
    elif isinstance(view, dict):
        for cell in view.values():
            scribble(cell)
    elif isinstance(view, pd.DataFrame):
        for name in view.columns:
            if isinstance(view[name].dtype, pd.CategoricalDtype):
                scribble(view[name].cat.codes.to_numpy())
            elif view[name].dtype.kind in "iufbmM" and not hasattr(view[name].dtype, "tz"):
                scribble(view[name].to_numpy())
            elif hasattr(view[name].dtype, "tz"):
                scribble(view[name].astype("int64").to_numpy())
            else:
                scribble(list(view[name]))
    elif isinstance(view, pa.Table):
        for column in view.columns:
            for chunk in column.chunks:
                scribble(chunk)
    elif isinstance(view, pa.Array):
        for buffer in view.buffers():
            if buffer is not None and buffer.size:
                ctypes.memset(buffer.address, 0x2A, buffer.size)


def half() -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array([0, 1, 2, 3, 4, 5])}).slice(3)


def image(batch: pa.RecordBatch) -> Any:
    return pa.Table.from_batches([batch]).to_pydict()


@pytest.mark.parametrize("name", [*COLUMNS, "half of a batch"])
@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow", "rows"])
def test_no_view_reaches_the_batch(name: str, batch_format: Any) -> None:
    if batch_format == "pandas" and name == "ragged":
        pytest.skip("pandas cannot show it")
    import torch  # noqa: F401 - is what makes copies necessary

    batch = pa.record_batch({name: own(COLUMNS[name])}) if name != "half of a batch" else half()
    before = image(batch)
    if batch_format == "rows":
        scribble(make_rows_view(batch, tried=True).columns)
    else:
        scribble(make_view(batch, batch_format, tried=True)[0])
    assert image(batch) == before
    assert with_copies(batch, batch_format).schema == batch.schema


@pytest.mark.parametrize("tried", [True, False])
def test_a_copy_is_made_only_where_something_could_write(
    tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "WRITERS", ("no_such_library",))
    batch = pa.record_batch({"x": pa.array([1.0, 2.0])})
    view, handed = make_view(batch, "numpy", tried=tried)
    shares = view["x"].ctypes.data == batch.column(0).buffers()[1].address
    assert shares == tried  # the first call may import such a library
    monkeypatch.setitem(sys.modules, "no_such_library", sys)
    view, handed = make_view(batch, "numpy", tried=True)
    assert view["x"].ctypes.data != batch.column(0).buffers()[1].address
    assert from_result({"x": view["x"]}, handed).column(0).buffers()[1].address == (
        batch.column(0).buffers()[1].address
    )  # nobody wrote to it: what goes on is the column itself


@pytest.mark.parametrize("batch_format", ["numpy", "pyarrow"])
def test_what_was_written_goes_on_and_stays(batch_format: BatchFormat) -> None:
    batch = pa.record_batch({"x": pa.array([1, 2, 3]), "y": pa.array([1, 2, 3])})
    view, handed = make_view(batch, batch_format, tried=False)
    data = view["x"].ctypes.data if batch_format == "numpy" else view["x"].chunk(0).buffers()[1].address
    ctypes.memset(data, 0, 8)
    made = from_result(view, handed)
    assert made.to_pydict() == {"x": [0, 2, 3], "y": [1, 2, 3]}
    scribble(view)  # it kept what it got, and goes on with it
    assert made.to_pydict() == {"x": [0, 2, 3], "y": [1, 2, 3]}
    assert batch.to_pydict() == {"x": [1, 2, 3], "y": [1, 2, 3]}


def test_a_part_of_what_was_handed_out_stays_as_it_was_returned() -> None:
    batch = pa.record_batch({"x": pa.array([1, 2, 3, 4])})
    view, handed = make_view(batch, "numpy", tried=False)
    made = from_result({"x": view["x"][2:]}, handed)
    scribble(view)
    assert made.to_pydict() == {"x": [3, 4]}


def test_nobody_can_make_a_view_writable() -> None:
    array = to_numpy(pa.array([1, 2, 3]))
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_a_row_is_renewed_after_a_call_that_failed() -> None:
    batch = pa.record_batch({"v": COLUMNS["vectors"], "d": COLUMNS["structs"], "l": COLUMNS["large lists"]})
    handed = make_rows_view(batch, tried=False)
    for _ in range(2):
        row = handed.restored_row(1)
        assert row["v"].tolist() == [3, 4] and row["d"] == {"a": 1, "l": [1, 2]} and row["l"] == [3]
        scribble(row["v"])
        row["d"]["a"] = 7
        row["l"].append(8)


def test_what_was_written_to_an_array_that_was_made_of_a_column_goes_on() -> None:
    batch = pa.record_batch({"n": pa.array([1, None, 3]), "b": pa.array([True, False, True])})
    for spoilt in ("n", "b"):
        view, handed = make_view(batch, "numpy", tried=False)
        ctypes.memset(view[spoilt].ctypes.data, 0, 1 if spoilt == "b" else 8)
        made = from_result(dict(view), handed)
        assert made.column(spoilt).to_pylist()[0] == 0
        same = "n" if spoilt == "b" else "b"
        assert made.column(same).equals(batch.column(same))
