"""Folders for the values of columns: ``partition_by``."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.core.files import hive, safe_files
from headrace.core.target_ports import Moment
from headrace.core.work import CommitRecord, Ledger, Shard, StagedFile, Task
from headrace.errors import ArgumentError, ForeignOutput, JournalDamaged, SinkError, UnknownColumn
from headrace.output.clean import leftovers, remove
from headrace.output.names import check_names
from headrace.output.places.place import place_at
from headrace.output.publishing import Publisher
from headrace.sinks import dividing
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet
from headrace.sinks.text import Csv

RUN = "k3f9a2xq"
HOSTILE = [
    "../x", "..", ".", "a/b", "/etc", "a=b", "%2F", "%", " ", "x y", "é", "e\u0301", "日本", "😀", "a\nb", "_x", ".x",
    "'\"\\*?[]:", "null", "NULL", "a\0b", "", "A", "a", "z" * 255 if False else "z" * 240, "true", "-", "+1",
]  # fmt: skip


def quiet(data: Any, **options: Any) -> Any:
    return data.with_options(engine="inline", progress=False, **options)


def listed(root: Path) -> list[str]:
    """Every file of the output but ours."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and "_headrace" not in path.parts
    )


def table_of(rows: int = 24) -> pa.Table:
    days = [datetime.date(2024, 5, 1), datetime.date(2024, 5, 2), None]
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "city": pa.array([["Rio", "São Paulo", None, "a/b"][i % 4] for i in range(rows)]),
            "day": pa.array([days[i % 3] for i in range(rows)], pa.date32()),
            "n": pa.array([i % 2 - 1 for i in range(rows)], pa.int16()),
            "ok": pa.array([i % 5 == 0 for i in range(rows)]),
        }
    )


def in_two_shards(folder: Path) -> Any:
    """Return the same table as two files, of a shard each."""
    folder.mkdir()
    for number in range(2):
        pq.write_table(table_of().slice(12 * number, 12), folder / f"{number}.parquet")
    return quiet(hr.read_parquet(folder), shard_rows=12)


def bound(root: Path, sink: Any) -> Any:
    (root / "_headrace" / RUN / "staging").mkdir(parents=True, exist_ok=True)
    return sink.bind(
        run=RUN, staging=str(root / "_headrace" / RUN / "staging"), digits=4, durability="process"
    )


def staged(sink: Any, *batches: pa.RecordBatch) -> tuple[StagedFile, ...]:
    writer = sink.open(Task(Shard(7, ()), 0), batches[0].schema)
    for batch in batches:
        writer.write(batch)
    files: tuple[StagedFile, ...] = writer.close()
    writer.sync()
    return files


def publisher_of(sink: Any) -> Publisher:
    return place_at(sink.root).publisher(sink, "k3f9a2xq", Moment.COMMIT)


def published(root: Path, sink: Any, *batches: pa.RecordBatch) -> dict[str, StagedFile]:
    files = staged(sink, *batches)
    publisher = publisher_of(sink)
    for _ in range(2):
        publisher.publish([CommitRecord(0, 1, 0, tuple(files), Ledger())])
    assert {publisher.state(file) for file in files} <= {"published"}
    return {file.name: file for file in files}


def test_rows_go_to_folders_of_their_values_and_come_back(tmp_path: Path) -> None:
    root, data = tmp_path / "out", table_of()
    given = in_two_shards(tmp_path / "in")
    result = given.write_parquet(root, partition_by=["day", "city"])
    run = result.run
    assert result.rows == 24 and result.files == 2 * 12
    assert f"day=2024-05-01/city=S%C3%A3o%20Paulo/part-00000-{run}.parquet" in listed(root)
    null = f"day={hive.HIVE_NULL}/city={hive.HIVE_NULL}/part-00000-{run}.parquet"
    assert pq.ParquetFile(root / null).read().to_pylist() == [{"id": 2, "n": -1, "ok": False}]
    expected = sorted(data.to_pylist(), key=lambda row: row["id"])
    texts = [{**row, "day": row["day"] and row["day"].isoformat()} for row in expected]
    ours = hr.read_parquet(root).select_columns(data.column_names).take_all()
    assert sorted(ours, key=lambda row: row["id"]) == texts
    theirs = pads.dataset(root, partitioning="hive", exclude_invalid_files=False).to_table()
    assert theirs.select(data.column_names).sort_by("id").to_pylist() == texts
    assert hr.verify(root).good
    assert given.write_parquet(root, partition_by=["day", "city"]).resumed
    success = json.loads((root / "_SUCCESS").read_text())
    assert success["files"] == 24 and success["rows"] == 24


