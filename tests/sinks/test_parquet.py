"""Parquet files keep the contract, have row groups as asked, and hold every Arrow type that Parquet holds."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

import headrace as hr
from crossed import few
from headrace.core.arrow.forms import RaggedTensorType
from headrace.core.arrow.values import column_from
from headrace.core.target_ports import Sink
from headrace.errors import ArgumentError, SinkError
from headrace.sinks import parquet
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet
from headrace.testing.sinks import FormatContract, bound, rows, task

from .tables import NESTED, SCALARS, batches_of, tables, written


class TestParquet(FormatContract):
    """The contract, on Parquet."""

    def make(self) -> Parquet:
        return Parquet()

    def read(self, path: Path) -> pa.Table:
        return pq.ParquetFile(path).read()


def parquet_of(sink: Sink, *batches: pa.RecordBatch) -> pq.ParquetFile:
    return pq.ParquetFile(written(sink, *batches))


def group_sizes(file: pq.ParquetFile) -> list[int]:
    return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]


def numbers(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(np.arange(count))], ["n"])


def test_small_batches_become_one_row_group(tmp_path: Path) -> None:
    file = parquet_of(bound(FileSink(str(tmp_path), Parquet()), tmp_path), *[numbers(1000)] * 100)
    assert group_sizes(file) == [100_000]


def test_row_groups_are_even(tmp_path: Path) -> None:
    file = parquet_of(bound(FileSink(str(tmp_path), Parquet()), tmp_path), numbers(300_000), numbers(100))
    assert group_sizes(file) == [150_000, 150_000, 100]


def test_wide_rows_make_shorter_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 8000)
    file = parquet_of(bound(FileSink(str(tmp_path), Parquet()), tmp_path), *[numbers(500)] * 5, numbers(4000))
    assert group_sizes(file) == [1000, 1000, 1125, 1125, 1125, 1125]


def test_asked_row_groups_are_exact(tmp_path: Path) -> None:
    sink = bound(FileSink(str(tmp_path), Parquet(row_group_rows=100)), tmp_path)
    file = parquet_of(sink, numbers(30), numbers(90), numbers(450), numbers(5))
    assert group_sizes(file) == [100] * 5 + [75]
    assert file.read()["n"].to_pylist() == [*range(30), *range(90), *range(450), *range(5)]


@pytest.mark.parametrize("rows", [20_000, 100])
def test_a_dictionary_only_where_values_repeat(tmp_path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(2 * n)), 2)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(rng.random(n)), pa.array(rng.integers(0, 50, n)), vectors, pa.array(["a", "b"] * (n // 2))],
        ["noise", "few", "vector", "word"],
    )
    batches = [batch.slice(i, rows) for i in range(0, n, rows)]
    group = parquet_of(bound(FileSink(str(tmp_path), Parquet()), tmp_path), *batches).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(4)}
    with_dictionary = {name for name, c in columns.items() if "RLE_DICTIONARY" in c.encodings}
    assert with_dictionary == {"few", "word"}
    assert sorted(columns) == ["few", "noise", "vector.list.element", "word"]


@pytest.mark.parametrize("compression", ["zstd", "gzip", "none", None, "SNAPPY"])
def test_compression(tmp_path: Path, compression: str | None) -> None:
    file = parquet_of(bound(FileSink(str(tmp_path), Parquet(compression=compression)), tmp_path), rows(0, 10))
    expected = "UNCOMPRESSED" if compression in (None, "none") else str(compression).upper()
    assert file.metadata.row_group(0).column(0).compression == expected


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'zstd'"):
        FileSink(str(tmp_path), Parquet(compression="zst"))
    with pytest.raises(ArgumentError, match="row_group_rows"):
        FileSink(str(tmp_path), Parquet(row_group_rows=0))
    with pytest.raises(ArgumentError, match="compression_level"):
        FileSink(str(tmp_path), Parquet(compression="snappy", compression_level=3))


def test_a_column_that_parquet_cannot_hold_is_named(tmp_path: Path) -> None:
    union = pa.dense_union([pa.field("a", pa.int8()), pa.field("b", pa.string())])
    sink = FileSink(str(tmp_path), Parquet())
    with pytest.raises(SinkError, match="Parquet cannot hold column 'mixed'"):
        sink.check_schema(pa.schema([("fine", pa.int8()), ("mixed", union)]))


@pytest.mark.skipif(parquet.null_vectors_can_be_read(), reason="this pyarrow reads null vectors")
def test_a_null_vector_is_refused_rather_than_written_unreadably(tmp_path: Path) -> None:
    vector = pa.list_(pa.float32(), 2)
    sink = bound(FileSink(str(tmp_path), Parquet()), tmp_path)
    for value, kind in [
        (None, vector),
        ([None], pa.list_(vector)),
        ({"v": None}, pa.struct([("v", vector)])),
        (None, pa.struct([("v", vector)])),
    ]:
        batch = pa.RecordBatch.from_arrays([pa.array([value], kind)], ["embedding"])
        writer = sink.open(task(), batch.schema)
        with pytest.raises(SinkError, match=r"'embedding'.*null"):
            writer.write(batch)
        writer.abort()
    fine = pa.RecordBatch.from_arrays([pa.array([[1.0, None]], vector)], ["embedding"])
    assert parquet_of(sink, fine).read()["embedding"].to_pylist() == [[1.0, None]]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.list_(pa.int8(), 0), "no values"),
        (pa.list_(pa.struct([("v", pa.list_(pa.int8(), 0))])), "no values"),
        (pa.fixed_shape_tensor(pa.int8(), (2, 0)), "no values"),
        (pa.fixed_shape_tensor(pa.timestamp("s"), (2, 2)), r"no seconds.*M8\[ms\]"),
        (RaggedTensorType(pa.timestamp("s"), 2), r"no seconds.*M8\[ms\]"),
    ],
)
def test_what_could_not_be_read_back_as_it_was_is_refused(
    kind: pa.DataType, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SinkError, match=f"'embedding'.*{words}"):
        FileSink(str(tmp_path), Parquet()).check_schema(pa.schema([("embedding", kind)]))


@pytest.mark.skipif(parquet.null_vectors_can_be_read(), reason="this pyarrow reads null vectors")
def test_a_null_among_ragged_tensors_is_refused_with_what_to_write_instead(tmp_path: Path) -> None:
    sink = bound(FileSink(str(tmp_path), Parquet()), tmp_path)
    boxes = pa.record_batch({"boxes": column_from([np.ones((2, 4)), None, np.zeros((0, 4))])})
    writer = sink.open(task(), boxes.schema)
    with pytest.raises(SinkError, match=r"'boxes'.*an array is null.*numpy.zeros\(\(0, 4\)\)"):
        writer.write(boxes)
    writer.abort()


@settings(deadline=None, max_examples=few(20))
@given(tables(SCALARS + NESTED))
def test_every_type_survives(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as name:
        sink = bound(FileSink(name, Parquet()), Path(name), "process")
        sink.check_schema(table.schema)
        file = parquet_of(sink, *batches_of(table))
        back = file.read()
        assert back.schema.equals(table.schema)
        assert back.equals(table)


def test_a_real_full_file_system_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    script = """
    import resource, signal, sys, os
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    import pyarrow as pa, numpy as np
    from headrace.core.work import Shard, Task
    from headrace.errors import OutputWriteFailed
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet
    sink = FileSink(sys.argv[1], Parquet()).bind(run="r", staging=sys.argv[1], digits=4, durability="power")
    batch = pa.RecordBatch.from_arrays([pa.array(np.random.default_rng(0).random(50_000))], ["x"])
    writer = sink.open(Task(Shard(0, ()), 1), batch.schema)
    try:
        writer.write(batch)
        writer.close()
    except OutputWriteFailed as error:
        print(error)
        writer.abort()
    print(os.listdir(sys.argv[1]))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert "EFBIG" in done.stdout and "ulimit -f" in done.stdout
    assert done.stdout.endswith("[]\n")


