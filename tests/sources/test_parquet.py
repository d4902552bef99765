"""Parquet: splits, one schema over many files, folders as columns, damage."""

from __future__ import annotations

import datetime
import decimal
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.errors import (
    ArgumentError,
    InputChanged,
    NothingMatched,
    SchemaMismatch,
    UnknownColumn,
    UnreadableFile,
)
from headrace.sources.parquet.files import Footer, Grain
from headrace.sources.parquet.source import ParquetSource
from headrace.testing.sources import read_all, read_sound, read_told


def write(path: Path, columns: dict[str, object], **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


# ---------------------------------------------------------------- splits


def test_large_row_groups_are_splits_small_neighbours_go_together(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": range(1_000_000)}, row_group_size=250_000, use_dictionary=False)
    write(tmp_path / "b.parquet", {"x": range(1000)}, row_group_size=10)
    first, *_, last = splits = ParquetSource(tmp_path).splits()
    assert [(s.file, s.start, s.stop, s.rows, s.first) for s in splits[:4]] == [
        (0, i, i + 1, 250_000, 250_000 * i) for i in range(4)
    ]
    assert (last.file, last.start, last.stop, last.rows, last.first) == (1, 0, 100, 1000, 0)
    assert first.bytes >= 8 * 250_000


def test_bytes_count_only_the_columns_that_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"x": range(1000), "s": ["text" * 20] * 1000}, use_dictionary=False)
    narrow, wide = ParquetSource(path, columns=["x"]).splits()[0], ParquetSource(path).splits()[0]
    assert 8000 <= narrow.bytes < wide.bytes / 5


def test_files_without_rows_give_their_schema_only(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": pa.array([], pa.int64())})
    source = ParquetSource(tmp_path)
    assert source.splits() == []
    assert source.schema().names == ["x"]


def test_rows_are_located_in_their_file(tmp_path: Path) -> None:
    path = write(tmp_path / "rides.parquet", {"x": range(300_000)}, row_group_size=150_000)
    source = ParquetSource(path)
    splits = source.splits()
    assert str(source.locate(splits[1], 4)) == f"{path}, row 18754"
    assert str(source.locate(splits[8], 4)) == f"{path}, row 150004"
    for split in splits:
        at = str(source.locate(split, 7))
        assert at == f"{path}, row {read_all(source, [split])['x'][7].as_py()}"


@pytest.mark.parametrize(
    ("groups", "group_rows", "expected"),
    [
        (1, 1000, 1),
        (1, 2047, 1),
        (1, 2048, 2),
        (2, 9000, 16),
        (3, 9000, 15),
        (5, 9000, 15),
        (8, 9000, 16),
        (9, 9000, 9),
        (15, 9000, 15),
        (16, 9000, 16),
        (4, 200, 1),
    ],
)
def test_how_many_pieces(tmp_path: Path, groups: int, group_rows: int, expected: int) -> None:
    path = write(tmp_path / "a.parquet", {"x": range(groups * group_rows)}, row_group_size=group_rows)
    source = ParquetSource(path)
    splits = source.splits()
    assert len(splits) == expected
    assert read_all(source)["x"].to_pylist() == list(range(groups * group_rows))


def test_a_row_group_that_takes_long_to_decode_is_cut_less() -> None:
    footers = [Footer(pa.schema([]), ((100_000, 100 << 20),)), Footer(pa.schema([]), ((100_000, 1 << 30),))]
    grain = Grain.of(footers, 1 << 20)
    splits = [split for number, footer in enumerate(footers) for split in footer.splits(number, grain)]
    assert [(s.file, s.rows) for s in splits] == [(0, 50_000), (0, 50_000), (1, 100_000)]


def test_an_empty_row_group_between_is_passed_over(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("x", pa.int64())])) as writer:
        for rows in (0, 3000, 0, 10, 0, 5000):
            writer.write_table(pa.table({"x": pa.array(range(rows), pa.int64())}))
    source = ParquetSource(tmp_path)
    splits = source.splits()
    assert [(s.rows, s.first) for s in splits] == [(1500, 0), (1500, 1500), (10, 3000)] + [
        (1250, 3010 + 1250 * n) for n in range(4)
    ]
    assert read_all(source)["x"].to_pylist() == [*range(3000), *range(10), *range(5000)]


