"""Times in INT96, as Spark writes them: copied where all files of a shard have them, and what readers see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.annex.lakes.delta.sink import DeltaTable
from headrace.dataset.dataset import Dataset
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet
from worker.test_copied_columns import Counts, both, counts, half, parts, run  # noqa: F401

DAY = 86_400 * 10**9
FIRST, LAST = -9_000_000_000_000_000_001, 9_223_372_036_854_775_807


def table(start: int, rows: int = 250) -> pa.Table:
    ids = np.arange(start, start + rows)
    times = [
        None if i % 7 == 3 else (FIRST, LAST, i * DAY + i)[i % 3 if i % 50 < 2 else 2] for i in ids.tolist()
    ]
    return pa.table(
        {
            "id": ids,
            "old": pa.array(times, pa.timestamp("ns")),
            "x": ids / 4,
            "word": [f"w{i % 9}" for i in ids],
        }
    )


def spark(path: Path, part: pa.Table, **options: Any) -> None:
    """Write a file as Spark does: INT96, and no schema of Arrow's."""
    options = {"store_schema": False, "row_group_size": 100, **options}
    pq.write_table(part, path, use_deprecated_int96_timestamps=True, **options)


def predicted(data: Dataset) -> Dataset:
    return data.predict(half, inputs=["x"], output="p")


def fails_at(*bad: int) -> Any:
    def model(batch: dict[str, Any]) -> Any:
        if np.isin(batch["id"], bad).any():
            raise ValueError("bad")
        return batch["id"] * 3

    return model


def types_of(path: Path) -> list[str]:
    schema = pq.ParquetFile(path).schema
    return [schema.column(i).physical_type for i in range(len(schema))]


@pytest.mark.parametrize("names", [["id", "old", "x", "word"], ["old", "x"]])
def test_times_stay_as_they_are(names: list[str], tmp_path: Path, counts: Counts) -> None:  # noqa: F811
    (tmp_path / "in").mkdir()
    for number in range(2):
        spark(tmp_path / "in" / f"{number}.parquet", table(250 * number).select(names))
    made = run(tmp_path / "in", tmp_path / "out", predicted)
    expected = pa.concat_tables([table(0), table(250)]).select(names)
    assert made.drop(["p"]).combine_chunks().equals(expected.combine_chunks())
    assert counts.names == set(names) and (counts.copied, counts.encoded) == (6, 0)
    (part,) = parts(tmp_path / "out")
    assert types_of(part)[names.index("old")] == "INT96"
    column = pq.read_metadata(part).row_group(0).column(names.index("old"))
    assert column.statistics is None or not column.statistics.has_min_max


def test_rejected_rows_and_what_other_libraries_read(tmp_path: Path, counts: Counts) -> None:  # noqa: F811
    """One row group with rejected rows is encoded, one with old times and no other columns, too."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    path = tmp_path / "a.parquet"
    spark(path, table(0))
    bad = (120, 249)
    build = {
        "all": (
            lambda d: d.predict(fails_at(*bad), inputs=["id"], output="p"),
            ["id", "old", "x", "word", "p"],
        ),
        "times alone": (
            lambda d: d.predict(fails_at(*bad), inputs=["id"], output="p").select_columns(["old"]),
            ["old"],
        ),
    }
    left = [i for i in range(250) if i not in bad]
    for name, (plan, names) in build.items():
        counts.copied = 0
        made = run(path, tmp_path / name, plan, on_error="reject", max_errors=10)
        assert counts.copied == 1 and made.column_names == names
        expected = table(0).take(left)["old"].combine_chunks()
        assert made["old"].combine_chunks().equals(expected)
        (part,) = parts(tmp_path / name)
        assert types_of(part)[names.index("old")] == "INT96"
        assert [pq.read_metadata(part).row_group(i).num_rows for i in range(2)] == [100, 148]
        assert polars.read_parquet(part)["old"].to_arrow().cast(pa.timestamp("ns")).equals(expected)
        within = duckdb.sql(
            f"select old from '{part}' where old >= '1970-01-05' and old < '1970-03-01'"
        ).fetchall()
        times = [
            value for value in expected.cast(pa.int64()).to_pylist() if value and 4 * DAY <= value < 59 * DAY
        ]
        assert len(within) == len(times) > 30


def test_files_of_both_kinds(tmp_path: Path, counts: Counts) -> None:  # noqa: F811
    """In one shard they are decoded; in shards of their own they stay what they are, in one output."""
    (tmp_path / "in").mkdir()
    spark(tmp_path / "in" / "0.parquet", table(0))
    pq.write_table(table(250), tmp_path / "in" / "1.parquet", row_group_size=100)
    made = both(tmp_path / "in", tmp_path, predicted, shard_rows=1_000)
    assert counts.names == {"id", "x", "word"}
    parted = run(tmp_path / "in", tmp_path / "parted", predicted, shard_rows=250)
    assert parted.combine_chunks().equals(made.combine_chunks())
    assert [types_of(part)[1] for part in parts(tmp_path / "parted")] == ["INT96", "INT64"]
    assert pq.read_table(tmp_path / "parted").combine_chunks().equals(made.combine_chunks())


def test_tables_get_none() -> None:
    schema = pa.schema([("t", pa.timestamp("ns")), ("v", pa.int8())])
    sink = FileSink("out", Parquet())
    for format, types in (
        (sink.format, [(3,), (1,)]),
        (DeltaTable(sink).sink().format, [(2,), (1,)]),
    ):
        footer = format.footer_like(schema, ["t"])
        assert [column.types for column in footer.columns] == types
        assert [list(column.leaves) for column in footer.columns] == [[0], [1]]
