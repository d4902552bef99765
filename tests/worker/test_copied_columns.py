"""Columns that are copied as they are stored: the same rows, types and statistics as if they had been decoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from core.parquet.files import WAYS, every_type, opened, written
from headrace.core.parquet import chunks
from headrace.dataset.dataset import Dataset
from headrace.errors import InputChanged
from headrace.session import execution_plan
from headrace.sinks.parquet_joined import JoinedEncoder
from headrace.worker import copy_choice, copying, reading
from headrace.worker.steps.base import runs

from .test_steps import Round, Rounding

Build = Callable[[Dataset], Dataset]


class Counts:
    """What was written in the last run: row groups that were copied, batches that were encoded as a whole."""

    def __init__(self) -> None:
        self.copied = self.encoded = 0
        self.names: set[str] = set()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    monkeypatch.setattr(copy_choice, "LEAST_ROWS", 1)
    found = Counts()
    write, write_group = JoinedEncoder.write, JoinedEncoder.write_group

    def counted(self: Any, batch: Any) -> None:
        found.encoded += 1
        write(self, batch)

    def group_counted(self: Any, *arguments: Any) -> None:
        found.copied += 1
        found.names = set(self._copied)
        write_group(self, *arguments)

    monkeypatch.setattr(JoinedEncoder, "write", counted)
    monkeypatch.setattr(JoinedEncoder, "write_group", group_counted)
    return found


def run(
    source: Path, out: Path, build: Build, write: dict[str, Any] | None = None, **options: Any
) -> pa.Table:
    options = {"engine": "inline", "progress": False, **options}
    build(hr.read_parquet(source)).with_options(**options).write_parquet(out, **(write or {}))
    return pa.concat_tables([pq.read_table(part) for part in parts(out)])


def parts(out: Path) -> list[Path]:
    return sorted(out.glob("part-*"))


def both(source: Path, folder: Path, build: Build, **options: Any) -> pa.Table:
    """Run a plan in both ways, and compare all that a reader sees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution_plan, "why_nothing_copied", lambda plan: "for comparison")
        decoded = run(source, folder / "decoded", build, **options)
    copied = run(source, folder / "copied", build, **options)
    assert copied.schema.equals(decoded.schema, check_metadata=True)
    assert copied.combine_chunks().equals(decoded.combine_chunks())
    mine, theirs = (pq.ParquetFile(parts(folder / name)[0]) for name in ("copied", "decoded"))
    assert mine.schema.equals(theirs.schema)
    assert str(mine.schema).split("\n")[1:] == str(theirs.schema).split("\n")[1:]
    assert mine.metadata.metadata == theirs.metadata.metadata
    assert [path.name[:10] for path in parts(folder / "copied")] == [
        path.name[:10] for path in parts(folder / "decoded")
    ]
    return copied


def doubled(data: Dataset) -> Dataset:
    return data.predict(lambda batch: batch["required"] * 2, inputs=["required"], output="twice")


@pytest.mark.parametrize("way", WAYS)
def test_every_type_written_in_every_way(way: str, tmp_path: Path, counts: Counts) -> None:
    table = every_type()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_bytes(written(table, row_group_size=100, **WAYS[way]))
    made = both(tmp_path / "in", tmp_path, doubled)
    assert (counts.copied, counts.encoded) == (3, 0)
    decoded = {"none"}  # it has no type
    decoded |= (
        {"decimal_5", "decimal_15"} if way == "indexed" else set()
    )  # stored as integers, written as bytes
    decoded |= {"uuid"} if way == "unstored" else set()  # it is plain bytes there
    assert counts.names == set(table.schema.names) - decoded
    assert made["twice"].to_pylist() == [2 * i for i in range(300)]