@given(st.data())
@settings(max_examples=few(24), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_read_in_any_order_are_the_rows(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "k=7" / "a.parquet"
    if not path.exists():
        made: dict[str, object] = {
            "x": range(9000),
            "s": [f"é{n}" for n in range(9000)],
            "l": [[n] * (n % 3) for n in range(9000)],
        }
        write(path, made, row_group_size=5000, data_page_size=3000)
    source = ParquetSource(tmp_path)
    splits = source.splits()
    whole = pq.read_table(path, partitioning=None).append_column("k", pa.array([7] * 9000))
    for _ in range(data.draw(st.integers(1, 12))):
        split = data.draw(st.sampled_from(splits))
        choices: list[list[str] | None] = [None, ["x"], ["k"], ["l", "k", "s"], []]
        columns = data.draw(st.sampled_from(choices))
        rows = data.draw(st.sampled_from([1 << 16, 1000, 333, 700]))
        stop_after = data.draw(st.sampled_from([None, None, 1]))
        batches = list(islice(source.read(split, columns, rows), stop_after))
        assert all(0 < batch.num_rows <= rows for batch in batches)
        expected = whole.slice(split.first, split.rows)
        assert stop_after or sum(batch.num_rows for batch in batches) == split.rows
        if columns is not None and not columns:
            continue
        got = pa.Table.from_batches(batches)
        assert got.equals((expected if columns is None else expected.select(columns)).slice(0, got.num_rows))


def test_pieces_in_order_decode_a_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", {"x": range(50_000)})
    source = ParquetSource(path)
    splits = source.splits()
    opened = source._opened(0)
    begun: list[int] = []
    groups = opened._groups

    def counting(start: int, *rest: object) -> object:
        begun.append(start)
        return groups(start, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(opened, "_groups", counting)
    assert read_all(source, splits)["x"].to_pylist() == list(range(50_000))
    assert begun == [0]
    read_all(source, [splits[3], splits[4], splits[6]], rows=100)
    assert begun == [0, 0, 0]


# ---------------------------------------------------------------- types


def test_types_of_every_kind_survive(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(__import__("numpy").zeros((2, 3, 4), "float32"))
    columns = {
        "decimal": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
        "zoned": pa.array([datetime.datetime(2024, 1, 1), None], pa.timestamp("us", "Europe/Berlin")),
        "dictionary": pa.array(["a", None]).dictionary_encode(),
        "tensor": tensors,
        "list": pa.array([[1, 2], []], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None]),
        "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int8())),
        "binary": pa.array([b"\xff", b""]),
        "float16": pa.array([1.5, None], pa.float16()),
        "name.with.dots": pa.array([1, 2]),
    }
    path = write(tmp_path / "a.parquet", columns)
    assert read_all(ParquetSource(path)).equals(pa.table(columns))
    for name in columns:
        assert read_all(ParquetSource(path), columns=[name]).equals(pa.table(columns).select([name]))


def test_schemas_unify_and_values_follow(tmp_path: Path) -> None:
    write(
        tmp_path / "a.parquet", {"n": pa.array([1], pa.int32()), "f": [1], "z": pa.nulls(1), "only_a": [True]}
    )
    write(
        tmp_path / "b.parquet",
        {
            "f": [2.5],
            "n": pa.array([2**40], pa.int64()),
            "z": ["text"],
            "d": pa.array(["x"]).dictionary_encode(),
        },
    )
    write(tmp_path / "c.parquet", {"n": pa.array([3], pa.int8()), "d": ["y"]})
    source = ParquetSource(tmp_path)
    assert source.schema() == pa.schema(
        [
            ("n", pa.int64()),
            ("f", pa.float64()),
            ("z", pa.string()),
            ("only_a", pa.bool_()),
            ("d", pa.string()),
        ]
    )
    assert read_all(source).to_pylist() == [
        {"n": 1, "f": 1.0, "z": None, "only_a": True, "d": None},
        {"n": 2**40, "f": 2.5, "z": "text", "only_a": None, "d": "x"},
        {"n": 3, "f": None, "z": None, "only_a": None, "d": "y"},
    ]


def test_a_column_that_must_not_be_null_may_be_missing_elsewhere(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"x": [1]}, schema), tmp_path / "a.parquet")
    assert ParquetSource(tmp_path / "a.parquet").schema() == schema
    write(tmp_path / "b.parquet", {"y": [2]})
    table = read_all(ParquetSource(tmp_path))
    assert table.to_pylist() == [{"x": 1, "y": None}, {"x": None, "y": 2}]
    table.validate(full=True)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array(["a"]), pa.array([1])),
        (pa.array([decimal.Decimal("1.25")]), pa.array([1.5])),
        (pa.array([0], pa.timestamp("us")), pa.array([0], pa.timestamp("us", "UTC"))),
        (pa.array([{"a": 1}]), pa.array([1])),
    ],
)
def test_types_that_do_not_unify_name_both_files(tmp_path: Path, left: pa.Array, right: pa.Array) -> None:
    write(tmp_path / "a.parquet", {"k": [1], "x": left})
    write(tmp_path / "b.parquet", {"k": [1]})
    write(tmp_path / "c.parquet", {"k": [1], "x": right})
    with pytest.raises(SchemaMismatch) as caught:
        ParquetSource(tmp_path).schema()
    for part in ("'x'", str(left.type), str(right.type), "a.parquet", "c.parquet"):
        assert part in str(caught.value)
    assert read_all(ParquetSource(tmp_path, columns=["k"])).num_rows == 3


