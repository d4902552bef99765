"""Data in memory: what identifies it, how it travels, how it is cut."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.forms import RaggedTensorType
from headrace.errors import ArgumentError
from headrace.sources.memory import (
    MemorySource,
    table_from_arrays,
    table_from_arrow,
    table_from_frames,
    table_from_items,
)
from headrace.sources.range import RangeSource
from headrace.testing.sources import read_all

TABLE = pa.table(
    {
        "n": range(200_000),
        "s": [f"row {n}" for n in range(200_000)],
        "t": pa.array([None if n % 3 else n for n in range(200_000)], pa.timestamp("us")),
        "d": pa.array(["a", "b"] * 100_000).dictionary_encode(),
    }
)


def shipped(source: MemorySource) -> tuple[int, int]:
    """Return how many bytes a pickle holds in band and out of band."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(source, protocol=5, buffer_callback=buffers.append)
    return len(data), sum(buffer.raw().nbytes for buffer in buffers)


def test_buffers_travel_out_of_band() -> None:
    inside, outside = shipped(MemorySource(TABLE, "from_arrow"))
    assert inside < 4000
    assert outside == pytest.approx(TABLE.nbytes, rel=0.01)


def test_a_slice_does_not_take_its_parent_along() -> None:
    source = MemorySource(TABLE.slice(100_000, 10), "from_arrow")
    assert sum(shipped(source)) < 8000
    assert read_all(pickle.loads(pickle.dumps(source))).equals(TABLE.slice(100_000, 10))


def test_a_few_columns_do_not_take_the_others_along() -> None:
    assert sum(shipped(MemorySource(TABLE.select(["d"]), "from_arrow"))) < 1_000_000


def test_description_depends_on_values_alone() -> None:
    def content(table: pa.Table) -> object:
        return MemorySource(table, "from_arrow").describe()

    whole = content(TABLE)
    assert whole == content(
        pa.concat_tables([TABLE.slice(0, 7), TABLE.slice(7, 99_999), TABLE.slice(100_006)])
    )
    assert whole == content(pa.concat_tables([TABLE, TABLE]).slice(200_000))
    assert whole == content(pickle.loads(pickle.dumps(TABLE)))
    assert whole != content(TABLE.slice(0, 199_999))
    assert whole != content(TABLE.rename_columns(["n", "s", "t", "e"]))
    changed = TABLE.set_column(0, "n", pa.array([*range(199_999), 0]))
    assert whole != content(changed)


def test_description_is_the_same_in_another_process() -> None:
    items = [{"a": 1, "b": "x", "c": [1.5]}, {"a": 2, "b": None, "c": []}]
    here = MemorySource(table_from_items(items), "from_items").describe()
    code = (
        "from headrace.sources.memory import *\n"
        f"print(MemorySource(table_from_items({items!r}), 'from_items').describe())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert eval(there.stdout) == here


def test_splits_are_a_64th_within_bounds() -> None:
    wide = MemorySource(pa.table({"x": [b"x" * 10_000] * 1000}), "from_arrow").splits()
    assert all(split.bytes >= 1 << 20 for split in wide[:-1])
    assert len(wide) == 10
    narrow = MemorySource(pa.table({"x": pa.array([True] * 100_000)}), "from_arrow").splits()
    assert [split.rows for split in narrow] == [1562] * 64 + [32]
    assert [split.first for split in narrow] == [1562 * n for n in range(65)]
    few = MemorySource(pa.table({"x": range(6400)}), "from_arrow").splits()
    assert [split.rows for split in few] == [1024] * 6 + [256]
    assert [
        s.rows for s in MemorySource(pa.table({"x": range(6400)}), "a", rows_per_split=4000).splits()
    ] == [
        4000,
        2400,
    ]


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 1), (1024, 1024), (6400, 1024), (1 << 20, 1 << 14), (1 << 30, 1 << 16)]
)
def test_splits_of_a_range(rows: int, expected: int) -> None:
    first, *_ = splits = RangeSource(rows).splits()
    assert first.rows == expected
    assert sum(split.rows for split in splits) == rows
    assert [s.rows for s in RangeSource(rows, rows_per_split=rows).splits()] == [rows]


