"""Verbs that look at a dataset: they run in this process or bring everything here."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.core.tables import card, rows_table
from headrace.core.terminal import visible, width
from headrace.errors import ArgumentError

from .data import numbers


@pytest.fixture
def counted(tmp_path: Path) -> hr.Dataset:
    """A dataset of ten shards that notes which rows were touched, and by whom."""

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        with open(tmp_path / "touched", "a") as file:
            file.write(f"{batch['id'][0]} {os.getpid()}\n")
        return {"id": batch["id"], "half": batch["id"] / 2}

    return numbers(1000).map_batches(note).with_options(engine="local")


def touched(folder: Path) -> list[str]:
    return (folder / "touched").read_text().splitlines()


def test_take_runs_here_and_stops_early(counted: hr.Dataset, tmp_path: Path) -> None:
    assert counted.take(3) == [{"id": i, "half": i / 2} for i in range(3)]
    assert touched(tmp_path) == [f"0 {os.getpid()}"]
    assert len(counted.take(150)) == 150
    assert touched(tmp_path)[1:] == [f"0 {os.getpid()}", f"100 {os.getpid()}"]
    assert len(counted.take()) == 20


def test_take_reads_on_past_what_is_filtered() -> None:
    assert numbers(1000).filter(lambda row: row["id"] >= 730).take(2) == [{"id": 730}, {"id": 731}]


def test_take_zero_and_take_too_many() -> None:
    assert hr.range(3).take(0) == []
    assert len(hr.range(3).take(100)) == 3


def test_show_prints_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    rows = [
        {
            "id": 1,
            "city": "東京 \x1b[2J<b>",
            "x": 0.5,
            "raw": b"a" * 99,
            "image": np.zeros((28, 28), np.uint8),
        },
        {"id": 22, "city": None, "x": None, "raw": b"", "image": np.ones((28, 28), np.uint8)},
    ]
    hr.from_items(rows).show()
    assert capsys.readouterr().out.splitlines() == [
        "   id  city                 x  raw            image",
        "int64  string         float64  binary         uint8 (28, 28)",
        "-----  -------------  -------  -------------  --------------",
        "    1  東京 \\x1b[2J…      0.5  99 bytes: b'…  (28, 28) [0, …",
        "   22  null              null  b''            (28, 28) [1, …",
    ]


def test_many_columns_are_shown_from_both_ends_and_of_one_row_downwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wide = hr.from_items([{f"c{i}": i for i in range(204)}] * 3)
    wide.show(3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7 and max(map(len, lines)) <= 80
    assert lines[0].split()[0] == "c0" and lines[0].split()[-1] == "c203"
    assert lines[-1].startswith(f"{204 - len(lines[0].split()) + 1} columns not shown: c")
    wide.show(1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3:2]] == [["column", "type", "value"], ["c0", "int64", "0"]]
    assert lines[-2].split() == ["c203", "int64", "203"] and lines[-1].startswith(
        "154 columns not shown: c25,"
    )


@settings(max_examples=few(10))
@given(
    st.lists(
        st.dictionaries(st.text(), st.one_of(st.none(), st.text(), st.binary(), st.floats())), max_size=4
    ),
    st.integers(20, 200),
)
def test_any_rows_fit_the_terminal_and_no_value_acts(rows: list[dict[str, Any]], columns: int) -> None:
    schema = pa.schema([(name, pa.string()) for name in dict.fromkeys(name for row in rows for name in row)])
    table = rows_table(rows, [schema])
    for line in table.text(columns).splitlines()[: len(rows) + 3]:
        assert line == visible(line) and width(line) <= columns
    assert "<" not in re.sub(r"</?(div|table|thead|tbody|tr|th|td)\b[^<>]*>", "", card("", (), table))


@pytest.mark.parametrize(
    ("batch_format", "kind"), [("numpy", dict), ("pandas", pd.DataFrame), ("pyarrow", pa.Table)]
)
def test_take_batch(batch_format: Any, kind: type) -> None:
    batch = numbers(1000).take_batch(130, batch_format=batch_format)
    assert type(batch) is kind
    values = batch["id"].to_numpy() if kind is not dict else batch["id"]
    assert values.tolist() == list(range(130))


def test_take_batch_of_no_rows_has_columns() -> None:
    (name, values), *others = hr.range(3).take_batch(0).items()
    assert (name, values.dtype, len(values), others) == ("id", np.int64, 0, [])
    with pytest.raises(ValueError, match="the dataset is empty"):  # as in Ray Data
        hr.range(3).limit(0).take_batch()


def test_collecting_everything_in_order(counted: hr.Dataset) -> None:
    wanted = {"id": list(range(1000)), "half": [i / 2 for i in range(1000)]}
    assert counted.to_arrow().to_pydict() == wanted
    frame = counted.with_options(engine="inline").to_pandas()
    assert frame.to_dict("list") == wanted and isinstance(frame, pd.DataFrame)
    rows = counted.with_options(engine="inline").take_all()
    assert rows == [{"id": i, "half": i / 2} for i in range(1000)]
    assert list(numbers(1000).iter_rows()) == [{"id": i} for i in range(1000)]


@pytest.mark.parametrize("verb", ["take_all", "to_pandas"])
def test_a_limit_refuses_more_rows_without_reading_them_all(tmp_path: Path, verb: str) -> None:
    def note(batch: dict[str, Any]) -> dict[str, Any]:
        with open(tmp_path / "touched", "a") as file:
            file.write("x\n")
        return batch

    data = numbers(1000).map_batches(note)
    with pytest.raises(ArgumentError, match=rf"{verb}\(limit=150\): the dataset has more rows. take\(150\)"):
        getattr(data, verb)(limit=150)
    assert len(touched(tmp_path)) <= 3
    assert len(getattr(data, verb)(limit=1000)) == 1000


# ---------------------------------------------------------------- count, schema, explain


def test_count_reads_only_what_it_must(counted: hr.Dataset, tmp_path: Path) -> None:
    assert numbers(1000).map(lambda row: 1 / 0).count() == 1000
    assert numbers(1000).limit(7).rename_columns({"id": "x"}).count() == 7
    assert not (tmp_path / "touched").exists()
    assert counted.filter(lambda row: row["id"] < 555).count() == 555
    assert len(touched(tmp_path)) == 10


def test_schema(counted: hr.Dataset, tmp_path: Path) -> None:
    assert numbers(5).rename_columns({"id": "x"}).filter(lambda row: 1 / 0).schema() == pa.schema(
        {"x": pa.int64()}
    )
    assert counted.schema() == pa.schema({"id": pa.int64(), "half": pa.float64()})
    assert counted.columns() == ["id", "half"]
    assert {line.split()[0] for line in touched(tmp_path)} == {"0"}


def test_schema_of_no_rows() -> None:
    def double(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["id"] * 2.0}

    wanted = pa.schema({"x": pa.float64()})
    for empty in (hr.range(0).map_batches(double), hr.range(9).filter(lambda row: False).map_batches(double)):
        assert empty.schema() == wanted
        assert empty.to_arrow().schema == wanted and len(empty.to_pandas()) == 0
        assert empty.take_all() == [] and empty.count() == 0


@pytest.mark.local
def test_explain_says_what_would_run() -> None:
    class Model:
        def __call__(self, batch: Any) -> Any:
            return batch

    data = hr.from_arrow(pa.table({"a": [1], "b": [2], "c": [3]}))
    told = (
        data.drop_columns("c")
        .map_batches(Model, columns=["a"], batch_size=512, batch_format="pandas", concurrency=2)
        .filter(lambda row: True)
        .explain()
    )
    for words in (
        "reads 1 of 3: a",
        "Model",
        "one object per worker",
        "batches of 512 rows",
        "as pandas",
        "filter(",
    ):
        assert words in told
    assert "inline: 1 worker " in told
    local = data.map_batches(Model, concurrency=2).with_options(engine="local").explain()
    assert "local: 2 workers" in local and "reads 3 of 3" in local


class Asks:
    async def __call__(self, batch: Any) -> Any:
        return batch


class Submits:
    def load(self) -> None: ...
    def predict(self, batch: Any) -> Any: ...
    def submit(self, batch: Any) -> Any: ...
    def collect(self, handle: Any) -> Any: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("model", "most", "words"),
    [
        (Asks, None, ", async with up to 16 batches in flight per worker"),
        (Asks(), 40, ", async with up to 40 batches in flight per worker"),
        (Asks, 1, ", async with 1 batch in flight per worker"),
        (len, 8, ", up to 8 batches in flight per worker in threads"),
        (len, 1, ""),
        (len, None, ""),
    ],
)
def test_explain_says_what_waits(model: Any, most: int | None, words: str) -> None:
    data = hr.from_arrow(pa.table({"a": [1]}))
    for step in (
        data.map_batches(model, max_in_flight=most),
        data.predict(model, inputs=["a"], max_in_flight=most),
    ):
        (line,) = [line for line in step.explain().splitlines() if "batches from 128" in line]
        assert line.partition(" as numpy")[2].partition(";")[0] == words


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (None, ", it decides how many batches are in flight; "),
        (3, ", up to 3 batches in flight per worker; "),
    ],
)
@pytest.mark.parametrize("model", [Submits, Submits()])
def test_explain_says_what_computes_by_itself(model: Any, most: int | None, words: str) -> None:
    data = hr.from_arrow(pa.table({"a": [1]}))
    assert words in data.predict(model, inputs=["a"], max_in_flight=most).explain()


def test_explain_says_it_of_each_model() -> None:
    models = {"here": len, "there": {"model": Asks, "max_in_flight": 4}}
    told = hr.from_arrow(pa.table({"a": [1]})).predict(models, inputs=["a"]).explain()
    here, there = [line for line in told.splitlines() if "batches from 128" in line]
    assert "flight" not in here and "async with up to 4 batches in flight per worker" in there
