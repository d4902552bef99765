"""The verbs on rows and on columns, and limit."""

from __future__ import annotations

import datetime as dt
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import StepError, UnknownColumn

from .data import numbers

DATA = {"a": [1, 2, 3], "b": ["x", "y", None], "c": [1.5, 2.5, 3.5]}


@pytest.fixture
def data() -> hr.Dataset:
    return hr.from_arrow(pa.table(DATA))


def ids(data: hr.Dataset) -> list[int]:
    return [row["id"] for row in data.take_all()]


# ---------------------------------------------------------------- rows


def test_map_sees_python_values() -> None:
    table = pa.table(
        {
            "int": [1],
            "text": ["x"],
            "none": pa.array([None], pa.string()),
            "when": pa.array([1_000_000], pa.timestamp("ns")),
            "list": [[1, 2]],
            "tensor": pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)),
        }
    )
    seen: list[dict[str, Any]] = []
    assert hr.from_arrow(table).map(lambda row: seen.append(row) or {"ok": 1}).take_all() == [{"ok": 1}]
    (row,) = seen
    assert isinstance(row["tensor"], np.ndarray) and row.pop("tensor").tolist() == [1.0, 2.0]
    when = dt.datetime(1970, 1, 1, 0, 0, 0, 1_000)
    assert row == {"int": 1, "text": "x", "none": None, "when": when, "list": [1, 2]}
    assert type(row["when"]) is dt.datetime


def test_map_takes_classes_and_arguments(data: hr.Dataset) -> None:
    class Add:
        def __init__(self, n: int) -> None:
            self.n = n

        def __call__(self, row: dict[str, Any], more: int = 0) -> dict[str, Any]:
            return {"a": row["a"] + self.n + more}

    out = data.map(Add, fn_constructor_args=[10], fn_kwargs={"more": 100})
    assert out.take_all() == [{"a": 111}, {"a": 112}, {"a": 113}]


def test_rows_may_lack_keys_and_become_wider() -> None:
    out = hr.range(4).map(lambda row: {"id": row["id"]} if row["id"] < 2 else {"id": row["id"], "big": True})
    assert out.take_all()[1:3] == [{"id": 1, "big": None}, {"id": 2, "big": True}]


def test_flat_map(engine: str) -> None:
    data = (
        numbers(300).flat_map(lambda row: [{"id": row["id"]}] * (row["id"] % 3)).with_options(engine=engine)
    )
    assert ids(data) == [i for i in range(300) for _ in range(i % 3)]


@pytest.mark.parametrize("wrap", [list, tuple, iter])
def test_flat_map_takes_any_iterable(wrap: Callable[[Any], Any]) -> None:
    assert ids(hr.range(3).flat_map(lambda row: wrap([row] * row["id"]))) == [1, 2, 2]


def test_filter_by_function_and_by_expression(engine: str) -> None:
    data = numbers(1000).with_options(engine=engine)
    assert ids(data.filter(lambda row: row["id"] % 100 == 7)) == list(range(7, 1000, 100))
    assert ids(data.filter(expr=(pc.field("id") >= 150) & (pc.field("id") < 250))) == list(range(150, 250))


def test_a_null_is_not_true(data: hr.Dataset) -> None:
    assert [row["b"] for row in data.filter(expr=pc.field("b") != "x").take_all()] == ["y"]
    assert data.filter(lambda row: None).count() == 0


