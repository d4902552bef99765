"""Functions that misbehave: each is a row of data, each error one paragraph that says what, where, and what to do."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import forked
import headrace as hr
from headrace.errors import BadReturn, HeadraceError, OutputSchemaChanged, StepError, UnknownColumn

from .data import numbers


def raises(batch: Any) -> Any:
    raise ValueError("no such thing")


def raises_nothing_to_say(batch: Any) -> Any:
    raise NotImplementedError


def nothing(batch: Any) -> Any:
    batch["id"].sum()


def writes(batch: Any) -> Any:
    batch["id"][0] = 7
    return batch


def adds(batch: Any) -> Any:
    batch["id"] += 1
    return batch


def too_few_parameters() -> Any:
    return {}


def other_columns(batch: Any) -> Any:
    return {"score": batch["id"]} if batch["id"][0] < 500 else {"scores": batch["id"]}


def fewer_columns(batch: Any) -> Any:
    return {"a": batch["id"], "b": batch["id"]} if batch["id"][0] < 500 else {"a": batch["id"]}


def other_type(batch: Any) -> Any:
    return {"x": batch["id"]} if batch["id"][0] < 500 else {"x": [str(i) for i in batch["id"]]}


def fractions_later(batch: Any) -> Any:
    return {"x": batch["id"]} if batch["id"][0] < 500 else {"x": batch["id"] + 0.5}


def wider(batch: Any) -> Any:
    return {"x": np.zeros((len(batch["id"]), 3 if batch["id"][0] < 500 else 4))}


BATCHES: list[tuple[Callable[..., Any], type[HeadraceError], str]] = [
    (
        raises,
        StepError,
        r"map_batches\(raises\) raised ValueError: no such thing\. It was .* row 0: id=0\.$",
    ),
    (lambda batch: sys.exit(3), StepError, r"raised SystemExit: 3\. It was working on"),
    (raises_nothing_to_say, StepError, r"raised NotImplementedError\. It was working on"),
    (
        nothing,
        BadReturn,
        r"returned None \(is a `return` missing\?\)\. It was working on range, rows 0 to 99\.$",
    ),
    (lambda batch: 3, BadReturn, "returned an int; a batch is a dict of columns"),
    (lambda batch: "ok", BadReturn, "returned a str; a batch is"),
    (lambda batch: batch["id"], BadReturn, "an ndarray; .* Name the column"),
    (lambda batch: pd.Series(batch["id"]), BadReturn, "a Series; .* Name the column"),
    (lambda batch: [batch], BadReturn, "returned a list; a batch is"),
    (
        lambda batch: {"x": 1.5},
        BadReturn,
        "column 'x': a column is an array or a list with one value per row, not a float",
    ),
    (lambda batch: {"x": batch["id"].mean()}, BadReturn, "column 'x': .* not a float64"),
    (
        lambda batch: {"x": batch["id"], "y": batch["id"][:-1]},
        BadReturn,
        r"different lengths \(x: 100, y: 99\)",
    ),
    (lambda batch: {1: batch["id"]}, BadReturn, "column names are strings, but one is 1"),
    (lambda batch: (_ for _ in [None]), BadReturn, "returned None"),
    (
        writes,
        StepError,
        r"read-only\. Batches are read-only views of the input: copy an array before writing",
    ),
    (adds, StepError, r"copy an array before writing to it \(`x = x.copy\(\)`\)"),
    (
        lambda batch: batch["idd"],
        StepError,
        r"raised KeyError: 'idd'\. The columns that it gets are id\. Did you mean 'id'\?",
    ),
    (lambda batch: {1: 2}[3], StepError, r"raised KeyError: 3\. It was working"),
    (too_few_parameters, StepError, "takes 0 positional arguments but 1 was given"),
]


@pytest.mark.parametrize(("function", "error", "words"), BATCHES)
def test_a_function_of_batches(function: Any, error: type[HeadraceError], words: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        numbers(1000).map_batches(function).take_all()
    assert type(caught.value) is error
    message = str(caught.value)
    assert re.search(words, message), message
    assert "\n" not in message and message.startswith("map_batches(") and message.endswith(".")
    assert "map_batches(" in message and "headrace" not in message.lower()


FILES: list[tuple[Callable[..., Any], type[HeadraceError], str]] = [
    (
        lambda batch: {"x": [np.zeros(2), np.zeros((3, 2))] * 50},
        BadReturn,
        r"column 'x' of Python objects \(numpy.ndarray\).*different numbers of axes",
    ),
    (
        lambda batch: {"id": batch["id"], "x": [1, "a"] * 50},
        BadReturn,
        r"\(int and str\).*it mixes integers and strings\)\. It was working on range, row 0: id=0, x=1\. "
        r"Make .* step before the write \(`str\(row\['x'\]\)`\), or .*drop_columns\(\['x'\]\)\.$",
    ),
    (lambda batch: {"x": batch["id"] * 1j}, BadReturn, r"\(complex\), which files cannot hold"),
    (
        other_columns,
        OutputSchemaChanged,
        r"changed its columns midway.*score is missing and scores is new\. Did you mean",
    ),
    (fewer_columns, OutputSchemaChanged, "settled with a, b; now b is missing"),
    (
        other_type,
        OutputSchemaChanged,
        "changed the type of column 'x' midway.* int64, and a later batch has string",
    ),
    (fractions_later, OutputSchemaChanged, "int64, and a later batch has double that does not fit"),
    (wider, OutputSchemaChanged, "changed the type of column 'x' midway"),
]


@pytest.mark.parametrize(("function", "error", "words"), FILES)
def test_what_a_function_gives_that_files_cannot_hold(
    function: Any, error: type[HeadraceError], words: str, tmp_path: Path
) -> None:
    data = numbers(1000).map_batches(function).with_options(engine="inline", progress=False)
    with pytest.raises(HeadraceError) as caught:
        data.write_parquet(tmp_path / "out")
    assert type(caught.value) is error
    message = str(caught.value)
    assert re.search(words, message), message
    assert "\n" not in message and message.startswith("map_batches(") and message.endswith(".")
    assert list((tmp_path / "out").glob("*.parquet")) == [] or "midway" in message
    assert len(data.take_all()) == 1000


ROWS: list[tuple[str, Callable[..., Any], type[HeadraceError], str]] = [
    (
        "map",
        lambda row: {"x": 1 / (row["id"] - 7)},
        StepError,
        r"ZeroDivisionError: .*It was working on range, row 7: id=7\.$",
    ),
    (
        "map",
        lambda row: None,
        BadReturn,
        r"not a row: a row is a dict, but it returned None .*range, row 0: id=0\.$",
    ),
    ("map", lambda row: [row], BadReturn, "it returned a list"),
    ("map", lambda row: row["ID"], StepError, "KeyError: 'ID'"),
    ("flat_map", lambda row: row, BadReturn, "flat_map takes a list of rows, but it returned a dict"),
    ("flat_map", lambda row: 3, BadReturn, "it returned an int"),
    ("flat_map", lambda row: None, BadReturn, "it returned None"),
    ("flat_map", lambda row: [None], BadReturn, "a row is a dict, but it returned None"),
    (
        "flat_map",
        lambda row: [row, {"id": 1 // (row["id"] - 99)}],
        StepError,
        r"It was working on range, row 99: id=99\.$",
    ),
    ("filter", lambda row: row["id"] < 120 or 1 / 0, StepError, r"range, row 120: id=120\.$"),
]


@pytest.mark.parametrize(("verb", "function", "error", "words"), ROWS)
def test_a_function_of_rows(verb: str, function: Any, error: type[HeadraceError], words: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        getattr(numbers(1000), verb)(function).take_all()
    assert type(caught.value) is error
    assert re.search(words, str(caught.value)), str(caught.value)


def sign(batch: Any) -> Any:
    return 1 if batch["id"] > 0 else 0


def sign_column(batch: Any) -> Any:
    return {"sign": [1 if batch["id"] > 0 else 0]}


def lower(batch: Any) -> Any:
    return {"x": [batch["text"].lower()]}


def lookup(batch: Any) -> Any:
    return {"x": [{0: "a"}[batch["id"]]]}


def as_json(batch: Any) -> Any:
    return json.loads(batch["text"])


def one_number(batch: Any) -> Any:
    return {"x": [math.sqrt(batch["id"])]}


@pytest.mark.parametrize("verb", ["map_batches", "predict"])
@pytest.mark.parametrize("batch_format", ["numpy", "pandas"])
@pytest.mark.parametrize("function", [sign, sign_column, lower, lookup, as_json, one_number])
def test_a_function_of_one_row_is_told_that_it_gets_many(verb: str, batch_format: str, function: Any) -> None:
    data = hr.from_items([{"id": n, "text": "{}"} for n in range(300)])
    with pytest.raises(StepError) as caught:
        getattr(data, verb)(function, batch_size=128, batch_format=batch_format).take_all()
    message, cause = str(caught.value), str(caught.value.__cause__)
    assert type(caught.value) is StepError, message
    assert "gets whole columns, the values of many rows" in message and "use map" in message
    assert message.endswith("It was working on from_items, rows 0 to 127.")
    kind, _, said = cause.rpartition("\n")[2].partition(": ")
    assert f"raised {kind}: {said[:20]}" in message and f"in {function.__name__}" in cause


def test_the_first_error_is_reported_although_rows_by_themselves_fail_otherwise() -> None:
    def fails(batch: Any) -> Any:
        if len(batch["id"]) > 1:
            raise RuntimeError("the true one")
        raise KeyError("of a single row")

    with pytest.raises(StepError, match=r"RuntimeError: the true one\. .*rows 0 to 99\.$") as caught:
        numbers(1000).map_batches(fails).take_all()
    assert "the true one" in str(caught.value.__cause__) and "of a single" not in str(caught.value.__cause__)


def test_narrowing_follows_the_error_that_it_looks_for() -> None:
    def stages(batch: Any) -> Any:
        if (batch["id"] == 90).any():
            raise ValueError("the first stage")
        if (batch["id"] == 5).any():
            raise KeyError("the second stage")
        return batch

    with pytest.raises(StepError, match=r"the first stage\. .* row 90: id=90\.$"):
        numbers(1000).map_batches(stages).take_all()


def test_columns_that_only_running_can_miss() -> None:
    made = numbers(10).map_batches(lambda batch: {"fare": batch["id"]})
    for data in (
        made.select_columns("fair"),
        made.drop_columns("fair"),
        made.rename_columns({"fair": "x"}),
        made.map_batches(lambda batch: batch, columns=["fair"]),
    ):
        with pytest.raises(UnknownColumn, match=r"column 'fair'.* are fare\. Did you mean 'fare'\?"):
            data.take_all()


def test_the_cause_is_the_users_own_traceback(engine: str) -> None:
    with pytest.raises(StepError) as caught:
        numbers(1000).map_batches(raises).with_options(engine=engine).take_all()
    cause = str(caught.value.__cause__)
    assert "in raises" in cause and 'raise ValueError("no such thing")' in cause
    assert cause.count("File ") == 1 and cause.endswith("ValueError: no such thing")


MISTAKES = [
    "ds.map_batches(fails).take_all()",
    "list(ds.map_batches(fails).iter_batches())",
    "next(ds.map_batches(fails).iter_rows())",
    "ds.map_batches()",
    "ds.map_batches(fails, None, 3)",
    "ds.map_batches(fails, batchsize=3)",
    "ds.with_options(worker=3)",
    "ds.sort('idd')",
    "ds.predict('nowhere.onnx').take(1)",
    "hr.read_sql('select')",
    "hr.nothing_like_it",
    "hr.load_model('nowhere')",
    "hr.from_items([{1: 2}])",
    "hr.BatchPredictor",
    "hr.TorchPredictor.from_checkpoint(3)",
    "hr.read_parquet('nowhere/*.parquet').count()",
]


@pytest.mark.annex
def test_no_line_of_ours_stands_in_a_traceback(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import traceback\nimport headrace as hr\nds = hr.range(300)\n"
        "def fails(batch):\n    return batch['nothing']\n"
        f"for line in {MISTAKES!r}:\n"
        "    try:\n        exec(line)\n"
        "    except BaseException:\n        print('>>>', line)\n        traceback.print_exc(file=sys.stdout)\n"
    )
    script.write_text("import sys\n" + script.read_text())
    done = forked.run([sys.executable, script], workers=True)
    assert done.stderr == "" and done.stdout.count(">>>") == len(MISTAKES)
    for shown in done.stdout.split(">>> ")[1:]:
        assert "headrace/" not in shown and "noqa" not in shown and "# type" not in shown, shown
        assert "headrace.errors." in shown.splitlines()[-1], shown


def test_a_constructor_that_raises(engine: str) -> None:
    class Model:
        def __init__(self, path: str) -> None:
            raise FileNotFoundError(f"no model at {path}")

        def __call__(self, batch: Any) -> Any:
            return batch

    data = numbers(1000).map_batches(Model, fn_constructor_args=["m.pt"]).with_options(engine=engine)
    with pytest.raises(
        StepError, match=r"Model could not be constructed .* FileNotFoundError: no model at m.pt"
    ):
        data.count()


def test_a_constructor_that_raises_what_passes_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.worker.user_code.FIRST_RETRY_SECONDS", 0.0)
    tries = tmp_path / "tries"

    class Model:
        def __init__(self) -> None:
            with tries.open("a") as file:
                file.write("x")
            if len(tries.read_text()) % 3:
                raise ConnectionError("the store is busy")

        def __call__(self, batch: Any) -> Any:
            return batch

    data = numbers(10).map_batches(Model).with_options(engine="inline", retry_on=ConnectionError)
    assert data.to_arrow().num_rows == 10 and len(tries.read_text()) == 3
    with pytest.raises(StepError, match=r"Model could not be constructed .* the store is busy"):
        data.with_options(max_retries=1).to_arrow()
    assert len(tries.read_text()) == 5


def test_an_error_leaves_what_was_done_and_a_corrected_run_goes_on(tmp_path: Path) -> None:
    def divide(batch: Any, by: int) -> Any:
        return {"id": batch["id"], "x": 1 / by if batch["id"][0] >= 500 else batch["id"] * 1.0}

    data = numbers(1000)
    with pytest.raises(StepError, match="ZeroDivisionError"):
        data.map_batches(lambda batch: divide(batch, 0)).write_parquet(tmp_path / "out")
    assert not (tmp_path / "out" / "_SUCCESS").exists()

    def corrected(batch: Any) -> Any:
        return {"id": batch["id"], "x": batch["id"] * 1.0}

    result = data.map_batches(corrected).write_parquet(tmp_path / "out", on_change="continue")
    assert result.rows == 1000 and result.resumed
    assert hr.read_parquet(tmp_path / "out").to_pandas()["id"].tolist() == list(range(1000))