def test_a_value_lost_by_widening_is_an_error_not_a_rounding(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": [2**53 + 1]})
    write(tmp_path / "b.parquet", {"x": [0.5]})
    with pytest.raises(SchemaMismatch, match=r"'x' of .*a\.parquet' is int64.*double"):
        read_all(ParquetSource(tmp_path))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(SchemaMismatch, match="two columns named 'x'"):
        ParquetSource(tmp_path).schema()


@pytest.mark.parametrize("files", [1, 600])  # many small ones are read together
def test_old_times_that_nanoseconds_cannot_hold_are_no_others(tmp_path: Path, files: int) -> None:
    """Spark writes INT96, and people write 9999-12-31 for "never"; Arrow makes a time of 1816 of it."""
    old: dict[str, object] = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    times = [datetime.datetime(1700, 1, 1, microsecond=1), None, datetime.datetime(2200, 1, 1)]
    for number in range(files):
        nested = pa.array([[t] for t in times], pa.list_(pa.timestamp("us")))
        write(
            tmp_path / f"{number:03}.parquet",
            {"id": [1, 2, 3], "t": pa.array(times, pa.timestamp("us")), "l": nested},
            **old,
        )
    assert read_all(ParquetSource(tmp_path))["t"].cast(pa.timestamp("us")).to_pylist() == times * files
    for column in ("t", "l"):
        end = datetime.datetime(9999, 12, 31)
        made = pa.array([end if column == "t" else [end]] * 3)
        write(
            tmp_path / "000.parquet",
            {"id": [1, 2, 3], "t": pa.array(times), "l": nested, column: made},
            **old,
        )
        source = ParquetSource(tmp_path)
        with pytest.raises(UnreadableFile, match=rf"000\.parquet': the column '{column}' has times before"):
            read_all(source)
        assert read_all(source, columns=["id"]).num_rows == 3 * files
        assert sum(map(len, read_sound(source, source.splits()[0]).bad)) == 3


# ---------------------------------------------------------------- hive folders


def test_folders_become_columns(tmp_path: Path) -> None:
    write(tmp_path / "year=2023" / "city=Rome" / "a.parquet", {"x": [1, 2]})
    write(tmp_path / "year=2024" / "city=__HIVE_DEFAULT_PARTITION__" / "a.parquet", {"x": [3]})
    source = ParquetSource(tmp_path)
    assert source.schema().types == [pa.int64(), pa.int64(), pa.string()]
    assert read_all(source).to_pylist() == [
        {"x": 1, "year": 2023, "city": "Rome"},
        {"x": 2, "year": 2023, "city": "Rome"},
        {"x": 3, "year": 2024, "city": None},
    ]
    assert read_all(source, columns=["city", "x"]).column_names == ["city", "x"]
    assert read_all(source, columns=["year"]).to_pydict() == {"year": [2023, 2023, 2024]}
    assert ParquetSource(tmp_path, partitioning=None).schema().names == ["x"]
    one = ParquetSource(tmp_path / "year=2023" / "city=Rome" / "a.parquet", columns=["year"])
    assert read_all(one).to_pydict() == {"year": [2023, 2023]}


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["1", "-2"], pa.int64()),
        (["01", "12"], pa.int64()),
        (["1", "x"], pa.string()),
        ([str(2**63 - 1), str(1 - 2**63)], pa.int64()),
        (["9" * 19], pa.string()),
        (["9" * 30], pa.string()),
        (["1.5"], pa.string()),
        (["²"], pa.string()),
        (["__HIVE_DEFAULT_PARTITION__"], pa.string()),
    ],
)
def test_types_of_folder_columns(tmp_path: Path, values: list[str], type_: pa.DataType) -> None:
    for value in values:
        write(tmp_path / f"k={value}" / "a.parquet", {"x": [1]})
    source = ParquetSource(tmp_path)
    assert source.schema().field("k").type == type_
    assert read_all(source).num_rows == len(values)


