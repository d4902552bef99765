"""Parquet files whose pages hold other numbers of rows than the footer says: noticed on every road."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources.parquet.source import ParquetSource
from headrace.testing.sources import read_all, read_sound, read_told
from headrace.worker.reading import SplitReader

OFF = 100_000  # what the second column has more than the first


def write(path: Path, rows: int, group: int, **options: object) -> Path:
    """Write two columns that tell whether a row's values belong together."""
    table = pa.table({"a": range(rows), "b": range(OFF, OFF + rows)})
    pq.write_table(
        table,
        path,
        row_group_size=group,
        use_dictionary=False,
        compression="none",
        column_encoding="PLAIN",
        **options,
    )
    return path


def _varint(number: int) -> bytes:
    number <<= 1  # zigzag
    low = []
    while number > 127:
        low.append(number & 127 | 128)
        number >>= 7
    return bytes([*low, number])


def shorten(path: Path, group: int, columns: Sequence[int], have: int, say: int) -> None:
    """Make the first page of ``have`` values in each of ``columns`` say that it has ``say``."""
    metadata = pq.read_metadata(path)
    data = bytearray(path.read_bytes())
    for column in columns:
        start = metadata.row_group(group).column(column).data_page_offset
        # A page header: type, two sizes, then field 5, the data page's header, which begins with the count.
        old, new = (b"\x2c\x15" + _varint(count) for count in (have, say))
        at = data.index(old, start, start + 20)
        assert len(old) == len(new)
        data[at : at + len(new)] = new
    path.write_bytes(data)


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
@pytest.mark.parametrize("columns", [None, ["a"], ["b", "a"]])
@pytest.mark.parametrize(("groups", "short"), [(1, [0, 1]), (1, [0]), (3, [0, 1]), (3, [0])])
def test_fewer_rows_than_the_footer_says_are_an_error(
    tmp_path: Path, groups: int, short: list[int], columns: list[str] | None, batch_rows: int
) -> None:
    path = write(tmp_path / "a.parquet", 5 * groups, 5)
    shorten(path, 0, short, 5, 2)
    with pytest.raises(
        UnreadableFile, match=r"row group 0 \(of \d\) of .*a\.parquet': the footer says 5 rows"
    ):
        read_all(ParquetSource(path), columns=columns, rows=batch_rows)


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
@pytest.mark.parametrize("short", [[0], [1], [0, 1]])
def test_values_of_different_rows_never_stand_side_by_side(
    tmp_path: Path, short: list[int], batch_rows: int
) -> None:
    path = write(tmp_path / "a.parquet", 20, 5)
    shorten(path, 1, short, 5, 2)
    source = ParquetSource(path)
    (split,) = source.splits()
    sound = read_sound(source, split, rows=batch_rows)
    assert sound.table["a"].to_pylist() == [*range(5), *range(10, 20)]
    assert sound.table["b"].to_pylist() == [OFF + x for x in sound.table["a"].to_pylist()]
    assert [row for rows in sound.bad for row in rows] == [5, 6, 7, 8, 9]


def test_a_piece_of_a_row_group_is_not_given_when_the_group_is_short(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 9000, 4500)
    shorten(path, 1, [0], 4500, 4400)
    source = ParquetSource(path)
    assert len(source.splits()) == 8
    rows, bad = read_told(source)
    assert [row["a"] for row in rows] == list(range(4500))
    assert sorted(bad) == list(range(4500, 9000))
    for split in source.splits():
        if split.first < 4500:
            assert read_all(source, [split]).num_rows == split.rows
    with pytest.raises(UnreadableFile, match="footer says 4,500 rows"):
        read_all(source)


def test_a_row_group_too_big_to_hold_back_is_an_error_even_for_who_leaves_bad_rows_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.parquet.reader._HELD_BYTES", 1000)
    path = write(tmp_path / "a.parquet", 1000, 1000, data_page_size=1000, write_batch_size=100)
    shorten(path, 0, [0], 200, 150)
    source = ParquetSource(path)
    (split,) = source.splits()
    with pytest.raises(UnreadableFile, match="footer says 1,000 rows"):
        read_sound(source, split, rows=10)


def test_a_window_of_a_short_row_group_holds_no_wrong_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 1000, 1000, data_page_size=1000, write_batch_size=100)
    shorten(path, 0, [0], 200, 150)
    source = ParquetSource(path)
    (split,) = source.splits()
    window = msgspec.structs.replace(split, low=200, high=300)
    reading = SplitReader(source, window, None, tolerant=True)
    rejected = 0
    while (read := reading.next()) is not None:
        assert not len(read.rows)
        rejected += sum(reject.count for reject in read.rejects)
    assert rejected == 100