def test_other_readers_see_the_same(tmp_path: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    data = pa.table(
        {"id": [0, 1, 2, 3], "city": ["a/b", "São", "x y", None], "n": pa.array([1, 2, 3, 4], pa.int8())}
    )
    quiet(hr.from_arrow(data)).write_parquet(tmp_path / "out", partition_by=["city", "n"])
    files = f"{tmp_path}/out/*/*/*.parquet"
    found = duckdb.sql(
        f"SELECT id, city, n FROM read_parquet('{files}', hive_partitioning = true) ORDER BY id"
    ).fetchall()
    assert found == [tuple(row.values()) for row in data.to_pylist()]
    frame = polars.read_parquet(files, hive_partitioning=True).sort("id").select("id", "city", "n")
    assert frame.to_dicts() == data.to_pylist()


@pytest.mark.parametrize("format", ["csv", "json"])
def test_text_formats_too(tmp_path: Path, format: str) -> None:
    data = quiet(hr.from_arrow(table_of(12)))
    write = {"csv": data.write_csv, "json": data.write_json}[format]
    result = write(tmp_path / "out", partition_cols=["ok", "n"])
    name = f"ok=true/n=-1/part-00000-{result.run}.{format}"
    assert (tmp_path / "out" / name).read_text() == {
        "csv": '"id","city","day"\n0,"Rio",2024-05-01\n10,,2024-05-02\n',
        "json": '{"id":0,"city":"Rio","day":"2024-05-01"}\n{"id":10,"city":null,"day":"2024-05-02"}\n',
    }[format]
    assert hr.verify(tmp_path / "out").good


def test_hostile_values_stay_in_the_output(tmp_path: Path) -> None:
    root = tmp_path / "in" / "out"
    data = pa.table({"id": range(len(HOSTILE)), "k": HOSTILE})
    quiet(hr.from_arrow(data)).write_parquet(root, partition_by="k")
    assert os.listdir(tmp_path) == ["in"] and os.listdir(tmp_path / "in") == ["out"]
    folders = {name for name in os.listdir(root) if not name.startswith("_")}
    assert folders == {f"k={quote(value, safe='')}" for value in HOSTILE} and len(folders) == len(HOSTILE)
    rows = sorted(hr.read_parquet(root).take_all(), key=lambda row: int(row["id"]))
    assert [row["k"] for row in rows] == HOSTILE
    told = pads.dataset(root, partitioning=pads.partitioning(pa.schema({"k": pa.string()}), flavor="hive"))
    assert told.to_table().sort_by("id")["k"].to_pylist() == HOSTILE
    assert hr.verify(root).good


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a", hive.HIVE_NULL], "holds the text '__HIVE_DEFAULT_PARTITION__', which means null"),
        (["x" * 254], "holds a text of 254 characters, so the name of its folder would have 256 bytes"),
        (
            ["é" * 50],
            "50 characters, so the name of its folder would have 302 bytes; the file system takes 255",
        ),
        ([1.5], "of type double, and folders are named for text, integers, booleans and dates only"),
        ([datetime.datetime(2024, 1, 1)], "of type timestamp.*the day of a time"),
        ([b"x"], "of type binary"),
        ([[1]], "of type list"),
    ],
)
def test_what_names_no_folder_is_refused(tmp_path: Path, values: list[Any], words: str) -> None:
    data = quiet(hr.from_arrow(pa.table({"id": range(len(values)), "k": values})))
    with pytest.raises(SinkError, match=words):
        data.write_parquet(tmp_path / "out", partition_by=["k"])
    assert listed(tmp_path) == []


def test_columns_that_cannot_be(tmp_path: Path) -> None:
    data, out = quiet(hr.from_arrow(table_of(3))), tmp_path / "out"
    with pytest.raises(UnknownColumn, match="partition_by asks for column 'towns', but"):
        data.write_parquet(out, partition_by=["towns"])
    with pytest.raises(SinkError, match="names every column"):
        data.select_columns(["n", "city"]).write_parquet(out, partition_by=["city", "n"])
    with pytest.raises(ArgumentError, match="'n' is named twice"):
        data.write_csv(out, partition_by=["n", "n"])
    with pytest.raises(ArgumentError, match="give one of them"):
        data.write_json(out, partition_by=["n"], partition_cols=["n"])
    with pytest.raises(ArgumentError, match="3 is not a list of column names"):
        data.write_parquet(out, partition_by=3)
    for name in ("_k", ".k", "a/b", "a=b", "a%b", "..", "a\nb"):
        with pytest.raises(ArgumentError, match="no folder can be named for the column"):
            data.rename_columns({"n": name}).write_parquet(out, partition_by=[name])
    assert listed(tmp_path) == []


