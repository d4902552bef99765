"""What is done once for each of many small files is little, and finds what it finds for one alone."""

from __future__ import annotations

import os
import pickle
import threading
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.core.files.input_files import InputFile
from headrace.core.work import Split
from headrace.errors import ForeignOutput, HeadraceError, InputChanged, UnreadableFile
from headrace.output.refusals import check_apart
from headrace.sources.parquet import files as parquet_files
from headrace.sources.parquet import together
from headrace.sources.parquet.files import Footer, _footers
from headrace.sources.parquet.source import ParquetSource
from headrace.sources.range import RangeSource
from headrace.testing.sources import read_all, read_sound
from worker.test_input_check import CHANGES, appended, cut_short, removed

from .test_row_counts import shorten, write

SHAPES = [
    pa.table({"id": [1, 2, None], "x": [0.5, 1.5, 2.5]}),
    pa.table({"id": [1, 2, 3], "x": [0.5, 1.5, 2.5]}),
    pa.table({"x": [0.5], "id": [2**60]}),
    pa.table({"id": pa.array([None], pa.int64()), "x": [[1.5]]}),
    pa.table({"box": [{"id": 1, "x": 2}], "id": [None]}),
    pa.table({"id": [1, 2], "x": [0.5, 1.5]}).replace_schema_metadata({"k": "v"}),
    pa.table({f"a rather long name of column {i}": [i] for i in range(900)} | {"id": [7], "x": [0.25]}),
]


def test_work_for_a_split_does_not_grow_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    length = Split.length.fget  # type: ignore[attr-defined]

    def counted(self: Split) -> int:
        nonlocal asked
        asked += 1
        return length(self)  # type: ignore[no-any-return]

    monkeypatch.setattr(Split, "length", property(counted))
    splits = 1_000
    data = hr.Dataset.from_source(RangeSource(splits, rows_per_split=1)).map_batches(lambda batch: batch)
    result = data.with_options(engine="inline", shard_rows=splits).write_parquet(tmp_path / "out")
    assert result.rows == splits
    assert asked < 60 * splits