def test_a_files_own_column_wins_over_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "year=2023" / "a.parquet", {"year": ["of the file"]})
    assert read_all(ParquetSource(tmp_path)).to_pydict() == {"year": ["of the file"]}


# ---------------------------------------------------------------- bad input


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="partitioning is 'hive' or None"):
        ParquetSource("a", partitioning="spark")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"columns=\['x'\]"):
        ParquetSource("a", columns="x")
    with pytest.raises(NothingMatched):
        ParquetSource("/nowhere/at/all").schema()


def test_unknown_columns_are_refused_before_any_work(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"fare": [1]})
    with pytest.raises(UnknownColumn, match=r"columns= asks for column 'fair', .* Did you mean 'fare'"):
        ParquetSource(path, columns=["fair"]).schema()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "it is empty"),
        (lambda data: b"hello, world", "begins with b'hell'"),
        (
            lambda data: data[: len(data) // 2],
            r"at offset [\d,]+ its end mark is missing: the file is cut short",
        ),
        (lambda data: data[:-30] + b"\xff" * 22 + data[-8:], "its footer, at the end of its .* is damaged"),
        (lambda data: data[:-4] + b"PARE", "encrypted"),
    ],
)
def test_files_without_a_footer_say_why(tmp_path: Path, damage: object, message: str) -> None:
    path = write(tmp_path / "a.parquet", {"x": range(1000)})
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(UnreadableFile, match=message) as caught:
        ParquetSource(path).splits()
    assert str(path) in str(caught.value)
    assert caught.value.__cause__ is not None


def damage(path: Path, group: int, *, page: int = 0, column: int = 0) -> None:
    """Spoil a page of a row group; pages of one column are of about equal size."""
    chunk = pq.read_metadata(path).row_group(group).column(column)
    data = bytearray(path.read_bytes())
    at = chunk.data_page_offset + chunk.total_compressed_size * page // 8
    data[at : at + 200] = b"\xff" * 200
    path.write_bytes(data)


