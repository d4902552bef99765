"""A file as Spark writes it, whose columns are copied: every library reads the rows, and filters find the same."""

from __future__ import annotations

import datetime
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.parquet.files import footer_of
from headrace.core.parquet import compact
from headrace.core.parquet.footer import MAGIC

from .test_copied_columns import Counts, counts, half, parts, run  # noqa: F401

SPARK = {
    b"org.apache.spark.version": b"3.5.1",
    b"org.apache.spark.sql.parquet.row.metadata": b'{"type":"struct","fields":[{"name":"gone","type":"long"}]}',
    b"org.apache.spark.legacyINT96": b"",
}
DAY = datetime.date(2020, 1, 1)


def rows() -> pa.Table:
    ids = list(range(250))
    return pa.table(
        {
            "id": ids,
            "word": [f"w{i % 40:02}" if i % 11 else None for i in ids],
            "day": [DAY + datetime.timedelta(i // 2) for i in ids],
            "at": pa.array([i * 10**15 for i in ids], pa.timestamp("ns")),
            "x": np.arange(250) / 4,
            "tags": [["a"] * (i % 3) if i % 7 else None for i in ids],
        }
    )


def by_spark(table: pa.Table) -> bytes:
    """Return a file with the metadata that parquet-mr and Spark write, INT96 and no schema of Arrow's."""
    stream = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(SPARK),
        stream,
        row_group_size=100,
        store_schema=False,
        use_deprecated_int96_timestamps=True,
        write_page_index=True,
    )
    data = stream.getvalue()
    old = footer_of(data)
    shape = {
        1: compact.I32,
        2: compact.LIST,
        3: compact.I64,
        4: compact.LIST,
        5: compact.LIST,
        6: compact.BINARY,
    }
    fields, _ = compact.read_struct(old, 0, {**shape, 7: compact.LIST})
    fields[6] = compact.of_binary(
        b"parquet-mr version 1.13.1 (build db4183109d5b734ec5930d870cdae161e408ddba)"
    )
    made = compact.write_struct(fields)
    return data[: -len(old) - 8] + made + len(made).to_bytes(4, "little") + MAGIC


def test_every_library_reads_what_was_copied(tmp_path: Path, counts: Counts) -> None:  # noqa: F811
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    table = rows()
    (tmp_path / "in.parquet").write_bytes(by_spark(table))
    assert pq.read_metadata(tmp_path / "in.parquet").created_by.startswith("parquet-mr")
    made = run(tmp_path / "in.parquet", tmp_path / "out", lambda d: d.predict(half, inputs=["x"], output="p"))
    assert counts.names == {"id", "word", "day", "at", "x", "tags"} and counts.copied == 3
    expected = table.append_column("p", pa.array(np.arange(250) / 8))
    assert made.combine_chunks().equals(expected.combine_chunks())
    (part,) = parts(tmp_path / "out")
    assert not (pq.read_metadata(part).metadata or {}).keys() & SPARK.keys()
    columns = expected.column_names
    plain = [tuple(row.values()) for row in expected.drop(["at"]).to_pylist()]
    names = ", ".join(name for name in columns if name != "at")
    assert duckdb.sql(f"select {names} from '{part}'").fetchall() == plain
    assert polars.read_parquet(part).select(names.split(", ")).rows() == plain
    read = polars.scan_parquet(part)
    for column, low, high in (
        ("id", 95, 105),
        ("word", "w07", "w08"),
        ("day", DAY + datetime.timedelta(49), DAY + datetime.timedelta(60)),
        ("at", datetime.datetime(1970, 1, 1), datetime.datetime(1974, 1, 1)),
        ("x", 24.5, 24.75),
        ("p", 12.0, 12.5),
    ):
        values = dict(zip(table["id"].to_pylist(), expected[column].to_pylist(), strict=True))
        wanted = [i for i, value in values.items() if value is not None and low <= value < high]
        assert 0 < len(wanted) < 130
        found = pq.read_table(part, filters=[(column, ">=", low), (column, "<", high)])
        assert found["id"].to_pylist() == wanted, column
        query = f'select id from \'{part}\' where "{column}" >= $1 and "{column}" < $2'
        assert [row[0] for row in duckdb.execute(query, [low, high]).fetchall()] == wanted, column
        within = (polars.col(column) >= low) & (polars.col(column) < high)
        assert read.filter(within).select("id").collect()["id"].to_list() == wanted, column


def test_daft_reads_what_was_copied(tmp_path: Path, counts: Counts) -> None:  # noqa: F811
    daft = pytest.importorskip("daft")
    table = rows().drop(["at"])
    (tmp_path / "in.parquet").write_bytes(by_spark(table))
    run(tmp_path / "in.parquet", tmp_path / "out", lambda d: d.predict(half, inputs=["x"], output="p"))
    assert counts.copied == 3
    (part,) = parts(tmp_path / "out")
    read = daft.read_parquet(str(part))
    expected = table.append_column("p", pa.array(np.arange(250) / 8))
    assert read.to_arrow().to_pylist() == expected.to_pylist()
    within = read.where((daft.col("id") >= 95) & (daft.col("id") < 105)).to_pydict()
    assert within["id"] == list(range(95, 105)) and within["word"][4] is None
