"""Numbers of text files are what was written, or an error that says what to do; types are settled for all files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossed import few
from headrace.errors import UnreadableFile
from headrace.sources.csv.source import CsvSource
from headrace.sources.json.source import JsonSource
from headrace.testing.sources import read_all, read_told

BIG = 2**53 + 1
Make = Callable[..., Any]


def csv_of(folder: Path, *files: list[str], **options: Any) -> CsvSource:
    for number, values in enumerate(files):
        (folder / f"{number}.csv").write_text(
            "\n".join(["n,x", *(f"{n},{v}" for n, v in enumerate(values)), ""])
        )
    return CsvSource(folder, **options)


def json_of(folder: Path, *files: list[str], **options: Any) -> JsonSource:
    for number, values in enumerate(files):
        (folder / f"{number}.json").write_text(
            "".join(f'{{"n": {n}, "x": {v}}}\n' for n, v in enumerate(values))
        )
    return JsonSource(folder, **options)


@pytest.mark.parametrize("make", [csv_of, json_of])
@pytest.mark.parametrize(
    ("files", "file", "row", "number"),
    [
        ([["0.5", str(BIG)]], 0, 1, str(BIG)),
        ([[str(BIG), "0.5"]], 0, 0, str(BIG)),
        ([["1", str(-BIG), "0.5"]], 0, 1, str(-BIG)),
        ([["1", str(2**64 - 1)]], 0, 1, str(2**64 - 1)),
        ([["1", "123456789012345678901234567890"]], 0, 1, "123456789012345678901234567890"),
        ([["0.5"], ["1", "2", str(BIG)]], 1, 2, str(BIG)),
        ([[str(BIG)], ["0.5"]], 0, 0, str(BIG)),
        ([["1.5e300", "7"], ["0.5", str(BIG)]], 1, 1, str(BIG)),
    ],
)
def test_a_whole_number_that_would_be_rounded_is_refused_by_name(
    tmp_path: Path, make: Make, files: list[list[str]], file: int, row: int, number: str
) -> None:
    source = make(tmp_path, *files)
    with pytest.raises(UnreadableFile) as caught:
        read_all(source)
    said = str(caught.value)
    assert f"{file}.{'csv' if make is csv_of else 'json'}', row {row} " in said
    assert "'x'" in said
    assert number in said
    assert ("column_types=" if make is csv_of else "schema=") in said


@pytest.mark.parametrize("make", [csv_of, json_of])
def test_set_aside_it_alone_is_missing(tmp_path: Path, make: Make) -> None:
    rows, bad = read_told(make(tmp_path, ["0.5", str(BIG), "1.5", str(2**53), str(BIG + 2)]))
    assert [row["n"] for row in rows] == [0, 2, 3]
    assert sorted(bad) == [1, 4]
    assert str(BIG) in bad[1]


@pytest.mark.parametrize("make", [csv_of, json_of])
def test_what_is_not_rounded_is_read(tmp_path: Path, make: Make) -> None:
    values = ["0.5", str(2**53), str(2**60), "1.7e18", "-9007199254740994", "9007199254740993.0"]
    table = read_all(make(tmp_path, values))
    assert table["x"].to_pylist() == [float(value) for value in values]


def test_a_type_that_is_said_decides(tmp_path: Path) -> None:
    values = ["0.5", str(BIG)]
    assert read_all(csv_of(tmp_path, values, column_types={"x": "float64"}))["x"].to_pylist() == [
        0.5,
        2.0**53,
    ]
    exact = read_all(csv_of(tmp_path, values, column_types={"x": pa.decimal128(38, 9)}))
    assert [int(value * 10) for value in exact["x"].to_pylist()] == [5, BIG * 10]
    (tmp_path / "0.csv").unlink()
    schema = pa.schema({"n": pa.int64(), "x": pa.decimal128(38, 9)})
    exact = read_all(json_of(tmp_path, values, schema=schema))
    assert [int(value * 10) for value in exact["x"].to_pylist()] == [5, BIG * 10]
    rounds = pa.schema({"x": pa.float64()})
    assert read_all(json_of(tmp_path, values, schema=rounds))["x"].to_pylist() == [0.5, 2.0**53]


def test_at_any_depth_and_only_in_columns_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"n": 1, "s": {{"l": [0.5, 1]}}}}\n{{"n": {BIG}, "s": {{"l": [{BIG}]}}}}\n')
    with pytest.raises(UnreadableFile, match=rf"row 1 .*'s\.l' is {BIG}"):
        read_all(JsonSource(path))
    assert read_all(JsonSource(path), columns=["n"])["n"].to_pylist() == [1, BIG]
    path = tmp_path / "a.csv"
    path.write_text(f"n,x\n1,0.5\n{BIG},{BIG}\n")
    assert read_all(CsvSource(path), columns=["n"])["n"].to_pylist() == [1, BIG]


def test_a_number_beyond_all_floats_is_no_infinity(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"row 1 .*'x' .*1e400 is too big for float64"):
        read_all(csv_of(tmp_path, ["1.5", "1e400"]))
    assert read_all(csv_of(tmp_path, ["1.5", "inf", "-inf"]))["x"].to_pylist() == [
        1.5,
        float("inf"),
        -float("inf"),
    ]


def test_far_behind_the_part_that_types_were_settled_by(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n0.5\n" + "1.25\n" * 300_000 + f"{BIG}\n" + "1.25\n" * 1000)
    with pytest.raises(UnreadableFile, match=rf"row 300001 .*{BIG}"):
        read_all(CsvSource(path, block_bytes=1 << 16))


def test_empty_is_null_where_the_type_is_no_string(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('i,f,b,d,s\n1,1.5,true,2024-01-01,x\n,,,,\n2,2.5,false,2024-01-02,""\n')
    rows = read_all(CsvSource(path)).to_pylist()
    assert [rows[1][name] for name in "ifbd"] == [None] * 4
    assert (rows[1]["s"], rows[2]["s"]) == ("", "")
    rows = read_all(CsvSource(path, strings_can_be_null=True)).to_pylist()
    assert (rows[0]["s"], rows[1]["s"]) == ("x", None)
    path.write_text("s,n\nNA,1\n,2\n")
    rows = read_all(CsvSource(path, strings_can_be_null=True, null_values=[""])).to_pylist()
    assert [row["s"] for row in rows] == ["NA", None]


values_of = {
    "i": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x if abs(x) < 2.0**53 else 0.5),
    "s": st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1).filter(
        lambda s: not s.strip().isdigit()
    ),
    "b": st.booleans(),
}


@given(st.lists(st.fixed_dictionaries(values_of), min_size=1, max_size=8))
@settings(max_examples=few(24), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_pandas_and_json_write_is_read_as_it_was(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    types = {"i": int, "f": float, "s": str, "b": bool}
    assert read_all(CsvSource(tmp_path / "a.csv", column_types=types)).to_pylist() == rows
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    schema = pa.schema({"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_()})
    assert read_all(JsonSource(tmp_path / "a.json", schema=schema)).to_pylist() == rows
