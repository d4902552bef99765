"""Expressions of columns: ``hr.col``, ``filter(expr=…)`` and ``with_column``."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import ArgumentError, BadReturn, NotOffered, StepError, UnknownColumn

ROWS = [
    {"x": 1, "y": 4.0, "s": " ab"},
    {"x": None, "y": 2.0, "s": None},
    {"x": 3, "y": None, "s": "Bc"},
]
x, y, s = hr.col("x"), hr.col("y"), hr.col("s")


@pytest.fixture
def data() -> hr.Dataset:
    return hr.from_items(ROWS).with_options(engine="inline")


def values(data: hr.Dataset, expression: Any) -> list[Any]:
    return [row["z"] for row in data.with_column("z", expression).take_all()]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (x + 1, [2, None, 4]),
        (1 - x, [0, None, -2]),
        (x * y, [4.0, None, None]),
        (x / 2, [0.5, None, 1.5]),  # Python's division, where Arrow and Ray Data have 0 and 1
        (7 / x, [7.0, None, 7 / 3]),
        (x // 2, [0.0, None, 1.0]),
        (-x % 2, [1.0, None, 1.0]),
        (x**2, [1, None, 9]),
        (-x, [-1, None, -3]),
        (x == 1, [True, None, False]),
        ((x > 1) | (y > 3), [True, None, True]),
        ((x > 1) & (y > 3), [False, False, None]),
        (~(x > 1), [True, None, False]),
        (x.is_null(), [False, True, False]),
        (x.is_not_null(), [True, False, True]),
        (x.is_in([1, None]), [True, True, False]),
        (x.not_in([1]), [False, True, True]),
        (x.fill_null(0), [1, 0, 3]),
        (x.cast("float64"), [1.0, None, 3.0]),
        ((y / 3).round(1), [1.3, 0.7, None]),
        (y.sqrt(), [2.0, math.sqrt(2), None]),
        (hr.lit(5), [5, 5, 5]),
        (hr.lit(None), [None, None, None]),
        (hr.lit(dt.date(2026, 1, 2)), [dt.date(2026, 1, 2)] * 3),
        (s.str.upper(), [" AB", None, "BC"]),
        (s.str.strip().str.len(), [2, None, 2]),
        (s.str.contains("b"), [True, None, False]),
        (s.str.replace("b", "-"), [" a-", None, "Bc"]),
        (s.str.slice(0, 2), [" a", None, "Bc"]),
        (s.str.lpad(4, "*"), ["* ab", None, "**Bc"]),
        (s.str.split("b"), [[" a", ""], None, ["Bc"]]),
        (s.str.split("b").list.len(), [2, None, 1]),
        (s.str.split("b").list[0] + "!", [" a!", None, "Bc!"]),
        (s.str.extract(pattern="(?P<low>[a-z])").struct["low"], ["a", None, "c"]),
        (hr.lit(dt.date(2026, 1, 2)).dt.strftime("%Y-%m"), ["2026-01"] * 3),
        (pc.field("x") * 2, [2, None, 6]),
        ("x * 2 + y", [6.0, None, None]),
        ("x IS NULL OR s <> 'Bc'", [True, True, False]),
        ("x = 1 and s is  not NULL", [True, False, False]),
        ("s = 'it''s' OR y IN (2, 3)", [False, True, False]),
    ],
)
def test_what_an_expression_gives(data: hr.Dataset, expression: Any, expected: list[Any]) -> None:
    assert values(data, expression) == expected


def test_filter_takes_them(data: hr.Dataset) -> None:
    assert data.filter(expr=x > 1).take_all() == [ROWS[2]]
    assert data.filter(expr=~(x > 1)).take_all() == [ROWS[0]], "null is neither"
    with pytest.raises(StepError, match="true or false"):
        data.filter(expr=x + 1).take_all()


def test_a_column_keeps_its_place_when_it_is_replaced(data: hr.Dataset, tmp_path: Path) -> None:
    replaced = data.with_column("x", x.fill_null(9) * 2).with_column("new", x + 1)
    assert replaced.columns() == ["x", "y", "s", "new"] == list(replaced.take(1)[0])
    assert [row["new"] for row in replaced.take_all()] == [3, 19, 7]
    pq.write_table(pa.table({"a": [1], "b": [2], "c": [3]}), tmp_path / "in.parquet")
    read = hr.read_parquet(tmp_path / "in.parquet").with_column("b", hr.col("c") + 1)
    assert list(read.take(1)[0].items()) == [("a", 1), ("b", 4), ("c", 3)]
    assert read.select_columns(["b"]).take_all() == [{"b": 4}]
    assert read.drop_columns(["b"]).take_all() == [{"a": 1, "c": 3}]


def test_functions_see_one_dtype_in_each_batch() -> None:
    data = hr.from_items([{"x": i if i else None} for i in range(6)]).with_column("z", x + 1)
    seen = data.map_batches(lambda batch: {"t": [str(batch["z"].dtype)] * len(batch["z"])}, batch_size=3)
    assert {row["t"] for row in seen.take_all()} == {"float64"}


def test_rows_that_fail_are_rejected_or_null(tmp_path: Path) -> None:
    data = hr.from_items([{"s": text} for text in ("1", "x", "3")]).with_column("n", s.cast("int64"))
    quiet = data.with_options(engine="inline", progress=False)
    with pytest.raises(StepError, match=r"with_column\('n'\).*'x' as a scalar of type int64"):
        quiet.write_parquet(tmp_path / "raise")
    result = quiet.with_options(on_error="reject").write_parquet(tmp_path / "reject")
    assert (result.rows, result.rejected, result.ledger.steps) == (2, 1, ((3, 2),))
    nulled = quiet.with_options(on_error="null").write_parquet(tmp_path / "null")
    assert (nulled.rows, nulled.ledger.nulled) == (3, 1)
    assert pq.read_table(tmp_path / "null").column("n").to_pylist() == [1, None, 3]
    assert quiet.schema().field("n").type == pa.int64()


@pytest.mark.parametrize("expression", [hr.col("x") / 0 * 1, hr.col("x") + (2**63 - 1)])
def test_an_overflow_is_no_value(expression: Any, data: hr.Dataset) -> None:
    with pytest.raises(StepError, match=r"overflow|divide by zero"):
        values(data, expression)


ODD = pa.table(
    {
        "f": pa.array([-0.0, 0.0, None]),
        "u": pa.array([2**64 - 1, 1, None], pa.uint64()),
        "m": pa.array([Decimal("1.50"), Decimal("0.10"), None]),
        "day": pa.array([dt.date(2026, 1, 2), dt.date(2025, 1, 1), None]),
    }
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("f in (0, 1)", [0, 1]),
        ("f not in (0.0,)", [2]),
        (hr.col("f").is_in([-0.0, None]), [0, 1, 2]),
        ("u > 18446744073709551614", [0]),
        (hr.col("u") > hr.lit(1).cast("uint64"), [0]),
        ("m > 1.0", [0]),
        (hr.col("m") > Decimal(1), [0]),
        (hr.col("day") > hr.lit("2025-12-31").cast("date32"), [0]),
        ("u > 1", r"not in range.*hr\.lit\(1\)\.cast\('uint64'\)"),
        ("m > 1", "Precision .*`price > 1.0`"),
        ("day > '2025-12-31'", r"no kernel .*hr\.lit\('2026-01-31'\)"),
        ("u in (18446744073709551615,)", "cannot be used in an expression"),
        (f"u == {2**64}", "cannot be used in an expression"),
    ],
    ids=str,
)
def test_values_at_the_edge_of_their_types(condition: Any, rows: list[int] | str) -> None:
    data = hr.from_arrow(ODD.append_column("row", pa.array(range(3))))
    if isinstance(rows, str):
        with pytest.raises((StepError, ArgumentError), match=rows):
            data.filter(expr=condition).take_all()
    else:
        assert [row["row"] for row in data.filter(expr=condition).take_all()] == rows


def test_what_is_wrong_is_said(data: hr.Dataset) -> None:
    with pytest.raises(UnknownColumn, match="Did you mean 'x'"):
        values(data, hr.col("xx") + 1)
    with pytest.raises(StepError, match="with_column"):
        data.with_column("z", x.str.upper()).schema()
    with pytest.raises(ArgumentError, match=r"& \| ~"):
        data.filter(expr=x > 1 and y > 1)
    with pytest.raises(NotOffered, match="Did you mean 'is_null'"):
        x.isnull()  # type: ignore[attr-defined]
    with pytest.raises(NotOffered, match="Did you mean 'upper'"):
        s.str.uper()  # type: ignore[attr-defined]


def test_a_changed_expression_is_another_plan(tmp_path: Path) -> None:
    quiet = hr.range(4).with_options(engine="inline", progress=False)
    quiet.with_column("z", hr.col("id") * 2).write_parquet(tmp_path / "out")
    assert quiet.with_column("z", hr.col("id") * 2).write_parquet(tmp_path / "out").rows == 4
    with pytest.raises(hr.errors.PlanChanged, match="with_column"):
        quiet.with_column("z", hr.col("id") * 3).write_parquet(tmp_path / "out")


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_plus_joins_texts(text: pa.DataType) -> None:
    table = pa.table(
        {"a": pa.array(["x", None], text), "b": pa.array(["1", "2"]), "n": [1, 2], "none": pa.nulls(2)}
    )

    def joined(expression: Any) -> list[Any]:
        return hr.from_arrow(table).with_column("made", expression).to_arrow()["made"].to_pylist()

    assert joined(hr.col("a") + "-" + hr.col("b")) == ["x-1", None]
    assert joined("-" + hr.col("a")) == ["-x", None]
    assert joined(hr.col("a").str.upper() + hr.col("b")) == ["X1", None]
    assert joined(hr.col("n").cast(pa.string()) + hr.lit("!")) == ["1!", "2!"]
    assert joined(hr.col("n") + hr.col("n")) == [2, 4]
    assert joined(hr.col("a") + hr.col("b")) == ["x1", None]
    assert joined(hr.col("a") + hr.col("b") + hr.col("a") + "!") == ["x1x!", None]
    assert joined((hr.col("a") + hr.col("b")).fill_null("-")) == ["x1", "-"]
    assert joined((hr.col("a") + hr.col("b")).str.len() + hr.col("n")) == [3, None]
    assert joined(hr.col("b") + hr.col("none")) == [None, None]
    assert joined(hr.col("none") + hr.col("none")) == [None, None]
    assert joined("a + b") == ["x1", None]
    for condition in (
        hr.col("a") + hr.col("b") == "x1",
        "a + b == 'x1'",
        (hr.col("a") + hr.col("b")).is_in(["x1"]),
    ):
        assert hr.from_arrow(table).filter(expr=condition).select_columns(["n"]).take_all() == [{"n": 1}]
    with pytest.raises(StepError, match="texts only with texts"):
        joined(hr.col("a") + hr.col("n"))


@pytest.mark.parametrize("answer", ["no", b"", [0], (), {}, np.array([True, False])], ids=repr)
def test_a_filter_refuses_answers_that_are_neither_true_nor_false(answer: Any) -> None:
    with pytest.raises(BadReturn, match="a filter returns True or False"):
        hr.range(3).filter(lambda row: answer).take_all()


def test_a_filter_takes_what_is_true_or_false() -> None:
    for answer in (True, np.True_, 1, np.array(True)):
        assert hr.range(3).filter(lambda row, answer=answer: answer).count() == 3
    for answer in (False, np.False_, 0, None):
        assert hr.range(3).filter(lambda row, answer=answer: answer).count() == 0


def test_an_unknown_column_of_a_metric_is_told_with_the_verb_that_was_called() -> None:
    with pytest.raises(UnknownColumn, match=r"^evaluate\(e\) asks"):
        hr.range(3).evaluate(e=hr.Mean("x"))
    with pytest.raises(UnknownColumn, match=r"^mean\(x\) asks"):
        hr.range(3).mean("x")