@pytest.mark.parametrize("where", ["total", "group"])
def test_a_footer_that_contradicts_itself_is_refused(tmp_path: Path, where: str) -> None:
    path = write(tmp_path / "a.parquet", 5000, 5000)
    data = bytearray(path.read_bytes())
    footer = data.index(b"\x16" + _varint(5000), len(data) - int.from_bytes(data[-8:-4], "little") - 8)
    at = footer if where == "total" else data.rindex(b"\x16" + _varint(5000), footer)
    data[at + 1 : at + 3] = _varint(4999)
    path.write_bytes(data)
    with pytest.raises(UnreadableFile, match=r"a\.parquet'.* footer.* rows"):
        ParquetSource(path).splits()


@pytest.mark.parametrize("verb", ["write", "iterate", "take", "project"])
def test_a_run_ends_over_it(tmp_path: Path, verb: str) -> None:
    path = write(tmp_path / "a.parquet", 5, 5)
    shorten(path, 0, [0, 1], 5, 2)
    dataset = hr.read_parquet(path).with_options(engine="inline", progress=False)
    with pytest.raises(UnreadableFile, match=r"a\.parquet.*footer says 5 rows"):
        if verb == "write":
            dataset.write_parquet(tmp_path / "out")
        elif verb == "iterate":
            list(dataset.iter_batches())
        elif verb == "take":
            dataset.take_all()
        else:
            dataset.select_columns(["b"]).map_batches(lambda batch: batch).write_parquet(tmp_path / "out")
    assert not list((tmp_path / "out").glob("part-*"))


def test_set_aside_they_are_accounted_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 5, 5)
    shorten(path, 0, [0, 1], 5, 2)
    write(tmp_path / "b.parquet", 5, 5)
    dataset = hr.read_parquet(tmp_path / "*.parquet").with_options(
        engine="inline", progress=False, on_error="reject"
    )
    result = dataset.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected, result.ledger.read) == (5, 5, 10)
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert rejected["_row"].to_pylist() == list(range(5))
    assert "footer says 5 rows" in rejected["_error"][0].as_py()


class Boastful(ParquetSource):
    """Says that each split has one row more than it gives."""

    def splits(self) -> list[Split]:
        return [msgspec.structs.replace(split, rows=split.rows + 1) for split in super().splits()]

    def read(self, split: Split, *rest: object) -> object:  # type: ignore[override]
        return super().read(msgspec.structs.replace(split, rows=split.rows - 1), *rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("on_error", ["raise", "reject"])
def test_a_source_that_gives_fewer_rows_than_it_said_ends_the_run(tmp_path: Path, on_error: str) -> None:
    write(tmp_path / "a.parquet", 5, 5)
    dataset = hr.Dataset.from_source(Boastful(tmp_path / "a.parquet")).with_options(
        engine="inline",
        progress=False,
        on_error=on_error,  # type: ignore[arg-type]
    )
    with pytest.raises(UnreadableFile, match=r"a\.parquet.*6 rows.*5"):
        dataset.write_parquet(tmp_path / "out")


def test_a_footer_that_says_no_rows_is_read_by_its_row_groups(tmp_path: Path) -> None:
    """As in `repeated_no_annotation.parquet` of parquet-testing, which other readers read."""
    path = write(tmp_path / "zero.parquet", 6, 6)
    data = path.read_bytes()
    said, groups = b"\x16" + _varint(6), b"\x19"  # field 3 of the footer, then the list of row groups
    at = data.rindex(said + groups)
    path.write_bytes(data[:at] + b"\x16" + _varint(0) + data[at + len(said) :])
    assert pq.read_metadata(path).num_rows == 0 and pq.read_table(path).num_rows == 6
    rows = hr.read_parquet(path).with_options(engine="inline", progress=False)
    assert rows.count() == 6 and [row["a"] for row in rows.take_all()] == [*range(6)]
    assert rows.write_parquet(tmp_path / "out").rows == 6
    assert hr.read_parquet(tmp_path / "out").count() == 6
    write(tmp_path / "zero-2.parquet", 6, 3)
    assert hr.read_parquet(str(tmp_path / "zero*.parquet")).count() == 12
