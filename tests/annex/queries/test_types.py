"""Values go through a query as they are, or are refused by their column."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import errors

UTC = datetime.UTC
T = datetime.datetime(2024, 5, 1, 12, 30, 15, 123456)
D = datetime.date

KEPT = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array([-128, None, 127], pa.int8()),
    "int64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
    "uint64": pa.array([0, None, 2**64 - 1], pa.uint64()),
    "uint16": pa.array([0, None, 65535], pa.uint16()),
    "float32": pa.array([float("nan"), None, -0.0], pa.float32()),
    "float64": pa.array([float("inf"), float("nan"), 0.1]),
    "decimal": pa.array([Decimal("-1.50"), None, Decimal("99999999999999.99")], pa.decimal128(16, 2)),
    "decimal38": pa.array([Decimal(10**37), None, Decimal(-1)], pa.decimal128(38, 0)),
    "text": pa.array(["", None, "ä\0b"]),
    "bytes": pa.array([b"", None, b"\0\xff"]),
    "date": pa.array([D(1, 1, 1), None, D(9999, 12, 31)]),
    "time": pa.array([datetime.time(0, 0, 0, 1), None, datetime.time(23, 59, 59, 999999)], pa.time64("us")),
    "ms": pa.array([T.replace(microsecond=123000), None, T.replace(microsecond=0)], pa.timestamp("ms")),
    "us": pa.array([T, None, T], pa.timestamp("us")),
    "ns": pa.array([1, None, 1714566615123456789], pa.timestamp("ns")),
    "zoned": pa.array([T, None, T], pa.timestamp("us", "America/New_York")),
    "utc": pa.array([T, None, T], pa.timestamp("us", "UTC")),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "struct": pa.array([{"a": 1, "b": [None]}, None, {"a": None, "b": ["x"]}]),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "vector": pa.array([[1.5, 2.5], [3.5, 4.5], [0.0, -0.0]], pa.list_(pa.float32(), 2)),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(18, dtype=np.float32).reshape(3, 2, 3)),
}

WIDER = {
    "float16": (pa.array([1.5, None, 2.0], pa.float16()), pa.float32()),
    "dictionary": (pa.array(["x", None, "y"]).dictionary_encode(), pa.string()),
    "large text": (pa.array(["x", None, "y"], pa.large_string()), pa.string()),
    "view": (pa.array(["x", None, "y"], pa.string_view()), pa.string()),
    "fixed bytes": (pa.array([b"ab", None, b"cd"], pa.binary(2)), pa.binary()),
    "seconds": (pa.array([1, None, 2], pa.timestamp("s")), pa.timestamp("ms")),
    "time32": (pa.array([1, None, 2], pa.time32("ms")), pa.time64("us")),
    "date64": (pa.array([86400000, None, 0], pa.date64()), pa.date32()),
    "seconds of a zone": (
        pa.array([1, None, 2], pa.timestamp("s", "Asia/Tokyo")),
        pa.timestamp("us", "Asia/Tokyo"),
    ),
    "nulls": (pa.nulls(3), pa.int32()),
}

REFUSED = {
    "zoned ns": pa.array([1, None, 2], pa.timestamp("ns", "UTC")),
    "time of ns": pa.array([1, None, 2], pa.time64("ns")),
    "duration": pa.array([1, None, 2], pa.duration("us")),
    "decimal256": pa.array([Decimal(1), None, Decimal(2)], pa.decimal256(50, 0)),
    "interval": pa.array([(1, 2, 3), None, (0, 0, 0)], pa.month_day_nano_interval()),
}


def _input(columns, tmp_path, way):
    table = pa.table({"n": [1, 2, 3], **columns})
    if way == "memory":
        return hr.from_arrow(table)
    pq.write_table(table, tmp_path / "a.parquet")
    return hr.read_parquet(tmp_path / "a.parquet")


def _all(data):
    return data.with_options(engine="inline", progress=False).to_arrow()


@pytest.mark.parametrize("way", ["file", "memory"])
def test_values_and_types_stay(way, tmp_path):
    given = _input(KEPT, tmp_path, way)
    found = hr.sql("SELECT * FROM t ORDER BY n", t=given)
    assert found.schema() == given.schema()
    assert ("duckdb reads the files" in found.explain()) == (way == "file")
    got = _all(found)
    assert got.schema == found.schema()
    for name, column in KEPT.items():
        assert repr(got[name].to_pylist()) == repr(column.to_pylist()), name


def test_vectors_that_are_null_are_refused(tmp_path):
    column = pa.array([[1.5, None], None, [0.0, -0.0]], pa.list_(pa.float32(), 2))
    with pytest.raises(errors.SinkError, match="a whole vector is null"):
        _all(hr.sql("SELECT * FROM t ORDER BY n", t=_input({"x": column}, tmp_path, "memory")))


@pytest.mark.parametrize("way", ["file", "memory"])
def test_polars_keeps_values(way, tmp_path):
    found = hr.sql("SELECT * FROM t ORDER BY n", t=_input(KEPT, tmp_path, way), query_engine="polars")
    got = _all(found)
    assert got.schema == found.schema()
    for name, column in KEPT.items():
        assert repr(got[name].to_pylist()) == repr(column.to_pylist()), name


@pytest.mark.parametrize("way", ["file", "memory"])
def test_a_wider_type_has_the_same_values(way, tmp_path):
    given = _input({name: column for name, (column, _) in WIDER.items()}, tmp_path, way)
    got = _all(hr.sql("SELECT * FROM t ORDER BY n", t=given))
    for name, (column, type_) in WIDER.items():
        assert got[name].type == type_, name
        assert got[name].to_pylist() == column.cast(type_).to_pylist(), name


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_is_refused(name):
    with pytest.raises(errors.PlanError, match=r"the column 'x' of t is .*drop_columns"):
        hr.sql("SELECT n FROM t", t=hr.from_arrow(pa.table({"n": [1, 2, 3], "x": REFUSED[name]})))


@pytest.mark.parametrize(
    ("expression", "type_"),
    [
        ("sum(n)", pa.decimal128(38, 0)),
        ("'1'::ENUM('1')", pa.string()),
        ("uuid()", pa.string()),
        ("NULL", pa.int32()),
        ("count(*)", pa.int64()),
        ("[1.5::FLOAT, 2]::FLOAT[2]", pa.list_(pa.float32(), 2)),
        ("{'a': sum(n)}", pa.struct([("a", pa.decimal128(38, 0))])),
    ],
)
def test_types_of_results(expression, type_):
    found = hr.sql(f"SELECT {expression} AS x FROM t", t=hr.range(3).rename_columns({"id": "n"}))
    assert found.schema().field("x").type == type_
    assert _all(found)["x"].type == type_


@pytest.mark.parametrize("expression", ["INTERVAL 1 DAY", "'10'::BIT", "'12:00:00+01'::TIMETZ"])
def test_results_that_files_cannot_hold_are_refused(expression):
    with pytest.raises(errors.PlanError, match=r"the result's column 'x' is .*Cast it"):
        hr.sql(f"SELECT {expression} AS x FROM t", t=hr.range(1))


def test_a_sum_that_does_not_fit_ends_the_run():
    found = hr.sql(
        "SELECT (id::HUGEINT + 170141183460469231731687303715884105726) AS x FROM t", t=hr.range(2)
    )
    with pytest.raises(errors.SourceError, match="DuckDB failed in the query"):
        _all(found)
