"""Delta tables: one commit for each run, once, whatever is killed or lost; reading one version."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from annex.lakes.growing import PLAIN, hundred, rows, typed
from headrace.annex.lakes.delta.sink import DeltaTable
from headrace.annex.lakes.delta.source import DeltaSource
from headrace.core.source_ports import Source
from headrace.errors import (
    ArgumentError,
    PlanChanged,
    SinkError,
    SourceError,
    UnknownColumn,
)
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet
from headrace.testing import FormatContract, SourceContract


def ids(table: Any) -> list[int]:
    """What the library itself reads."""
    return sorted(deltalake.DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())


def versions(table: Any) -> int:
    return int(deltalake.DeltaTable(str(table)).version())


# ------------------------------------------------------------ what belongs to the table stays


def test_new_input_of_a_finished_run_is_a_run_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "in/a.parquet")
    data = hr.read_parquet(tmp_path / "in").with_options(**PLAIN)
    data.write_delta(tmp_path / "t")
    pq.write_table(pa.table({"id": [2]}), tmp_path / "in/b.parquet")
    with pytest.raises(PlanChanged, match=r"finished.*another output="):
        hr.read_parquet(tmp_path / "in").with_options(**PLAIN).write_delta(
            tmp_path / "t", on_change="continue"
        )
    assert ids(tmp_path / "t") == [1]


# ------------------------------------------------------------ columns


def test_types_are_those_of_the_table(tmp_path: Path) -> None:
    given = typed()
    rows(given).write_delta(tmp_path / "t")
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    kinds = {f.name: f.type for f in pa.schema(table.schema().to_arrow())}
    assert (kinds["id"], kinds["word"], kinds["when"], kinds["plain"]) == (
        pa.int64(), pa.string(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
    )  # fmt: skip
    expected = [{k: list(v) if k == "vector" else v for k, v in row.items()} for row in given.to_pylist()]
    assert table.to_pyarrow_table().to_pylist() == expected == hr.read_delta(tmp_path / "t").take_all()
    duckdb = pytest.importorskip("duckdb")
    files = table.file_uris()
    assert duckdb.sql(f"SELECT sum(id), max(price) FROM read_parquet({files})").fetchall() == [
        (3, Decimal("1.50"))
    ]
    rows({"id": pa.array([3], pa.int8()), "small": pa.array([None], pa.int8())}).write_delta(
        tmp_path / "t", output="b"
    )
    assert ids(tmp_path / "t") == [1, 2, 3]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1], pa.uint64()), "'x' is of type uint64, which no Delta table has"),
        (pa.array([1], pa.time64("us")), "'x' is of type time64"),
        (pa.array([1], pa.int64()), "has no column 'x'; it has id, n"),
    ],
)
def test_columns_that_the_table_cannot_have(tmp_path: Path, column: pa.Array, words: str) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1], "n": pa.array([1], pa.int32())}))
    with pytest.raises(SinkError, match=words):
        rows({"id": [2], "x": column}).write_delta(tmp_path / "t")
    with pytest.raises(SinkError, match=r"'n' is of type int64.*has it as int32"):
        rows({"id": [2], "n": [1]}).write_delta(tmp_path / "t", output="other")
    assert ids(tmp_path / "t") == [1]


def test_columns_are_added_if_asked_for(tmp_path: Path) -> None:
    rows({"id": [1]}).write_delta(tmp_path / "t")
    rows({"x": ["new"], "id": [2]}).write_delta(tmp_path / "t", schema_mode="merge", output="b")
    rows({"id": [3]}).write_delta(tmp_path / "t", output="c")
    found = hr.read_delta(tmp_path / "t").take_all()
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": 1, "x": None},
        {"id": 2, "x": "new"},
        {"id": 3, "x": None},
    ]


def test_a_table_that_changed_while_the_run_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "t"
    deltalake.write_deltalake(table, pa.table({"id": pa.array([1], pa.int64())}))
    sync = DeltaTable.reveal

    def meanwhile(self: DeltaTable, *args: Any) -> None:
        text = pa.table({"id": ["text"]})
        deltalake.write_deltalake(table, text, mode="overwrite", schema_mode="overwrite")
        sync(self, *args)

    monkeypatch.setattr(DeltaTable, "reveal", meanwhile)
    for _ in range(2):
        with pytest.raises(SinkError, match=r"'id' is of type int64.*has it as string"):
            hundred().write_delta(table)
    monkeypatch.setattr(DeltaTable, "reveal", sync)
    with pytest.raises(SinkError, match="'id'"):
        hundred().write_delta(table)  # parts that are staged are not taken for texts
    assert deltalake.DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist() == ["text"]


def test_partitions(tmp_path: Path) -> None:
    table = tmp_path / "t"
    days = [dt.date(2026, 1, 1), None, dt.date(2026, 1, 2)]
    given = [{"id": i, "day": days[i % 3], "place": ["a b/c", "São%"][i % 2]} for i in range(12)]
    rows(pa.Table.from_pylist(given)).write_delta(table, partition_by=["day", "place"])
    read = hr.read_delta(table)
    assert sorted(read.take_all(), key=lambda row: row["id"]) == given
    assert (
        sorted(deltalake.DeltaTable(str(table)).to_pyarrow_table().to_pylist(), key=lambda r: r["id"])
        == given
    )
    assert read.schema().field("day").type == pa.date32()
    some = hr.read_delta(table, columns=["id"], filter=(hr.col("place") == "São%") & (hr.col("id") < 6))
    assert sorted(row["id"] for row in some.take_all()) == [1, 3, 5]
    source = DeltaSource(str(table), condition=pc.field("place") == "São%")
    assert len(source.files()) == 3
    with pytest.raises(SinkError, match="is partitioned by"):
        rows(pa.Table.from_pylist(given)).write_delta(table, output="b")
    with pytest.raises(SinkError, match="empty text"):
        rows({"id": [1], "day": [days[0]], "place": [""]}).write_delta(
            table, partition_by=["day", "place"], output="c"
        )
    assert versions(table) == 0


def test_tables_with_rules_are_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    deltalake.DeltaTable(str(tmp_path / "t")).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(SinkError, match=r"delta\.constraints\.positive"):
        rows({"id": [-1]}).write_delta(tmp_path / "t")


# ------------------------------------------------------------ reading


def test_versions_and_moments(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for number in range(2):
        deltalake.write_deltalake(table, pa.table({"id": [number]}), mode="append")
    for number, stamp in enumerate((1_700_000_000, 1_800_000_000)):
        log = table / f"_delta_log/{number:020}.json"
        text = log.read_text()
        now = json.loads(text.splitlines()[0])["commitInfo"]["timestamp"]
        log.write_text(text.replace(f'"timestamp":{now}', f'"timestamp":{stamp}000'))
        os.utime(log, (stamp, stamp))
    assert hr.read_delta(table, timestamp=dt.datetime(2025, 1, 1)).take_all() == [{"id": 0}]
    assert hr.read_delta(table, timestamp="2030-01-01T00:00:00Z").count() == 2
    with pytest.raises(SourceError, match="no version of 2020"):
        hr.read_delta(table, timestamp="2020-01-01").count()
    with pytest.raises(SourceError, match="no version 7 that can be read: its latest is 1"):
        hr.read_delta(table, 7).count()
    for wrong in (
        {"version": -1},
        {"version": True},
        {"timestamp": "noon"},
        {"version": 1, "timestamp": "2026-01-01"},
    ):
        with pytest.raises(ArgumentError):
            hr.read_delta(table, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownColumn):
        hr.read_delta(table, columns=["idd"]).count()
    deltalake.DeltaTable(table).optimize.compact()
    deltalake.DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SourceError, match=r"names it in version 1.*VACUUM"):
        hr.read_delta(table, version=1).count()


@pytest.mark.parametrize(
    ("protocol", "settings", "words"),
    [
        (["columnMapping"], {"delta.columnMapping.mode": "name"}, "maps columns to other names"),
        (["newerThanThis"], {}, "newerThanThis"),
        (["deletionVectors"], {"delta.enableDeletionVectors": "true"}, None),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, protocol: list[str], settings: dict[str, str], words: str
) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    log = tmp_path / "t/_delta_log/00000000000000000000.json"
    number = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    text = log.read_text().replace('\\"metadata\\":{}', json.dumps(json.dumps({"metadata": number}))[2:-2])
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        if "protocol" in line:
            features = {"readerFeatures": protocol, "writerFeatures": protocol}
            line["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
        if "metaData" in line:
            line["metaData"]["configuration"] = settings
    log.write_text("\n".join(map(json.dumps, lines)))
    if words is None:  # the table may have deletion vectors, and has none
        assert hr.read_delta(tmp_path / "t").count() == 1
    else:
        with pytest.raises(SourceError, match=words):
            hr.read_delta(tmp_path / "t").count()


def test_filters_of_long_decimals_lose_no_rows(tmp_path: Path) -> None:
    long, short = Decimal("99999999999999999.99"), Decimal("0.07")
    for number, price in enumerate((short, long)):
        one = {
            "id": [number],
            "long": pa.array([price], pa.decimal128(38, 2)),
            "n": pa.array([short], pa.decimal128(9, 2)),
        }
        deltalake.write_deltalake(tmp_path / "t", pa.table(one), mode="append")
    where = pc.field("long")
    for condition, found in (
        (where == long, [1]),
        (where >= long, [1]),
        (where > short, [1]),
        (where != long, [0]),
    ):
        assert [row["id"] for row in hr.read_delta(tmp_path / "t", filter=condition).take_all()] == found
    assert not DeltaSource(str(tmp_path / "t"), condition=pc.field("n") > short).files()


def test_filters_of_columns_without_a_range_lose_no_rows(tmp_path: Path) -> None:
    table = tmp_path / "t"
    flags, prices = [True, None, False], [float("nan"), None, 5.0]
    parts = [
        {"id": [i], "flag": pa.array([flags[i]], pa.bool_()), "price": pa.array([prices[i]], pa.float64())}
        for i in range(3)
    ]
    rows(*parts).with_options(shard_rows=1).write_delta(table)
    for condition, found in (
        (pc.field("flag") == pa.scalar(True), [0]),
        (pc.field("flag").is_null(), [1]),
        (pc.field("price") == 5, [2]),
        (pc.field("price").is_valid(), [0, 2]),
        (pc.field("id") >= 1, [1, 2]),
    ):
        assert sorted(row["id"] for row in hr.read_delta(table, filter=condition).take_all()) == found


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.5, float("nan"), None], pa.float64()),
        pa.array([1.5, float("inf"), 2.0], pa.float32()),
        pa.array([True, None, False]),
        pa.array([dt.datetime(2026, 1, 1, 1, 1, 1, 123456), None, None], pa.timestamp("us")),
        pa.array([Decimal("1.50"), Decimal("2.50"), None], pa.decimal128(30, 2)),
        pa.array(["x" * 40, "", None]),
        pa.array([b"x", b"", None]),
        pa.nulls(3, pa.float64()),
        pa.array([{"a": 1.5}, None, {"a": None}]),
        pa.array([[1.5], None, []], pa.list_(pa.float64())),
    ],
    ids=lambda values: str(values.type),
)
def test_filters_of_the_librarys_own_datasets_lose_no_rows(tmp_path: Path, values: pa.Array) -> None:
    """Whatever of a column the log has: of this one, and of those beside it."""
    table = pa.table({"id": [1, 2, 3], "flag": [True, False, None], "a.b": ["p", "q", "r"], "x": values})
    rows(table).write_delta(str(tmp_path / "t"))
    dataset = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_dataset()
    for column in ("id", "flag", "a.b", *(() if pa.types.is_nested(values.type) else ("x",))):
        field = pc.field((column,))
        for each in [*table[column], None]:
            asked = field.is_null() if each is None or not each.is_valid else field == each
            assert dataset.to_table(filter=asked).num_rows == table.filter(asked).num_rows, (column, each)


def test_tables_partitioned_by_bytes_are_refused(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "raw": [b"a"]})
    deltalake.write_deltalake(tmp_path / "t", table, partition_by=["raw"])
    with pytest.raises(SourceError, match="partitioned by the column 'raw' of type binary"):
        hr.read_delta(tmp_path / "t").count()


def test_what_no_commit_takes_is_refused_before_rows_are_computed(tmp_path: Path) -> None:
    called = []

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        called.append(len(batch["id"]))
        return {**batch, "ID": batch["id"]}

    with pytest.raises(SinkError, match="'id' and 'ID' differ in capitals only"):
        hundred().map_batches(step).write_delta(tmp_path / "t")
    assert len(called) <= 2
    rows({"id": [1]}).write_delta(tmp_path / "t")
    with pytest.raises(SinkError, match="'id' and 'Id' differ in capitals only"):
        rows({"Id": [1]}).write_delta(tmp_path / "t", schema_mode="merge", output="b")
    some = rows({"id": [1, 2], "p": ["a", ""]}, {"id": [3, 4], "p": ["a", ""]}).with_options(
        on_error="reject"
    )
    with pytest.raises(SinkError, match="'p' holds an empty text") as raised:
        some.write_delta(tmp_path / "p", partition_by=["p"])
    assert "run the same command again" not in str(raised.value)


# ------------------------------------------------------------ contracts


class TestSource(SourceContract):
    folder: Path

    def make(self) -> Source:
        table = self.folder / "t"
        if not table.exists():
            for start in (0, 10):
                batch = pa.table({"id": [*range(start, start + 10)], "p": [start] * 10})
                deltalake.write_deltalake(table, batch, mode="append", partition_by=["p"])
        return DeltaSource(str(table))


class TestSink(FormatContract):
    def within(self, root: Path) -> FileSink:
        return DeltaTable(FileSink(str(root), Parquet())).sink()

    def read(self, path: Path) -> pa.Table:
        return pq.read_table(path, partitioning=None).replace_schema_metadata(None)


def test_the_folder_can_be_moved_with_the_table(tmp_path: Path) -> None:
    hundred().write_delta(tmp_path / "t")
    shutil.move(tmp_path / "t", tmp_path / "moved")
    assert ids(tmp_path / "moved") == [*range(100)]


def test_columns_that_are_carried_through_are_copied(tmp_path: Path) -> None:
    """By their codec it is seen which were."""
    given = pa.table(
        {"id": [*range(20_000)], "word": ["a", None] * 10_000, "i32": pa.array(range(20_000), pa.int32())}
    )
    pq.write_table(given, tmp_path / "in.parquet", compression="gzip")
    data = hr.read_parquet(tmp_path / "in.parquet").with_options(**{**PLAIN, "workers": 1}, shard_rows=20_000)
    data = data.with_column("twice", lambda batch: batch["id"] * 2, batch_format="numpy")
    held = pa.schema([("id", pa.int64()), ("word", pa.string()), ("i32", pa.int64()), ("twice", pa.int64())])
    deltalake.write_deltalake(tmp_path / "wider", held.empty_table())
    for name, copied in (("new", "id word i32"), ("wider", "id word")):
        data.write_delta(tmp_path / name)
        table = deltalake.DeltaTable(str(tmp_path / name))
        (file,) = (tmp_path / name / "headrace-output").glob("*.parquet")
        group = pq.read_metadata(file).row_group(0)
        codecs = {
            group.column(i).path_in_schema: group.column(i).compression for i in range(group.num_columns)
        }
        assert {column for column, codec in codecs.items() if codec == "GZIP"} == set(copied.split())
        found = table.to_pyarrow_table()
        assert found["i32"].to_pylist() == found["id"].to_pylist() == given["id"].to_pylist()
        assert found["word"].to_pylist() == given["word"].to_pylist()
        assert found["twice"].to_pylist() == [2 * i for i in range(20_000)]


def test_folders_that_are_no_table_and_tables_that_are_no_folders(tmp_path: Path) -> None:
    from headrace.output.clean import leftovers

    hundred().write_delta(tmp_path / "t")
    run = tmp_path / "t/headrace-output"
    with pytest.raises(ArgumentError, match="the output of a run"):
        hundred().write_delta(run)
    with pytest.warns(UserWarning, match=r"Delta table.*read_delta"):
        hr.read_parquet(tmp_path / "t")
    assert leftovers(run) == [] and hr.verify(run).good
    for how in ({"unfinished": True}, {"everything": True}):
        with pytest.raises(hr.errors.ForeignOutput, match="may hold rows of the Delta table"):
            leftovers(run, **how)


OUTSIDE = ["../x.parquet", "%2e%2e/x.parquet", "..%2Fx.parquet", "a/../../x.parquet", "{above}/x.parquet"]


@pytest.mark.parametrize("name", [*OUTSIDE, "file://{above}/x.parquet", "s3://other/x.parquet"])
def test_a_log_that_leads_out_of_the_table_is_refused(tmp_path: Path, name: str) -> None:
    """A table may be somebody else's work: it must not have us read other files."""
    table = tmp_path / "t"
    deltalake.write_deltalake(table, pa.table({"id": [1]}))
    (data,) = table.glob("*.parquet")
    data.rename(tmp_path / "x.parquet")
    log = table / "_delta_log/00000000000000000000.json"
    log.write_text(log.read_text().replace(data.name, name.format(above=tmp_path)))
    with pytest.raises(SourceError, match="outside its own folder"):
        hr.read_delta(table).with_options(**PLAIN).take_all()