@pytest.mark.parametrize("columns", [None, frozenset(("id", "x")), frozenset(("id",))])
def test_footers_in_one_go_are_those_of_each_file(tmp_path: Path, columns: frozenset[str] | None) -> None:
    files = []
    for number in range(21):
        path = tmp_path / f"{number:02}.parquet"
        pq.write_table(SHAPES[number % 7 if number < 14 else number // 3 % 7], path, row_group_size=2)
        files.append(InputFile(str(path), path.stat().st_size, path.stat().st_mtime_ns))
    alone: list[Footer] = [footer for file in files for footer in _footers([file], columns)]
    together = _footers(files, columns)
    assert together == alone
    for footer, file in zip(together, files, strict=True):
        metadata = pq.read_metadata(file.path)
        assert footer.schema.equals(metadata.schema.to_arrow_schema(), check_metadata=True)
        assert [rows for rows, _ in footer.groups] == [
            metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)
        ]
    assert [dict(footer.nulls) for footer in together[:5]] == [
        {"id": False},
        {},
        {},
        {"id": False},
        {"id": False},
    ]


def test_rows_of_many_small_files_of_many_kinds(tmp_path: Path) -> None:
    wanted = []
    for number in range(150):
        table = pa.table({"id": [number, number + 1000], "text": ["a" * (number * 40), None]})
        if number % 3 == 0:
            table = table.select(["text", "id"])
        pq.write_table(table, tmp_path / f"{number:03}.parquet", compression=["zstd", "none"][number % 2])
        wanted += table.select(["id", "text"]).to_pylist()
    found = hr.read_parquet(tmp_path, columns=["id", "text"]).with_options(engine="inline").take_all()
    assert found == wanted


def test_an_input_in_the_output_is_refused_behind_links_too(tmp_path: Path) -> None:
    out, beside = tmp_path / "out", tmp_path / "in"
    out.mkdir()
    beside.mkdir()
    (out / "part.parquet").touch()
    (beside / "own.parquet").touch()
    (beside / "link.parquet").symlink_to(out / "part.parquet")
    (tmp_path / "other").symlink_to(out)

    def check(*paths: Path) -> None:
        check_apart(str(out), [], [(os.fspath(path), 0, 0) for path in paths])

    check(beside / "own.parquet")
    for path in (out / "part.parquet", beside / "link.parquet", tmp_path / "other" / "part.parquet"):
        with pytest.raises(ForeignOutput, match="lies inside the output"):
            check(beside / "own.parquet", path)


# ---------------------------------------------------------------- those that are read together


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let neighbours be read together where there are few files, too."""
    monkeypatch.setattr(together, "_SPLITS", 3)


def write_files(folder: Path, rows: Sequence[int], kinds: Sequence[str] = ("plain",)) -> ParquetSource:
    """Write a file of ``rows[i]`` rows for each; their kinds take turns."""
    first = 0
    for number, count in enumerate(rows):
        ids = range(first, first + count)
        table = pa.table({"id": ids, "text": [f"t{i}" if i % 5 else None for i in ids]})
        kind, options = kinds[number % len(kinds)], {}
        if kind == "groups":
            options["row_group_size"] = 2
        elif kind == "narrow":
            table = table.set_column(0, "id", table["id"].cast("int32"))
        elif kind == "lacking":
            table = table.select(["id"])
        elif kind == "turned":
            table = table.select(["text", "id"])
        elif kind == "pandas":
            table = table.replace_schema_metadata({"pandas": f"{number}"})
        pq.write_table(table, folder / f"{number:03}.parquet", **options)
        first += count
    return ParquetSource(folder)


@pytest.mark.usefixtures("few")
def test_small_neighbours_are_one_split(tmp_path: Path) -> None:
    source = write_files(tmp_path, [10, 20, 30, 0, 10, 9_000, 10, 10, 10, 10])
    splits = source.splits()
    assert [(s.file, s.stop, s.rows, len(source.files_of(s))) for s in splits if s.file != 5] == [
        (0, -3, 60, 3),  # no more than a third of all files
        (4, 1, 10, 1),  # alone between one without rows and a big one
        (6, -3, 30, 3),
        (9, 1, 10, 1),
    ]
    assert sum(s.rows for s in splits if s.file == 5) == 9_000
    from_one = source.splits_from(1)
    assert from_one is not None
    assert (from_one[0].file, from_one[0].stop, from_one[0].rows) == (1, -2, 50)
    assert source.splits_alone(1) == [Split(1, 0, 1, 20, source.splits_alone(1)[0].bytes, 0)]  # type: ignore[index]
    assert [s.stop for s in ParquetSource(tmp_path, include_paths=True).splits()[:3]] == [1, 1, 1]
    assert pickle.loads(pickle.dumps(source)).inspected().counts.tolist()[:5] == [10, 20, 30, 0, 10]


def test_a_few_files_are_splits_of_their_own(tmp_path: Path) -> None:
    assert all(split.stop == 1 for split in write_files(tmp_path, [5] * 20).splits())


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("batch_rows", [1, 7, 1_000])
@pytest.mark.parametrize("columns", [None, ["id"], ["text", "id"], []])
def test_rows_together_are_those_of_each_file(
    tmp_path: Path, columns: list[str] | None, batch_rows: int
) -> None:
    kinds = ("plain", "plain", "groups", "plain", "narrow", "lacking", "turned", "turned", "pandas")
    source = write_files(tmp_path, [1 + n % 6 for n in range(40)], kinds)
    alone = [split for n in range(40) for split in source.splits_alone(n) or ()]
    assert len(source.splits()) < 6
    for split in source.splits():
        mine = [each for each in alone if each.file in source.files_of(split)]
        sound = read_sound(source, split, columns, batch_rows)
        assert sound.table.equals(read_all(source, mine, columns))
        assert sound.numbers == list(range(split.rows))
        assert not sound.bad
        places = [(each, row) for each in mine for row in range(each.rows)]
        assert [source.locate(split, row) for row in range(split.rows)] == [
            source.locate(each, row) for each, row in places
        ]
        keys = np.concatenate([source.row_keys(each, np.arange(each.rows)) for each in mine])
        assert source.row_keys(split, np.arange(split.rows)).tolist() == keys.tolist()
        picked = np.array([split.rows - 1, 0, 3])
        assert source.row_keys(split, picked).tolist() == keys[picked].tolist()
        source.check_unchanged(split)


@pytest.mark.usefixtures("few")
def test_folders_and_dictionaries_of_files_read_together(tmp_path: Path) -> None:
    for number in range(30):
        folder = tmp_path / f"day={number // 10}"
        folder.mkdir(exist_ok=True)
        kind = pa.array([f"k{number}", "all"]).dictionary_encode()
        pq.write_table(pa.table({"kind": kind}), folder / f"{number:02}.parquet")
    source = ParquetSource(tmp_path)
    assert len(source.splits()) < 5
    found = read_all(source).to_pylist()
    assert found == [
        {"kind": kind, "day": number // 10} for number in range(30) for kind in (f"k{number}", "all")
    ]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("short", [[0], [1], [0, 1], None])
def test_a_damaged_file_among_others_is_named(tmp_path: Path, short: list[int] | None) -> None:
    for number in range(9):
        write(tmp_path / f"{number}.parquet", 5, 5)
    path = tmp_path / "4.parquet"
    if short is None:
        data = bytearray(path.read_bytes())
        data[4:60] = b"\xff" * 56
        path.write_bytes(data)
    else:
        shorten(path, 0, short, 5, 2)
    source = ParquetSource(tmp_path)
    split = source.splits()[1]
    assert (split.file, split.stop) == (3, -3)
    with pytest.raises(UnreadableFile, match=r"row group 0 \(of 1\) of .*4\.parquet") as caught:
        read_all(source, [split])
    assert "\n" not in str(caught.value)
    sound = read_sound(source, split)
    assert sound.table["a"].to_pylist() == [*range(5), *range(5)]
    assert [row for rows in sound.bad for row in rows] == [5, 6, 7, 8, 9]
    assert all("4.parquet" in str(error) for error in sound.bad.values())


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_among_others_that_changes_is_found(tmp_path: Path, change: Callable[[Path], None]) -> None:
    source, path = write_files(tmp_path, [5] * 9), tmp_path / "004.parquet"
    split = source.splits()[1]
    worker: ParquetSource = pickle.loads(pickle.dumps(source))
    reading = source.read(split, ["id"], 3)
    assert next(reading)["id"].to_pylist() == [15, 16, 17]
    list(reading)
    source.check_unchanged(split)
    change(path)
    with pytest.raises(InputChanged, match=r"004\.parquet'"):
        source.check_unchanged(split)
    if change in (appended, cut_short, removed):  # others are found by the times of their reading alone
        reading = worker.read(split, ["id"], 3)
        with pytest.raises(InputChanged, match=r"004\.parquet'"):
            list(reading)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("rows", [0, 3, 9, 5_000])
def test_a_run_goes_on_where_a_file_among_others_changed(tmp_path: Path, rows: int) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    write_files(folder, [5] * 12)
    once: list[int] = []

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        if not once and batch["id"].max() >= 30:
            once.append(1)
            raise OSError("for now")
        return {"id": batch["id"]}

    def run() -> hr.Result:
        data = hr.read_parquet(folder).map_batches(step, version="1")
        return data.with_options(engine="inline", shard_rows=20).write_parquet(out)

    with pytest.raises(HeadraceError):
        run()
    assert pq.read_table(out)["id"].to_pylist() == list(range(20))
    pq.write_table(pa.table({"id": range(1_000, 1_000 + rows), "text": ["x"] * rows}), folder / "009.parquet")
    result = run()
    assert result.resumed
    assert result.rows == 55 + rows
    expected = [*range(45), *range(1_000, 1_000 + rows), *range(50, 60)]
    assert pq.read_table(out)["id"].to_pylist() == expected
    pq.write_table(pa.table({"id": [7], "text": ["x"]}), folder / "001.parquet")
    with pytest.raises(InputChanged, match=r"001\.parquet"):
        run()


@pytest.mark.usefixtures("few")
def test_carried_columns_of_small_files_are_put_together(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_files(folder, [50] * 12)
    data = hr.read_parquet(folder).predict(lambda batch: batch["id"] % 2, inputs=["id"], output="odd")
    data.with_options(engine="inline").write_parquet(tmp_path / "out")
    found = pq.read_table(tmp_path / "out")
    assert found["id"].to_pylist() == list(range(600))
    assert found["odd"].to_pylist() == [i % 2 for i in range(600)]
    assert found["text"].null_count == 120


def test_columns_of_one_form_with_other_names_above_them_are_told_apart(tmp_path: Path) -> None:
    one = pa.struct([pa.field("x", pa.int64())])
    shapes = [
        pa.schema([pa.field("a", one, nullable=False)]),
        pa.schema([pa.field("b", one, nullable=False)]),
        pa.schema([pa.field("x", pa.int64())]),
    ]
    files = []
    for number, schema in enumerate(shapes * 2):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(schema.empty_table(), path, store_schema=False)
        files.append(InputFile(str(path), path.stat().st_size, path.stat().st_mtime_ns))
    assert [footer.schema for footer in _footers(files, None)] == shapes * 2


@pytest.mark.usefixtures("few")
def test_indices_that_a_dictionary_lacks_are_damage_in_files_read_together(tmp_path: Path) -> None:
    for number in range(6):
        kind = pa.array(["a", "b", "c"] * 8).dictionary_encode()
        pq.write_table(
            pa.table({"kind": kind, "id": range(24)}), tmp_path / f"{number}.parquet", compression="none"
        )
    path, packed = tmp_path / "1.parquet", bytes((0b00100100, 0b01001001, 0b10010010))  # 0 1 2 0 1 2 …
    assert path.read_bytes().count(packed * 2) == 1
    path.write_bytes(path.read_bytes().replace(packed * 2, b"\xff" * 6))
    source = ParquetSource(tmp_path)
    split = source.splits()[0]
    assert split.stop == -2
    with pytest.raises(UnreadableFile, match=r"row group 0 \(of 1\) of .*1\.parquet"):
        read_all(source, [split])
    sound = read_sound(source, split)
    assert sound.numbers == list(range(24))
    assert [row for rows in sound.bad for row in rows] == list(range(24, 48))


def test_a_column_of_another_type_than_its_schema_says_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), path)
    before, _, after = path.read_bytes().rpartition(b"\x15\x04\x19")  # the chunk's type, INT64, before a list
    path.write_bytes(before + b"\x15\x7e\x19" + after)
    with pytest.raises(UnreadableFile, match=r"a\.parquet.*a column of INT64 has values of UNKNOWN"):
        ParquetSource(path).splits()


@pytest.mark.parametrize(("slow", "by_threads"), [(0.0, True), (60.0, False)])
def test_footers_are_read_by_threads_where_storage_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: float, by_threads: bool
) -> None:
    monkeypatch.setattr(parquet_files, "_FOOTERS_TOGETHER", 2)
    monkeypatch.setattr(parquet_files, "_SLOW_FOOTER", slow)
    readers: set[str] = set()
    end_of = parquet_files._end_of

    def seen(file: InputFile) -> tuple[bytes, bytes] | None:
        readers.add(threading.current_thread().name.partition("_")[0])
        return end_of(file)

    monkeypatch.setattr(parquet_files, "_end_of", seen)
    source = write_files(tmp_path, range(9))
    assert source.inspected().counts == array("q", range(9))
    assert ("footers" in readers) == by_threads
