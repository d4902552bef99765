"""What Spark holds becomes a dataset, by Arrow."""

from __future__ import annotations

import decimal
import os
import shutil
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ArgumentError

ROWS = [
    (1, 0.5, "a", [1.0, 2.0], datetime(2026, 1, 1, tzinfo=UTC), decimal.Decimal("1.50")),
    (2, None, None, [3.0, 4.0], None, None),
]
TYPES = "n long, x double, s string, v array<double>, t timestamp, d decimal(5,2)"


class Connected:
    """Stands for a DataFrame where Spark is not installed: the methods that are asked for."""

    __module__ = "pyspark.sql.connect.dataframe"

    def toPandas(self) -> Any:
        raise AssertionError("Arrow keeps the types")

    def toArrow(self) -> pa.Table:
        columns = zip(*ROWS, strict=True)
        names = [each.split()[0] for each in TYPES.split(", ")]
        return pa.table(dict(zip(names, map(list, columns), strict=True)))


class Older:
    """A DataFrame of Spark 3."""

    __module__ = "pyspark.sql.dataframe"
    toPandas = Connected.toPandas


def test_rows_come_by_arrow() -> None:
    data = hr.from_spark(Connected())
    assert data.columns() == ["n", "x", "s", "v", "t", "d"]
    assert [list(row.values()) for row in data.take_all()] == [list(row) for row in ROWS]
    assert data.predict(
        lambda batch: batch["n"] * 2, inputs=["n"], output="twice", keep="none"
    ).take_all() == [
        {"twice": 2},
        {"twice": 4},
    ]


def test_what_is_no_frame_of_spark() -> None:
    with pytest.raises(ArgumentError, match="takes a Spark DataFrame, not Table"):
        hr.from_spark(pa.table({"n": [1]}))
    with pytest.raises(
        ArgumentError, match=r"needs Spark 4.*df\.write\.parquet\(path\).*read_parquet\(path\)"
    ):
        hr.from_spark(Older())


@pytest.mark.filterwarnings("ignore")  # of Spark's, about versions of pandas
def test_spark_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    spark = (
        sql.SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    try:
        frame = spark.createDataFrame(ROWS, TYPES)
        data = hr.from_spark(frame)
        assert [list(row.values()) for row in data.take_all()] == [list(row) for row in ROWS]
        assert hr.from_spark(frame.filter("n > 5")).take_all() == []
        frame.write.parquet(str(tmp_path / "rows"))
        again = hr.read_parquet(tmp_path / "rows").take_all()
        assert [row["s"] for row in again] == ["a", None] and [row["n"] for row in again] == [1, 2]
    finally:
        spark.stop()