def test_a_path_too_long_is_refused_before_anything_is_committed(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(20)]
    data = pa.table({"id": [1], **{name: ["x" * 240] for name in names}})
    with pytest.raises(SinkError, match="too long for the file system"):
        quiet(hr.from_arrow(data)).write_parquet(tmp_path / "out", partition_by=names)


def test_rows_limit_and_order(tmp_path: Path) -> None:
    data = pa.table({"id": range(10), "k": [i % 2 for i in range(10)]})
    result = quiet(hr.from_arrow(data)).write_parquet(tmp_path, partition_by=["k"], max_rows_per_file=3)
    names = [f"k={k}/part-00000-0000{i}-{result.run}.parquet" for k in (0, 1) for i in (0, 1)]
    assert [name for name in listed(tmp_path) if name != "_SUCCESS"] == names
    assert [pq.ParquetFile(tmp_path / name).read()["id"].to_pylist() for name in names] == [
        [0, 2, 4], [6, 8], [1, 3, 5], [7, 9],
    ]  # fmt: skip


def test_few_files_are_open_and_few_rows_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dividing, "HELD_BYTES", 2_000)
    monkeypatch.setattr(dividing, "OPEN_FILES", 3)
    sink = bound(tmp_path, FileSink(str(tmp_path), Csv(), partition_by=("k",)))
    batches = [
        pa.record_batch({"id": range(start, start + 40), "k": [i % 8 for i in range(start, start + 40)]})
        for start in range(0, 800, 40)
    ]
    open_before, most = len(os.listdir("/dev/fd")), 0
    writer = sink.open(Task(Shard(7, ()), 0), batches[0].schema)
    for batch in batches:
        writer.write(batch)
        assert sum(writer._bytes.values()) <= 2_000 and len(writer._open) <= 3
        most = max(most, len(os.listdir("/dev/fd")) - open_before)
    assert 0 < most <= 3
    files = writer.close()
    publisher_of(sink).publish([CommitRecord(0, 1, 0, files, Ledger())])
    assert len({file.name for file in files}) == len(files) > 8
    for k in range(8):
        parts = sorted((tmp_path / f"k={k}").iterdir(), key=lambda path: (len(path.name), path.name))
        found = [int(line) for path in parts for line in path.read_text().splitlines()[1:]]
        assert found == list(range(k, 800, 8))


def test_too_many_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dividing, "MOST_FOLDERS", 100)
    with pytest.raises(
        SinkError, match=r"partition_by=\['id'\]: the rows of one part have more than 100 different values"
    ):
        quiet(hr.from_arrow(table_of(101))).write_parquet(tmp_path / "out", partition_by=["id"])


def test_abort_leaves_nothing(tmp_path: Path) -> None:
    sink = bound(tmp_path, FileSink(str(tmp_path), Parquet(), partition_by=("k",)))
    batch = pa.record_batch({"id": range(9), "k": [i % 3 for i in range(9)]})
    for closes in (False, True):
        writer = sink.open(Task(Shard(7, ()), 0), batch.schema)
        writer.write(batch)
        if closes:
            writer.close()
        writer.abort()
        assert os.listdir(sink.staging) == []


def test_types_of_values(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "id": pa.array([0, 1, 2]),
            "d": pa.array(["a", None, "a"]).dictionary_encode(),
            "v": pa.array(["x", "x", "y"], pa.string_view()),
            "u": pa.array([2**64 - 1, 0, 1], pa.uint64()),
            "t": pa.array([datetime.date(1, 1, 1)] * 3, pa.date64()),
        }
    )
    sink = bound(tmp_path, FileSink(str(tmp_path), Parquet(), partition_by=("d", "v", "u", "t")))
    day = "t=0001-01-01/part-0007-k3f9a2xq.parquet"
    assert list(published(tmp_path, sink, batch)) == [
        f"d=a/v=x/u=18446744073709551615/{day}", f"d={hive.HIVE_NULL}/v=x/u=0/{day}", f"d=a/v=y/u=1/{day}",
    ]  # fmt: skip


def test_a_file_system_without_case(tmp_path: Path) -> None:
    folders = dividing.Folders(("k",), 255, 4000, caseless=True)
    batch = pa.record_batch({"k": ["a", "A", "Éa"], "id": [1, 2, 3]})
    names = [folder for folder, _ in folders.divided(batch)]
    assert names == ["k=a", "k=%41", "k=%C3%89a"] and len({name.lower() for name in names}) == 3
    assert [hive.hive_values(f"/{name}/x")["k"] for name in names] == ["a", "A", "Éa"]


