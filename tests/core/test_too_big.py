"""More than 2 GiB in one batch, which offsets of 32 bits do not count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.core.arrow import batch as batches
from headrace.core.arrow.batch import one_array, one_batch
from headrace.core.arrow.lossless import cast
from headrace.errors import BadInput


def test_lists_of_too_many_values_become_wider() -> None:
    rows, kind = 2**30, pa.list_(pa.null())
    many = pa.Array.from_buffers(
        kind, 1, [None, pa.py_buffer(np.array([0, rows], np.int32))], children=[pa.nulls(rows)]
    )
    assert one_array(pa.chunked_array([many, many])).type == pa.large_list(pa.null())
    struct = pa.StructArray.from_arrays([many], names=["y"])
    assert one_array(pa.chunked_array([struct] * 2)).type == pa.struct({"y": pa.large_list(pa.null())})


def test_a_slice_behind_many_values_is_cast() -> None:
    ends = np.array([0, 2**31, 2**31 + 2], np.int64)
    kind, values = pa.large_list(pa.null()), pa.nulls(2**31 + 2)
    many = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(ends)], children=[values])
    assert cast(many.slice(1), pa.list_(pa.null())).to_pylist() == [[None, None]]
    with pytest.raises(pa.ArrowInvalid, match="too large"):
        cast(many, pa.list_(pa.null()))


def test_a_column_without_a_wider_type_is_refused_by_its_name() -> None:
    rows, nothing = 2**30, pa.struct([])
    ends = pa.py_buffer(np.array([0, rows], np.int32))
    keys = pa.StructArray.from_buffers(nothing, rows, [None])
    pair = pa.StructArray.from_arrays([keys, pa.nulls(rows)], names=["key", "value"])
    many = pa.Array.from_buffers(pa.map_(nothing, pa.null()), 1, [None, ends], children=[pair])
    with pytest.raises(BadInput, match=r"column 'x' of map<.*smaller `batch_size`"):
        one_batch(pa.table({"x": pa.chunked_array([many, many])}))


def test_batches_that_are_too_big_for_the_settled_types_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MOST_BYTES", 100)
    pq.write_table(pa.table({"id": range(8), "y": range(8)}), tmp_path / "in.parquet")

    def made(table: pa.Table) -> pa.Table:
        first = table["id"][0].as_py() == 0
        kind = pa.binary() if first else pa.large_binary()
        return table.append_column("x", pa.array([bytes([i.as_py()]) * 60 for i in table["id"]], kind))

    data = hr.read_parquet(tmp_path / "in.parquet").with_options(engine="inline", progress=False)
    data = data.map_batches(made, batch_size=4, batch_format="pyarrow")
    data.write_parquet(tmp_path / "out")
    read = hr.read_parquet(tmp_path / "out")
    assert read.schema().field("x").type == pa.binary()
    assert [row["x"] for row in read.take_all()] == [bytes([i]) * 60 for i in range(8)]