@pytest.mark.parametrize("pieces", [False, True])
def test_a_damaged_row_group_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: bool
) -> None:
    if not pieces:
        monkeypatch.setattr("headrace.sources.parquet.files._FEW_GROUPS", 1)
        monkeypatch.setattr("headrace.sources.parquet.files._SPLITS", 1)
    path = write(tmp_path / "a.parquet", {"x": range(40_000)}, row_group_size=10_000, use_dictionary=False)
    damage(path, 1)
    damage(path, 3)
    source = ParquetSource(path)
    rows, bad = read_told(source)
    assert [row["x"] for row in rows] == [*range(10_000), *range(20_000, 30_000)]
    assert sorted(bad) == [*range(10_000, 20_000), *range(30_000, 40_000)]
    assert "row group 1 (of 4" in bad[19_999]
    assert re.match(rf"Cannot read rows [\d,]+ to 39,999 in row group 3 .*{path}", bad[39_999])
    if not pieces:
        (split,) = source.splits()
        assert list(read_sound(source, split).bad) == [range(10_000, 20_000), range(30_000, 40_000)]
    assert read_sound(source, source.splits()[-1], []).table.num_rows > 0  # of no column, nothing is damaged


@pytest.mark.parametrize("pieces", [False, True])
def test_rows_before_the_damage_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: bool
) -> None:
    if not pieces:
        monkeypatch.setattr("headrace.sources.parquet.files._FEW_GROUPS", 1)
    path = write(
        tmp_path / "a.parquet",
        {"x": range(80_000)},
        row_group_size=40_000,
        use_dictionary=False,
        data_page_size=4096,
    )
    damage(path, 0, page=5)
    rows, bad = read_told(ParquetSource(path))
    lost = sorted(bad)
    assert 10_000 < lost[0] < 30_000
    assert lost == [*range(lost[0], 40_000)]
    assert [row["x"] for row in rows] == [*range(lost[0]), *range(40_000, 80_000)]


def test_spoilt_bytes_never_end_the_process(tmp_path: Path) -> None:
    """Wherever they are: an error of ours that names the file, or rows."""
    code = f"""
import random
from pathlib import Path
from headrace.errors import SourceError
from headrace.sources.parquet.source import ParquetSource
whole = Path({str(tmp_path)!r}, "whole.parquet").read_bytes()
path = Path({str(tmp_path)!r}, "spoilt.parquet")
for seed in range(100):
    chance = random.Random(seed)
    data = bytearray(whole)
    for _ in range(chance.choice((1, 3, 30))):
        data[chance.randrange(4, len(data) - 8)] = chance.randrange(256)
    path.write_bytes(data)
    source = ParquetSource(path)
    try:
        for split in source.splits():
            for batch in source.read(split, None, 100, lambda row, count, error: None):
                batch.validate()
                d = batch["d"]
                assert all(i is None or 0 <= i < len(d.dictionary) for i in d.indices.to_pylist())
    except SourceError as error:
        assert str(path) in str(error), error
"""
    columns = {
        "n": pa.array([None if n % 7 == 0 else n for n in range(500)]),
        "s": pa.array([f"s{n % 50}" for n in range(500)]),
        "l": pa.array([[str(n)] * (n % 4) for n in range(500)]),
        "d": pa.array([f"d{n % 5}" for n in range(500)]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "whole.parquet", row_group_size=200)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_is_kept_open_between_its_splits(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"x": range(400_000)}, row_group_size=200_000, use_dictionary=False)
    source = ParquetSource(path)
    first, *_, second = source.splits()
    read_all(source, [first])
    os.unlink(path)
    assert read_all(source, [second])["x"][-1].as_py() == 399_999
    source.close()
    with pytest.raises(InputChanged, match="is gone"):
        read_all(source, [second])


def test_vectors_that_pyarrow_cannot_read_are_not_called_damage(tmp_path: Path) -> None:
    vectors = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))
    pq.write_table(pa.table({"id": [1, 2, 3], "x": vectors}), tmp_path / "a.parquet")
    data = hr.read_parquet(tmp_path / "a.parquet").with_options(engine="inline", progress=False)
    try:
        assert [row["x"] for row in data.take_all()][1] is None
    except UnreadableFile as error:
        assert "A vector is null" in str(error) and "damaged" not in str(error)
