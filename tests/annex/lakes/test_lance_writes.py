"""Writing Lance tables: one commit for each run, once, whatever is killed or lost."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from annex.lakes.growing import PLAIN, hundred, rows
from headrace.annex.lakes.lance.sink import LanceTable
from headrace.annex.lakes.lance.table import LancePart
from headrace.core import failpoints
from headrace.errors import (
    ArgumentError,
    ForeignOutput,
    MissingLibrary,
    OutputWriteFailed,
    SinkError,
)
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet
from headrace.testing import FormatContract

lance = pytest.importorskip("lance")


def ids(table: Any) -> list[int]:
    """What the library itself reads, in its order."""
    found: list[int] = lance.dataset(str(table)).to_table()["id"].to_pylist()
    return found


def version(table: Any) -> int:
    return int(lance.dataset(str(table)).version)


def test_a_driver_that_was_taken_for_dead_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked at the table before either committed; the library would add the rows of both."""
    table, send = str(tmp_path / "t"), LanceTable._send
    lance.write_dataset(pa.table({"id": [-1]}), table)

    def twice(self: LanceTable, transaction: Any) -> Any:
        send(self, transaction)
        return send(self, transaction)

    monkeypatch.setattr(LanceTable, "_send", twice)
    hundred().write_lance(table)
    assert ids(table) == [-1, *range(100)] and lance.dataset(table).to_table(filter="id = 7").num_rows == 1
    lance.dataset(table).validate()


# ------------------------------------------------------------ columns


def test_types_are_kept(tmp_path: Path) -> None:
    when = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)
    deep = pa.struct([("a", pa.list_(pa.struct([("b", pa.uint8())]))), ("v", pa.list_(pa.float32(), 2))])
    given = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.uint64()),
            "half": pa.array([1.5, None, 2], pa.float16()),
            "word": pa.array(["a", None, "b"]).dictionary_encode(),
            "when": pa.array([when, None, when], pa.timestamp("ns", "UTC")),
            "time": pa.array([1, None, 2], pa.time64("us")),
            "vector": pa.array([[1, 2], None, [3, None]], pa.list_(pa.float32(), 2)),
            "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
            "raw": pa.array([b"\0\1", None, b""], pa.large_binary()),
            "deep": pa.array([{"a": [{"b": 1}, None], "v": [1, 2]}, None, {"a": [], "v": None}], deep),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "none": pa.nulls(3),
        }
    )
    rows(given, given.slice(1)).write_lance(tmp_path / "t")
    found = lance.dataset(tmp_path / "t").to_table()
    assert found.schema == given.schema
    assert found.to_pylist() == [*given.to_pylist(), *given.slice(1).to_pylist()]
    again = hr.read_lance(tmp_path / "t").with_options(**PLAIN)
    again.write_lance(tmp_path / "t", output="again")  # onto what is there
    assert lance.dataset(tmp_path / "t").to_table().to_pylist() == found.to_pylist() * 2

    def tensors(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.arange(len(batch["id"]) * 4, dtype=np.float32).reshape(-1, 2, 2)}

    hundred().map_batches(tensors, batch_format="numpy").write_lance(tmp_path / "tensors")
    image = hr.read_lance(tmp_path / "tensors").with_options(**PLAIN).take(2)[1]["x"]
    assert image.shape == (2, 2) and image.tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_columns_go_by_their_names(tmp_path: Path) -> None:
    table = tmp_path / "t"
    before = pa.table({"gone": [0], "id": pa.array([0], pa.int64()), "s": pa.array([{"a": 1, "b": "x"}])})
    lance.write_dataset(before, table)
    lance.dataset(table).drop_columns(["gone"])  # numbers of columns have a gap
    lance.dataset(table).delete("id = 0")
    new = pa.table({"s": pa.array([{"a": 2, "b": None}, None]), "id": pa.array([1, 2], pa.int32())})
    rows(new).write_lance(table)
    rows({"id": [3]}).write_lance(table, output="b")
    with pytest.raises(
        SinkError, match=r"has no column 'x'; it has id, s\. schema_mode='merge' adds columns"
    ):
        rows({"id": [4], "x": [1.5]}).write_lance(table, output="c")
    rows({"id": [4], "x": [1.5]}).write_lance(table, output="d", schema_mode="merge")
    assert lance.dataset(table).to_table().to_pylist() == [
        {"id": 1, "s": {"a": 2, "b": None}, "x": None},
        {"id": 2, "s": None, "x": None},
        {"id": 3, "s": None, "x": None},
        {"id": 4, "s": None, "x": 1.5},
    ]
    now = version(table)
    refused: list[tuple[pa.Array, str]] = [
        (pa.array(["1"]), r"'id' is of type string.*has it as int64"),
        (pa.array([1], pa.uint64()), r"'id' is of type uint64.*has it as int64"),
    ]
    for number, (column, words) in enumerate(refused):
        with pytest.raises(SinkError, match=words):
            rows({"id": column}).write_lance(table, output=f"w{number}")
    for number, kind in enumerate((pa.month_day_nano_interval(), pa.list_(pa.string(), 2))):
        with pytest.raises(SinkError, match=r"'x' is of type .*, which no Lance table has"):
            rows({"x": pa.nulls(1, kind)}).write_lance(tmp_path / f"new{number}")
        assert not (tmp_path / f"new{number}/data").exists()
    with pytest.raises(SinkError, match=r"column 'a\.b' of type int64"):
        rows({"id": [1], "a.b": [1]}).write_lance(tmp_path / "dots")
    assert version(table) == now
    held = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    lance.write_dataset(pa.table({"id": [1]}, schema=held), tmp_path / "held")
    with pytest.raises(SinkError, match="column 'id' has nulls"):
        rows({"id": [None, 2]}).write_lance(tmp_path / "held")