def test_no_rows_and_no_columns() -> None:
    empty = MemorySource(table_from_items([]), "from_items")
    assert (empty.splits(), empty.schema().names) == ([], [])
    assert RangeSource(0).splits() == []


@pytest.mark.parametrize("n", [-1, 2.5, "3", True])
def test_a_range_needs_a_number_of_rows(n: object) -> None:
    with pytest.raises(ArgumentError, match="number of rows"):
        RangeSource(n)  # type: ignore[arg-type]


# ---------------------------------------------------------------- tables of what users have


def test_items() -> None:
    assert table_from_items([{"a": 1}, {"b": "x"}]).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
    ]
    assert table_from_items([3, None]).to_pylist() == [{"item": 3}, {"item": None}]
    assert table_from_items(range(3)).to_pylist() == [{"item": 0}, {"item": 1}, {"item": 2}]
    assert table_from_items([np.zeros((2, 2))]).column("item").type.shape == [2, 2]


def test_arrays() -> None:
    table = table_from_arrays([np.zeros((2, 3), "float32"), np.ones((1, 3), "float32")])
    assert table.schema == pa.schema([("data", pa.list_(pa.float32(), 3))])
    assert table.num_rows == 3
    assert table_from_arrays(np.arange(3)).to_pydict() == {"data": [0, 1, 2]}


def test_arrays_whose_rows_differ_in_shape() -> None:
    tensors = [np.ones((2, 3, 4)), np.ones((1, 5, 4))]
    assert table_from_arrays(tensors).schema.field("data").type == RaggedTensorType(pa.float64(), 2)
    vectors = table_from_arrays([np.ones((2, 3)), np.ones((1, 1))])
    assert vectors["data"].to_pylist() == [[1, 1, 1], [1, 1, 1], [1]]
    objects = np.empty(2, object)
    objects[:] = [np.ones((1, 4)), np.ones((3, 4))]
    for table in (table_from_arrays(objects), table_from_items([{"data": each} for each in objects])):
        made = to_numpy(table["data"].combine_chunks())
        assert [each.shape for each in made] == [(1, 4), (3, 4)]


def test_cells_of_frames_may_be_arrays_of_any_shape() -> None:
    pd = pytest.importorskip("pandas")
    crops = [np.ones((1, 2), np.uint8), np.zeros((2, 2), np.uint8)]
    frame = pd.DataFrame({"v": [np.arange(2), np.arange(2)], "m": [np.ones((2, 2))] * 2, "crop": crops})
    table = table_from_frames([frame, frame.iloc[:1]])
    assert table.schema.types == [
        pa.list_(pa.int64(), 2), pa.fixed_shape_tensor(pa.float64(), (2, 2)), RaggedTensorType(pa.uint8(), 2),
    ]  # fmt: skip
    rows = hr.from_pandas(frame).map(lambda row: {"twice": row["v"] * 2, "crop": row["crop"] * 2}).take_all()
    assert rows[0]["twice"].tolist() == [0, 2] and rows[0]["crop"].tolist() == [[2, 2]]


def test_frames_that_pandas_put_together() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.concat([pd.DataFrame({"x": ["a", None]}), pd.DataFrame({"x": ["c", "d"]})])
    rows = hr.from_pandas(frame).map_batches(lambda b: pd.concat([b, b]), batch_format="pandas").take_all()
    assert [row["x"] for row in rows] == ["a", None, "c", "d"] * 2


def test_values_that_arrow_would_change_in_silence_are_kept_or_refused() -> None:
    pd = pytest.importorskip("pandas")
    stamp = pd.Timestamp(1, unit="ns")
    assert table_from_items([stamp])["item"].type == pa.timestamp("ns")
    assert (
        table_from_frames(pd.DataFrame({"t": pd.Series([stamp], dtype=object)}))["t"].cast("int64")[0].as_py()
        == 1
    )
    with pytest.raises(ArgumentError, match=r"column 'x': .*period"):
        table_from_frames(pd.DataFrame({"x": pd.period_range("2020", periods=2)}))
    for table in (table_from_frames(pd.DataFrame({"x": ["a", b"b"]})), table_from_items(["a", b"b"])):
        assert table.column(0).to_pylist() == ["a", b"b"]