@pytest.mark.parametrize(
    ("expression", "error", "words"),
    [
        (
            pc.field("aa") > 1,
            UnknownColumn,
            "asks for column 'aa', but the columns here are a, b, c. Did you mean 'a'",
        ),
        (
            pc.field("a") + 1,
            hr.errors.StepError,
            "gives int64; the expression of a filter must be true or false",
        ),
        (pc.field("b") > 1, hr.errors.StepError, "cannot be evaluated on these columns"),
    ],
    ids=["unknown", "number", "types"],
)
def test_expressions_that_do_not_fit(
    data: hr.Dataset, expression: pc.Expression, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        data.filter(expr=expression).take_all()


# ---------------------------------------------------------------- columns


MISNAMED: dict[str, Callable[[hr.Dataset], hr.Dataset]] = {
    "select_columns": lambda data: data.select_columns(["tipp"]),
    "drop_columns": lambda data: data.drop_columns(["tipp"]),
    "rename_columns": lambda data: data.rename_columns({"tipp": "more"}),
    "filter": lambda data: data.filter(expr="fare > 1 and tipp > 1"),
    "with_column": lambda data: data.with_column("more", hr.col("tipp").str.upper()),
    "map_batches": lambda data: data.map_batches(lambda batch: batch, columns=["tipp"]),
    "predict": lambda data: data.predict(lambda batch: batch["tipp"], inputs=["tipp"]),
    "accumulate": lambda data: data.accumulate(mean=hr.Mean("tipp")),
}


@pytest.mark.parametrize("verb", MISNAMED)
def test_a_column_that_no_file_has_is_refused_before_any_row_is_read(verb: str, tmp_path: Path) -> None:
    (tmp_path / "rides.csv").write_text("tip,fare\n1,2\n")
    data = MISNAMED[verb](hr.read_csv(tmp_path / "rides.csv"))
    words = "asks for column 'tipp', but the columns here are tip, fare. Did you mean 'tip'?"
    for ask in (data.schema, data.columns, data.explain, data.take_all, data.count):
        with pytest.raises(UnknownColumn, match=re.escape(words)):
            ask()
    assert str(data).endswith(words) and "columns are not known" in str(data)
    assert "Did you mean &#x27;tip&#x27;?" in data._repr_html_()


def test_an_unknown_column_is_an_error_of_the_verb_that_was_called(tmp_path: Path) -> None:
    data = hr.from_items([{"tip": 1, "fare": 2}])
    with pytest.raises(UnknownColumn, match=r"^unique\(tipp\) asks for column 'tipp'"):
        data.unique("tipp")
    with pytest.raises(UnknownColumn, match=r"^write_numpy\(tipp\) asks for column 'tipp'"):
        data.write_numpy(tmp_path, column="tipp")
    with pytest.raises(UnknownColumn, match=r"partition_by asks for column 'tipp'.* Did you mean 'tip'"):
        data.write_parquet(tmp_path, partition_by="tipp")


def test_an_expression_may_name_columns_of_a_file_without_rows(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    data = hr.read_json(tmp_path / "none.jsonl")
    assert data.filter(expr="x > 1").with_column("y", hr.col("x") + 1).take_all() == []


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        (lambda d: d.select_columns(["c", "a"]), ["c", "a"]),
        (lambda d: d.select_columns("b"), ["b"]),
        (lambda d: d.drop_columns("b"), ["a", "c"]),
        (lambda d: d.drop_columns(["a", "c"]), ["b"]),
        (lambda d: d.rename_columns({"a": "z"}), ["z", "b", "c"]),
        (lambda d: d.rename_columns({"a": "b", "b": "a"}), ["b", "a", "c"]),
        (lambda d: d.rename_columns(["x", "y", "z"]), ["x", "y", "z"]),
        (lambda d: d.drop_columns("a").select_columns("b"), ["b"]),
        (lambda d: d.select_columns(["a", "b"]).drop_columns("a").rename_columns({"b": "a"}), ["a"]),
        (lambda d: d.rename_columns({"a": "z"}).drop_columns("z").select_columns(["c"]), ["c"]),
        (lambda d: d.drop_columns("a").map_batches(lambda b: b).drop_columns("c"), ["b"]),
        (lambda d: d.drop_columns("a").filter(lambda r: True).drop_columns("b"), ["c"]),
        (lambda d: d.rename_columns({"a": "z"}).map_batches(lambda b: b, columns=["z"]), ["z"]),
        (lambda d: d.drop_columns("b").map_batches(lambda b: b, columns=["c"]), ["c"]),
    ],
)
def test_columns(data: hr.Dataset, verb: Callable[[hr.Dataset], hr.Dataset], names: list[str]) -> None:
    out = verb(data)
    assert out.columns() == names
    assert all(list(row) == names for row in out.take_all())
    assert out.count() == 3


def test_values_follow_their_names(data: hr.Dataset) -> None:
    swapped = data.rename_columns({"a": "c", "c": "a"}).select_columns(["a", "c"])
    assert swapped.to_arrow().to_pydict() == {"a": DATA["c"], "c": DATA["a"]}


def test_no_columns_at_all(data: hr.Dataset) -> None:
    assert data.drop_columns(["a", "b", "c"]).take_all() == [{}, {}, {}]


# ---------------------------------------------------------------- limit


@pytest.mark.parametrize("rows", [0, 1, 99, 100, 101, 550, 1000, 5000])
def test_limit_lets_the_first_rows_pass(rows: int) -> None:
    assert ids(numbers(1000).limit(rows)) == list(range(min(rows, 1000)))


def test_limit_counts_what_reaches_it(engine: str) -> None:
    odd = numbers(1000).filter(lambda row: row["id"] % 2 == 1).with_options(engine=engine)
    assert ids(odd.limit(130)) == list(range(1, 261, 2))
    assert ids(odd.limit(130).filter(lambda row: row["id"] > 255).limit(2)) == [257, 259]
    assert odd.limit(130).count() == 130


# ---------------------------------------------------------------- Datasets do not change