def test_tables_of_older_formats_and_with_stable_row_ids(tmp_path: Path) -> None:
    for number, options in enumerate(({"data_storage_version": "2.0"}, {"enable_stable_row_ids": True})):
        table = tmp_path / f"t{number}"
        lance.write_dataset(pa.table({"id": [-1], "s": [{"a": 1}]}), table, **options)
        rows({"id": [1, 2], "s": pa.array([{"a": 3}, {"a": None}])}).write_lance(table)
        found = lance.dataset(table)
        assert found.to_table().to_pylist()[1:] == [{"id": 1, "s": {"a": 3}}, {"id": 2, "s": {"a": None}}]
        assert len(set(found.to_table(with_row_id=True)["_rowid"].to_pylist())) == 3
        found.validate()
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "old", data_storage_version="legacy")
    with pytest.raises(SinkError, match="first version of its format"):
        rows({"id": [2]}).write_lance(tmp_path / "old")


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "t"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"mode": "upsert"}, "mode= is 'append', 'overwrite', 'error', 'add_columns' or 'create'"),
        ({"schema_mode": "x"}, "schema_mode="),
        ({"output": "data"}, "a folder of the table's own"),
        ({"data_storage_version": "2.0"}, "version of the table"),
    ]
    for options, words in wrong:
        with pytest.raises(ArgumentError, match=words):
            hundred().write_lance(table, **options)
    failpoints.activate({"table.filled": "EIO"})
    with pytest.raises(OSError, match="Input/output"):
        hundred().write_lance(table)
    failpoints.activate({})
    next((table / "data").glob("headrace-*.00002-*")).unlink()
    with pytest.raises(OutputWriteFailed, match=r"the file that it names .* is gone.*another output="):
        hundred().write_lance(table)
    hundred().write_lance(table, output="b")
    assert ids(table) == [*range(100)]
    with pytest.raises(ArgumentError, match="the output of a run"):
        hundred().write_lance(table / "b")
    from headrace.output.clean import leftovers

    with pytest.raises(ForeignOutput, match="may hold rows of the Lance table"):
        leftovers(table / "b", everything=True)
    monkeypatch.setattr(lance, "__version__", "2.0.1")
    with pytest.raises(MissingLibrary, match=r"needs pylance 14 or newer, and 2\.0\.1 is installed"):
        hundred().write_lance(tmp_path / "none")
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingLibrary, match=r'pip install "\.\[lance\]"'):
        hundred().write_lance(tmp_path / "none")


class TestSink(FormatContract):
    def within(self, root: Path) -> FileSink:
        return LanceTable(FileSink(str(root), Parquet())).sink()

    def read(self, path: Path) -> pa.Table:
        from lance.file import LanceFileReader

        part = msgspec.json.decode(path.read_bytes(), type=LancePart)
        if not part.rows:
            return part.schema.empty_table()
        file = path.parents[1] / "data" / part.file
        return LanceFileReader(str(file)).read_all().to_table()