def test_an_output_without_rows_has_all_columns(tmp_path: Path) -> None:
    data = quiet(hr.from_arrow(table_of(3)).filter(expr=hr.col("id") > 5))
    assert data.write_parquet(tmp_path / "out", partition_by=["city"]).files == 1
    assert hr.read_parquet(tmp_path / "out").schema().names == ["id", "city", "day", "n", "ok"]


def test_overwriting_removes_old_folders_and_nothing_else(tmp_path: Path) -> None:
    data = quiet(hr.from_arrow(table_of()))
    data.write_parquet(tmp_path, partition_by=["city", "n"])
    (tmp_path / "city=Rio" / "_theirs").write_text("x")
    result = data.filter(expr=hr.col("n") == 0).write_parquet(tmp_path, partition_by=["n"], mode="overwrite")
    assert listed(tmp_path) == ["_SUCCESS", "city=Rio/_theirs", f"n=0/part-00000-{result.run}.parquet"]
    assert sorted(os.listdir(tmp_path)) == ["_SUCCESS", "_headrace", "city=Rio", "n=0"]
    assert os.listdir(tmp_path / "city=Rio") == ["_theirs"]
    plain = data.write_parquet(tmp_path, mode="overwrite")
    assert listed(tmp_path) == ["_SUCCESS", "city=Rio/_theirs", f"part-00000-{plain.run}.parquet"]


def test_files_of_others_in_the_folders_are_seen(tmp_path: Path) -> None:
    data = quiet(hr.from_arrow(table_of()))
    data.write_parquet(tmp_path, partition_by=["city"])
    (tmp_path / "city=Rio" / "mine.parquet").write_text("x")
    (finding,) = hr.verify(tmp_path).findings
    assert (finding.kind, finding.file) == ("extra", "city=Rio/mine.parquet")
    with pytest.raises(ForeignOutput, match=r"city=Rio/mine\.parquet"):
        data.write_parquet(tmp_path, partition_by=["n"], mode="overwrite")


def test_cleaning(tmp_path: Path) -> None:
    data = quiet(hr.from_arrow(table_of()))
    data.write_parquet(tmp_path, partition_by=["city", "n"])
    (tmp_path / "city=Rio" / "n=-1" / "part-00009-k3f9a2xq.parquet").write_text("another's")
    found = leftovers(tmp_path, everything=True)
    assert sum("city=" in each.path for each in found) == 4
    remove(tmp_path, found, everything=True)
    assert listed(tmp_path) == ["city=Rio/n=-1/part-00009-k3f9a2xq.parquet"]
    assert sorted(os.listdir(tmp_path)) == ["city=Rio"]


def test_other_folders_are_another_output(tmp_path: Path) -> None:
    data = quiet(hr.from_arrow(table_of()))
    data.write_parquet(tmp_path, partition_by=["city"])
    with pytest.raises(hr.errors.PlanChanged, match="partition_by"):
        data.write_parquet(tmp_path, partition_by=["n"])
    with pytest.raises(hr.errors.PlanChanged, match="partition_by"):
        data.write_parquet(tmp_path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    sink = bound(root, FileSink(str(root), Parquet(), partition_by=("k",)))
    (file,) = staged(sink, pa.record_batch({"id": [1], "k": ["a"]}))
    (root / "k=a").symlink_to(outside)
    with pytest.raises(hr.errors.OutputWriteFailed, match="k=a"):
        publisher_of(sink).publish([CommitRecord(0, 1, 0, (file,), Ledger())])
    os.rename(Path(sink.staging, file.staged), outside / os.path.basename(file.name))
    assert publisher_of(sink).state(file) == "missing"
    assert list(hive.entries(root)) == ["k=a"] and list(hive.folders(root)) == []
    hive.remove_empty(root, [file.name])
    assert (root / "k=a").is_symlink() and outside.exists()
    with pytest.raises(safe_files.NotOurs):
        hive.make_folders(root, file.name)


@pytest.mark.parametrize(
    "name",
    [
        "../k=1",
        "k=1/..",
        "k=1/.",
        "k=1/",
        "/k=1",
        "k",
        "=1",
        "k=a b",
        "k=%2f",
        "k=\0",
        "_k=1",
        ".k=1",
        "_rejected/k=1",
    ],
)
def test_a_journal_cannot_lead_elsewhere(name: str) -> None:
    def record(folder: str) -> CommitRecord:
        file = StagedFile("x.staged", f"{folder}/part-00000-{RUN}.parquet", 1, 1, 1)
        return CommitRecord(0, 0, 0, (file,), Ledger())

    assert list(check_names([record("k=1/l=%2F")], RUN, Path("x")))
    with pytest.raises(JournalDamaged):
        list(check_names([record(name)], RUN, Path("x")))