def test_a_verb_changes_nothing() -> None:
    data = hr.range(10)
    before = repr(data)
    for other in (
        data.map_batches(lambda batch: {"x": batch["id"]}),
        data.filter(lambda row: False),
        data.limit(1),
        data.rename_columns({"id": "x"}),
        data.with_options(workers=1),
    ):
        assert other is not data
    assert repr(data) == before == "Dataset(Range)"
    assert data.take_all() == [{"id": i} for i in range(10)]
    with pytest.raises(AttributeError):
        data.something = 1  # type: ignore[attr-defined]


def test_a_dataset_can_be_run_more_than_once() -> None:
    data = numbers(300).map_batches(lambda batch: {"id": batch["id"] + 1})
    assert data.take_all() == data.take_all()
    assert data.limit(1).take_all() == [{"id": 1}]
    assert data.count() == 300


def test_lists_given_to_a_verb_may_change_later() -> None:
    columns, arguments = ["id"], [5]
    data = hr.range(1).select_columns(columns).map(lambda row, add: {"x": row["id"] + add}, fn_args=arguments)
    columns.append("nonsense")
    arguments[0] = 7
    assert data.take_all() == [{"x": 5}]


def test_the_repr_shows_the_steps() -> None:
    def clean(batch: Any) -> Any:
        return batch

    shown = repr(hr.range(1).map_batches(clean).filter(expr=pc.field("id") > 1).limit(3))
    assert (
        shown.startswith("Dataset(Range) → map_batches(") and "clean) → filter((id > 1)) → limit(3)" in shown
    )


def test_an_expression_compares_big_integers_with_fractions() -> None:
    ids = pa.table({"id": [1, 2**24 + 1, 2**53]})
    for expression, kept in (
        ("id > 0.5", 3),
        ("id >= 16777216.5", 2),
        ("id == 16777217.0", 1),
        ("id > 5.0", 2),
    ):
        assert hr.from_arrow(ids).filter(expr=expression).count() == kept, expression
    with pytest.raises(StepError, match="divide by zero"):
        divided = pc.divide_checked(pc.field("id"), pc.field("none")) > 0
        hr.from_arrow(pa.table({"id": [1], "none": [0]})).filter(expr=divided).count()


@pytest.mark.parametrize(
    "expression", ["id > 0.5", "id + 0.5 > 1", "id / 2 > 0.5", "id > 9007199254740993.5", "x > id"]
)
def test_an_expression_that_would_round_integers_says_what_to_write_instead(expression: str) -> None:
    data = hr.from_arrow(pa.table({"id": [3, 2**53 + 1], "x": [0.5, 0.5]})).filter(expr=expression)
    with pytest.raises(StepError, match=r"beyond 2\*\*53.*whole numbers.*filter\(lambda row: …\)") as told:
        data.with_options(engine="inline").take_all()
    assert "9007199254740992" not in str(told.value) and "not in range" not in str(told.value)
    with pytest.warns(UserWarning, match=r"such as \"it mixes fractions with integers"):
        kept = data.with_options(engine="inline", on_error="reject").take_all()
    assert len(kept) == (0 if expression.endswith(("993.5", "> id")) else 1)


class NeedsRows:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"first": batch["id"][[0]]}


@pytest.mark.parametrize(
    "verb",
    [
        lambda data: data.map(lambda row: {"twice": row["id"] * 2}),
        lambda data: data.flat_map(lambda row: [row, row]),
        lambda data: data.filter(lambda row: row["id"] > 0),
        lambda data: data.map_batches(NeedsRows, concurrency=1),
        lambda data: data.predict(NeedsRows, inputs=["id"], output="p"),
        lambda data: data.union(data),
        lambda data: data.filter(expr="id > 0").union(data),
        lambda data: data.union(data.flat_map(lambda row: [row])).filter(lambda row: True),
        lambda data: data.zip(data.union(data.map(lambda row: row)).rename_columns({"id": "x"})).drop_columns(
            "x"
        ),
        lambda data: data.map(lambda row: row).limit(0),
        lambda data: data.map(lambda row: row).filter(lambda row: True),
    ],
    ids=[
        "map",
        "flat_map",
        "filter",
        "class",
        "predict",
        "union",
        "own steps",
        "guessed",
        "zip",
        "limit",
        "two",
    ],
)
def test_an_output_without_rows_has_a_file_with_columns(
    tmp_path: Path, verb: Callable[[hr.Dataset], hr.Dataset]
) -> None:
    """An output that is complete can be read: columns that cannot be tried are guessed, and that is said."""
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "in.parquet")
    data = hr.read_parquet(tmp_path / "in.parquet").with_options(engine="inline", progress=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert verb(data).write_parquet(tmp_path / "out").rows == 0
    guessed = [str(each.message) for each in said if "are guessed" in str(each.message)]
    assert all("`schema=`" in words for words in guessed)
    made = hr.read_parquet(tmp_path / "out")
    assert made.count() == 0 and made.schema().names == ["id"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert verb(data).write_parquet(tmp_path / "out").resumed