def test_neither_pandas_nor_datasets_are_imported(tmp_path: Path) -> None:
    script = """
    import sys
    import pyarrow as pa
    from headrace.core.work import Shard, Task
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet
    from headrace.sinks.text import Csv
    from headrace.sinks.json import Json
    offsets = pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0]))
    text = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b'a"b'))
    batch = pa.RecordBatch.from_arrays([text], ["x"])
    for kind in Parquet, Csv, Json:
        sink = FileSink(sys.argv[1], kind()).bind(run="r", staging=sys.argv[1], digits=4, durability="power")
        sink.check_schema(batch.schema)
        writer = sink.open(Task(Shard(0, ()), 1), batch.schema)
        writer.write(batch)
        writer.close()
    print([name for name in ("pandas", "pyarrow.dataset", "rich") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("deep", [False, True])
def test_a_decimal_of_negative_scale_is_refused_with_its_column(tmp_path: Path, deep: bool) -> None:
    values = pa.array([Decimal(1200)], pa.decimal128(5, -2))
    column = pa.StructArray.from_arrays([values], names=["x"]) if deep else values
    with pytest.raises(SinkError, match=r"Parquet cannot hold column 'price'.*Convert the column"):
        hr.from_arrow(pa.table({"id": [1], "price": column})).write_parquet(tmp_path / "out")


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
@pytest.mark.parametrize("form", ["struct", "list of structs", "dictionary"])
def test_views_that_arrow_cannot_cut_are_written_as_plain_values(
    tmp_path: Path, kind: pa.DataType, form: str
) -> None:
    """Arrow writes views in a struct only where row groups cut no batch, and in a dictionary never."""
    texts = [None if i % 7 == 3 else "x" * (i % 20) for i in range(100)]
    values = pa.array(
        [text if text is None or pa.types.is_string_view(kind) else text.encode() for text in texts], kind
    )
    column = pa.StructArray.from_arrays([values], ["x"])
    if form == "dictionary":
        column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0] * 11), values)
    elif form != "struct":
        column = pa.ListArray.from_arrays(pa.array([0, 3, 3, 50, 100], pa.int32()), column)
    batch = pa.record_batch({"id": pa.array(range(len(column))), "c": column})
    file = parquet_of(
        bound(FileSink(str(tmp_path), Parquet(row_group_rows=3)), tmp_path), batch, batch.slice(1)
    )
    assert file.read()["c"].to_pylist() == [*column.to_pylist(), *column.to_pylist()[1:]]


def test_what_arrow_refuses_while_it_writes_is_told_by_its_column(tmp_path: Path) -> None:
    kind = pa.list_view(pa.struct([("x", pa.string_view())]))
    data = hr.from_arrow(pa.table({"id": range(100), "names": pa.array([[{"x": "a"}], []] * 50, kind)}))
    with pytest.raises(
        SinkError, match=r"Parquet cannot hold column 'names' of type list_view.*Convert the column"
    ):
        data.write_parquet(tmp_path / "out")
