"""Archives of samples keep the contract, and what it writes is read back as it was."""

from __future__ import annotations

import datetime as dt
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.annex.formats.webdataset.members import WebDataset
from headrace.errors import PlanChanged, SinkError
from headrace.sinks.files import FileSink
from headrace.sources.range import RangeSource
from headrace.testing.sinks import FormatContract, bound, task


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]


class TestWebDataset(FormatContract):
    """The contract, on tar archives."""

    many = 3_000

    def make(self) -> WebDataset:
        return WebDataset()

    def read(self, path: Path) -> pa.Table:
        found = members(path)
        values = [[v.decode() for n, v in found.items() if n.endswith(e)] for e in (".id", ".word", ".score")]
        return pa.table(
            {"id": [*map(int, values[0])], "word": values[1], "score": [*map(float, values[2])]},
            schema=pa.schema([("id", pa.int64()), ("word", pa.string()), ("score", pa.float64())]),
        )


ROWS = pa.table(
    {
        "__key__": ["a/1", "a/2", "b"],
        "txt": ["one ü", None, ""],
        "cls": pa.array([1, -2, None], pa.int64()),
        "meta.json": [{"x": 1, "y": [1, 2]}, None, {"x": None, "y": []}],
        "bin": [b"\0\xff", b"", None],
        "vec.npy": pa.array([[1.5, 2], [3], None], pa.list_(pa.float32())),
        "seg.png": pa.FixedShapeTensorArray.from_numpy_ndarray(
            np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)
        ),
    }
)


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_there_and_back(tmp_path: Path, engine: Any) -> None:
    data = hr.from_arrow(ROWS).with_options(engine=engine, progress=False)
    result = data.write_webdataset(tmp_path / "out")
    again = hr.read_webdataset(tmp_path / "out")
    assert again.schema().field("cls").type == pa.int64()
    assert again.schema().field("vec.npy").type == pa.list_(pa.float32())
    found = again.take_all()
    for name in ("__key__", "txt", "cls", "meta.json", "bin"):
        assert [row[name] for row in found] == ROWS[name].to_pylist()
    assert [None if row["vec.npy"] is None else list(row["vec.npy"]) for row in found] == [
        [1.5, 2],
        [3],
        None,
    ]
    wanted = np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)
    assert all(np.array_equal(row["seg.png"], image) for row, image in zip(found, wanted, strict=True))
    checked = hr.verify(tmp_path / "out")
    assert checked.good and checked.rows == 3 == result.rows
    assert data.write_webdataset(tmp_path / "out").run == result.run
    with pytest.raises(PlanChanged):
        data.limit(1).write_webdataset(tmp_path / "out")


def test_the_same_rows_give_the_same_bytes_and_their_own_keys(tmp_path: Path) -> None:
    source = RangeSource(100, rows_per_split=50)
    data = hr.Dataset.from_source(source).with_options(engine="inline", progress=False, shard_rows=50)
    for name in ("a", "b"):
        data.write_webdataset(tmp_path / name)
    data.write_webdataset(tmp_path / "c", max_rows_per_file=20)
    a, b, c = (sorted((tmp_path / name).glob("part-*")) for name in "abc")
    assert [p.read_bytes() for p in a] == [p.read_bytes() for p in b] and (len(a), len(c)) == (2, 6)
    keys = [row["__key__"] for row in hr.read_webdataset(tmp_path / "a")]
    assert len(set(keys)) == 100 and keys == sorted(keys)
    assert len({row["__key__"] for row in hr.read_webdataset(tmp_path / "c")}) == 100
    with tarfile.open(a[0]) as tar:
        assert {(each.mtime, each.uid, each.uname) for each in tar} == {(0, 0, "")}


def write(tmp_path: Path, table: pa.Table) -> None:
    sink = bound(FileSink(str(tmp_path), WebDataset()), tmp_path, "process")
    sink.check_schema(table.schema)
    writer = sink.open(task(), table.schema)
    try:
        for batch in table.to_batches():
            writer.write(batch)
        writer.close()
    finally:
        writer.abort()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"__key__": ["a"]}, "besides __key__"),
        ({"__key__": [1], "txt": ["a"]}, "keys are texts"),
        ({"__url__": ["a"], "txt": ["a"]}, "'__url__'.*cannot be the end"),
        ({"a/b": ["a"]}, "cannot be the end"),
        ({"a..b": ["a"]}, "cannot be the end"),
        ({"txt": [1]}, "holds text"),
        ({"cls": [1.5]}, "holds whole numbers"),
        ({"cls": ["a"]}, "holds whole numbers"),
        ({"npy": ["a"]}, "only numbers"),
        ({"png": [[[1.5]]]}, "array .height, width."),
        ({"when": [dt.date(2024, 1, 1)]}, "rename it, to when.json"),
        ({"tags": [["a"]]}, "rename it, to tags.json"),
        ({"x.json": [b"a"]}, None),
        ({"__key__": ["a", "a"], "txt": ["1", "2"]}, "twice"),
        ({"__key__": ["a", None], "txt": ["1", "2"]}, "cannot be a key"),
        ({"__key__": ["a.b"], "txt": ["1"]}, "cannot be a key"),
        ({"__key__": ["../a"], "txt": ["1"]}, "cannot be a key"),
        ({"__key__": ["/a"], "txt": ["1"]}, "cannot be a key"),
        ({"__key__": [""], "txt": ["1"]}, "cannot be a key"),
    ],
)
def test_what_is_no_sample_is_refused(tmp_path: Path, columns: dict[str, Any], words: str | None) -> None:
    if words is None:
        write(tmp_path, pa.table(columns))
        return
    with pytest.raises(SinkError, match=words):
        write(tmp_path, pa.table(columns))