def test_an_array_that_changes_later_does_not_change_the_dataset() -> None:
    array = np.zeros(3)
    table = table_from_arrays(array)
    array[:] = 7
    assert table.to_pydict() == {"data": [0, 0, 0]}


def test_frames_leave_their_index_behind() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1, 2], "s": ["x", None]}, index=["i", "j"])
    table = table_from_frames([frame, frame])
    assert table.column_names == ["a", "s"]
    assert table["a"].to_pylist() == [1, 2, 1, 2]
    assert table.schema.metadata is None


def test_arrow_of_every_kind() -> None:
    table = pa.table({"a": [1]}, metadata={"k": "v"})
    for data in (table, table.to_batches()[0], [table], table.to_reader(), (table.to_batches()[0],)):
        assert table_from_arrow(data).to_pydict() == {"a": [1]}
    assert MemorySource(table, "from_arrow").schema().metadata is None


@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (table_from_items, "text", "list of dicts or values, not str"),
        (table_from_items, {"a": 1}, "not dict"),
        (table_from_items, [{"a": 1}, 2], "1 of 2 items are dicts"),
        (table_from_arrays, [[1, 2]], "use from_items"),
        (table_from_arrays, [], "array or a list of arrays"),
        (table_from_arrays, np.float64(1), "one value per row"),
        (table_from_arrays, [np.zeros((2, 3)), np.zeros((2, 3, 4))], r"alike.*\(2, 3\), float64 \(2, 3, 4\)"),
        (table_from_arrays, [np.zeros((2, 3)), np.zeros((2, 4), np.int64)], "alike in dtype"),
        (table_from_frames, {"a": [1]}, "DataFrame or a list of them, not dict"),
        (table_from_arrow, [1], "not int"),
        (table_from_arrow, [], "empty list"),
        (table_from_arrow, [pa.table({"a": [1]}), pa.table({"a": ["x"]})], "equal columns"),
    ],
)
def test_what_is_no_data(make: object, data: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(data)  # type: ignore[operator]


def test_sources_leave_pandas_and_datasets_alone(tmp_path: Path) -> None:
    """Importing pandas or pyarrow.dataset would cost every worker a third of a second."""
    import pyarrow.parquet as pq

    for year in (1, 2):
        (tmp_path / f"y={year}").mkdir()
        pq.write_table(
            pa.table({"a": pa.array([1], pa.int32()), "s": ["x"]}), tmp_path / f"y={year}" / "a.parquet"
        )
    pq.write_table(pa.table({"a": [1.5]}), tmp_path / "b.parquet")
    (tmp_path / "a.csv").write_text("a,b\n1,x\n")
    (tmp_path / "a.json").write_text('{"a": [1, {"b": 2}]}\n'.replace("1, ", ""))
    code = f"""
import pickle, sys
import headrace.readers.files, headrace.sources.lines, headrace.sources.csv.source
import headrace.sources.json.source, headrace.sources.range
from headrace.sources.parquet.source import ParquetSource
assert "pyarrow" not in sys.modules and "numpy" not in sys.modules
from headrace.sources.memory import MemorySource, table_from_items
import numpy as np
for source in (
    ParquetSource({str(tmp_path)!r}),
    headrace.sources.csv.source.CsvSource({str(tmp_path)!r}),
    headrace.sources.json.source.JsonSource({str(tmp_path)!r}),
    headrace.sources.lines.BinarySource({str(tmp_path)!r}, include_paths=True),
    headrace.sources.range.RangeSource(3),
    MemorySource(table_from_items([{{"a": 1, "b": "x"}}]), "from_items"),
):
    source.describe()
    splits = source.splits()
    worker = pickle.loads(pickle.dumps(source, protocol=5))
    rows = sum(batch.num_rows for split in splits for batch in worker.read(split, None, 10))
    assert rows, source
print(sorted({{"pandas", "pyarrow.dataset"}} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("[]\n", "")