# ---------------------------------------------------------------- plans


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two files of three row groups: 100 rows each, and a shorter one at the end."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        ids = np.arange(250) + 250 * number
        table = pa.table(
            {
                "id": ids,
                "x": ids / 4,
                "word": [f"word {i % 30}" if i % 11 else None for i in ids],
                "tags": [["a"] * (i % 3) if i % 7 else None for i in ids.tolist()],
                "kind": pa.array([f"k{i % 3}" for i in ids]).dictionary_encode(),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=100, compression="zstd")
    return folder


def half(batch: dict[str, Any]) -> Any:
    return batch["x"] / 2


def named(batch: dict[str, Any]) -> Any:
    return {"low": batch["x"] - 1, "high": batch["x"] + 1}


def own_step(data: Dataset) -> Dataset:
    """It says what it reads, and nothing of what it changes."""
    runs(Round)(Rounding)
    return data.with_step(Round("x"))


PLANS: dict[str, tuple[Build, set[str]]] = {
    "own step": (own_step, set()),
    "predict": (lambda d: d.predict(half, inputs=["x"], output="p"), {"id", "x", "word", "tags", "kind"}),
    "keep": (lambda d: d.predict(half, inputs=["x"], output="p", keep=["kind", "id"]), {"id", "kind"}),
    "replace": (
        lambda d: d.predict(half, inputs=["x"], output="x", replace=True),
        {"id", "word", "tags", "kind"},
    ),
    "two results": (lambda d: d.predict(named, inputs=["x"], output="p", keep=["tags"]), {"tags"}),
    "two models": (
        lambda d: d.predict({"a": half, "b": half}, inputs=["x"], keep=["word", "x"]),
        {"word", "x"},
    ),
    "select": (lambda d: d.select_columns(["kind", "id"]), {"kind", "id"}),
    "drop": (lambda d: d.drop_columns(["id", "x"]), {"word", "tags", "kind"}),
    "rename": (
        lambda d: d.rename_columns({"id": "tags", "tags": "id", "word": "a b.c"}).predict(
            half, inputs=["x"], output="p"
        ),
        {"id", "tags", "a b.c", "x", "kind"},
    ),
    "select behind": (
        lambda d: d.predict(half, inputs=["x"], output="p").select_columns(["p", "word"]),
        {"word"},
    ),
    "results alone": (lambda d: d.predict(half, inputs=["x"], output="p").select_columns(["p"]), set()),
    "map_batches": (lambda d: d.map_batches(lambda batch: batch), set()),
    "filter": (lambda d: d.filter(expr="id > 3"), set()),
}


@pytest.mark.parametrize("plan", PLANS)
def test_plans_give_the_same_in_both_ways(plan: str, source: Path, tmp_path: Path, counts: Counts) -> None:
    build, copied = PLANS[plan]
    both(source, tmp_path, build)
    assert counts.names == copied
    assert (counts.copied, counts.encoded) == (6 if copied else 0, 0)


def test_what_explain_says_is_what_is_done(source: Path, tmp_path: Path, counts: Counts) -> None:
    data = hr.read_parquet(source)
    said = data.predict(half, inputs=["x"], output="p").rename_columns({"id": "key"}).explain()
    assert "copied   as they are stored: key, x, word, tags, kind\n" in said
    assert "copied   nothing: filter(half) may change which rows there are\n" in data.filter(half).explain()
    assert "copied" not in data.map_batches(half).explain() + hr.range(3).explain()
    times = pa.array([[1], [2], [3]], pa.list_(pa.timestamp("us")))
    pq.write_table(
        pa.table({"t": times, "v": [1.0, 2.0, 3.0]}),
        tmp_path / "int96.parquet",
        use_deprecated_int96_timestamps=True,
    )
    said = hr.read_parquet(tmp_path / "int96.parquet").explain()
    assert "copied   as they are stored: v\n" in said
    assert "         not t: its times are INT96, an old form\n" in said


def test_a_file_of_another_codec_is_encoded_again_where_one_is_asked_for(
    source: Path, tmp_path: Path, counts: Counts
) -> None:
    for compression, copied in (("snappy", 0), ("zstd", 6)):
        counts.copied = 0
        run(source, tmp_path / compression, PLANS["predict"][0], {"compression": compression})
        group = pq.read_metadata(parts(tmp_path / compression)[0]).row_group(0)
        assert {group.column(i).compression for i in range(group.num_columns)} == {compression.upper()}
        assert counts.copied == copied
    counts.copied = 0
    for write in (
        {"compression_level": 3, "compression": "zstd"},
        {"max_rows_per_file": 70},
        {"partition_by": "kind"},
    ):
        out = tmp_path / next(iter(write))
        PLANS["drop"][0](hr.read_parquet(source)).with_options(engine="inline", progress=False).write_parquet(
            out, **write
        )
        assert hr.read_parquet(out).count() == 500
    assert counts.copied == 0


def fails_at(*bad: int) -> Callable[[dict[str, Any]], Any]:
    def model(batch: dict[str, Any]) -> Any:
        if np.isin(batch["id"], bad).any():
            raise ValueError("bad")
        return batch["id"] * 3

    return model


@pytest.mark.parametrize("bad", [(7,), (99, 100), (0, 249, 250, 499), tuple(range(100, 200))])
def test_only_row_groups_with_rejected_rows_are_decoded(
    bad: tuple[int, ...], source: Path, tmp_path: Path, counts: Counts
) -> None:
    def build(data: Dataset) -> Dataset:
        return data.predict(fails_at(*bad), inputs=["id"], output="p")

    for path in source.iterdir():  # rejected rows of two dictionaries cannot be written
        pq.write_table(pq.read_table(path).drop(["kind"]), path, row_group_size=100)
    made = both(source, tmp_path, build, on_error="reject", max_errors=1_000)
    left = [i for i in range(500) if i not in bad]
    assert made["id"].to_pylist() == left and made["p"].to_pylist() == [3 * i for i in left]
    originals = pa.concat_tables([pq.read_table(source / f"{number}.parquet") for number in range(2)])
    assert made.drop(["p"]).to_pylist() == originals.take(left).to_pylist()
    touched = {(i // 250, i % 250 // 100) for i in bad}
    assert counts.copied == 6 - len(touched) and (counts.encoded > 0) == (len(bad) < 100)
    assert hr.read_rejected(tmp_path / "copied").count() == len(bad)


def test_rows_of_failed_models_get_nulls_and_are_copied(source: Path, tmp_path: Path, counts: Counts) -> None:
    def build(data: Dataset) -> Dataset:
        return data.predict(fails_at(120), inputs=["id"], output="p")

    made = both(source, tmp_path, build, on_error="null", max_errors=10)
    assert made["p"].null_count == 1 and counts.copied == 6


@pytest.mark.parametrize("rows", [1, 99, 100, 101, 250, 350, 600])
def test_a_limit_cuts_one_row_group(rows: int, source: Path, tmp_path: Path, counts: Counts) -> None:
    made = both(source, tmp_path, lambda data: PLANS["predict"][0](data).limit(rows))
    assert made["id"].to_pylist() == list(range(min(rows, 500)))
    assert counts.copied == {1: 0, 99: 0, 100: 1, 101: 1, 250: 3, 350: 4, 600: 6}[rows]


def test_results_that_need_much_memory_are_written_in_pieces(
    source: Path, tmp_path: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MOST_HELD", 400)
    monkeypatch.setattr(reading, "read_size", lambda split: 30)
    both(source, tmp_path, lambda data: data.predict(half, inputs=["x"], output="p", batch_size=20))
    assert counts.copied == 2 and counts.encoded > 6  # the row groups of 50 rows


def test_small_row_groups_are_put_together(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out", PLANS["predict"][0])
    assert sum(pq.read_metadata(part).num_row_groups for part in parts(tmp_path / "out")) < 6


# ---------------------------------------------------------------- files


def test_footers_that_would_need_much_memory_are_left_to_arrow(
    source: Path, tmp_path: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [opened(path).footer_size for path in source.iterdir()]
    monkeypatch.setattr(chunks, "MOST_FOOTERS", max(sizes))
    both(source, tmp_path, PLANS["predict"][0], shard_rows=250)
    assert counts.copied == 6  # a file for each shard
    monkeypatch.setattr(chunks, "MOST_FOOTERS", max(sizes) - 1)
    assert len(run(source, tmp_path / "more", PLANS["predict"][0])) == 500
    assert counts.copied < 12


def test_files_that_differ_are_decoded_where_they_do(tmp_path: Path, counts: Counts) -> None:
    (tmp_path / "in").mkdir()
    numbers = np.arange(100)
    one = pa.table({"same": numbers, "x": pa.array(numbers, pa.int32()), "lacks": numbers})
    two = pa.table({"x": pa.array(numbers, pa.int64()), "same": numbers})
    pq.write_table(one, tmp_path / "in" / "a.parquet")
    pq.write_table(two, tmp_path / "in" / "b.parquet")
    made = both(tmp_path / "in", tmp_path, lambda data: data.predict(half, inputs=["x"], output="p"))
    assert counts.copied == 2 and counts.names == {"same"}
    assert made["x"].type == pa.int64() and made["lacks"].null_count == 100
    assert made["same"].to_pylist() == [*range(100), *range(100)]


def test_columns_of_folders_and_paths_are_made(tmp_path: Path, counts: Counts) -> None:
    for day in (1, 2):
        folder = tmp_path / "in" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": np.arange(100.0)}), folder / "a.parquet")
    made = both(tmp_path / "in", tmp_path, lambda data: data.predict(half, inputs=["x"], output="p"))
    assert made["day"].to_pylist() == [1] * 100 + [2] * 100 and counts.names == {"x"}


def test_vectors_are_copied_where_none_is_null(tmp_path: Path, counts: Counts) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(np.arange(600, dtype=np.float32), 3)
    pq.write_table(pa.table({"x": np.arange(200.0), "v": vectors}), tmp_path / "a.parquet")
    both(tmp_path / "a.parquet", tmp_path, lambda data: data.predict(half, inputs=["x"], output="p"))
    assert counts.names == {"x", "v"}


def test_statistics_serve_filters_as_before(source: Path, tmp_path: Path, counts: Counts) -> None:
    run(source, tmp_path / "out", PLANS["rename"][0])
    for part in parts(tmp_path / "out"):
        metadata = pq.read_metadata(part)
        for i in range(metadata.num_row_groups):
            for j in range(metadata.num_columns):
                statistics = metadata.row_group(i).column(j).statistics
                assert statistics is None or statistics.has_null_count
    for filters, rows in (
        ([("x", "<", 10)], 40),
        ([("a b.c", "=", "word 5")], 16),
        ([("p", ">", 60)], 19),
        ([("tags", ">=", 490)], 10),
    ):
        tables = [pq.read_table(part, filters=filters) for part in parts(tmp_path / "out")]
        assert sum(map(len, tables)) == rows


def test_an_input_that_changes_is_an_error(source: Path, tmp_path: Path, counts: Counts) -> None:
    def model(batch: dict[str, Any]) -> Any:
        path = source / "1.parquet"
        path.write_bytes(path.read_bytes())
        return batch["x"]

    with pytest.raises(InputChanged, match=r"1\.parquet"):
        run(source, tmp_path / "out", lambda data: data.predict(model, inputs=["x"], output="p"))


def test_pages_that_make_no_sense_are_told_as_ever(source: Path, tmp_path: Path, counts: Counts) -> None:
    path = source / "0.parquet"
    chunk = pq.read_metadata(path).row_group(1).column(2)  # which nobody looks at
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 8] = b"\xff" * 8
    path.write_bytes(bytes(data))
    with pytest.raises(hr.errors.UnreadableFile, match="row group 1"):
        run(source, tmp_path / "out", PLANS["predict"][0])
    made = run(source, tmp_path / "left", PLANS["predict"][0], on_error="reject", max_errors=200)
    assert made["id"].to_pylist() == [i for i in range(500) if not 100 <= i < 200]
    assert hr.read_rejected(tmp_path / "left").count() == 100


def test_metrics_count_and_verify_agrees(source: Path, tmp_path: Path, counts: Counts) -> None:
    data = PLANS["predict"][0](hr.read_parquet(source)).accumulate(mean=hr.accumulators.Mean("p"))
    data = data.with_options(engine="inline", progress=False)
    result = data.write_parquet(tmp_path / "out")
    assert result.metrics["mean"] == pytest.approx(np.arange(500).mean() / 8)
    checked = hr.verify(tmp_path / "out")
    assert checked.state == "good" and counts.copied == 6


def test_workers_copy_as_this_process_does(tmp_path: Path) -> None:
    rows = 3 * copy_choice.LEAST_ROWS
    table = pa.table({"x": np.arange(rows) / 2, "word": [f"w{i % 40}" for i in range(rows)]})
    (tmp_path / "in").mkdir()
    for number in range(2):
        pq.write_table(
            table,
            tmp_path / "in" / f"{number}.parquet",
            row_group_size=copy_choice.LEAST_ROWS,
            compression="gzip",
        )
    made = run(tmp_path / "in", tmp_path / "out", _halved, engine="local", commit_every=None)  # nobody shares
    assert made.drop(["p"]).combine_chunks().equals(pa.concat_tables([table] * 2).combine_chunks())
    for part in parts(tmp_path / "out"):
        group = pq.read_metadata(part).row_group(0)
        assert [group.column(i).compression for i in range(3)] == ["GZIP", "GZIP", "SNAPPY"]


def _halved(data: Dataset) -> Dataset:
    return data.predict(half, inputs=["x"], output="p")


def test_longer_row_groups_than_the_encoder_makes_are_decoded(
    tmp_path: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MOST_ROWS", 99)
    table = pa.table({"id": range(198), "x": [float(i) for i in range(198)]})
    with pq.ParquetWriter(tmp_path / "in.parquet", table.schema) as writer:
        writer.write_table(table[:100], row_group_size=100)
        writer.write_table(table[100:], row_group_size=100)
    found = run(
        tmp_path / "in.parquet",
        tmp_path / "out",
        lambda data: data.predict(lambda batch: batch["x"] * 2, inputs=["x"], output="y"),
        shard_rows=1_000,
    )
    assert found.equals(table.append_column("y", pa.array([2.0 * i for i in range(198)])))
    assert counts.copied == 1 and counts.encoded >= 1


def test_row_groups_are_not_cut_where_columns_are_copied(tmp_path: Path) -> None:
    """They are few, so a source cuts them; pieces of one that lie in several parts would all be decoded."""
    data = pa.table({f"x{i}": np.arange(200_000) + i for i in range(20)})  # 32 MiB: more than one shard
    pq.write_table(data, tmp_path / "in.parquet", row_group_size=50_000)
    given = hr.read_parquet(tmp_path / "in.parquet").with_options(engine="inline")
    copied = given.predict(lambda batch: batch["x0"] * 2, inputs=["x0"], output="double")
    copied.write_parquet(tmp_path / "copied")
    files = [pq.ParquetFile(part).metadata for part in sorted((tmp_path / "copied").glob("*.parquet"))]
    groups = [file.row_group(i).num_rows for file in files for i in range(file.num_row_groups)]
    assert groups == [50_000] * 4
    made = pq.read_table(tmp_path / "copied")
    assert made.select(data.schema.names).equals(data)
    assert made["double"].to_pylist() == [2 * i for i in range(200_000)]
    given.map_batches(lambda batch: batch).write_parquet(tmp_path / "made")  # each column is encoded anew
    parts = sorted((tmp_path / "made").glob("*.parquet"))
    assert min(pq.ParquetFile(part).metadata.num_rows for part in parts) < 50_000
    assert pq.read_table(tmp_path / "made").equals(data)
