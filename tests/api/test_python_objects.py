"""Python objects go from step to step as they are; they are pickled between processes, and refused by files."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headrace as hr
from headrace.errors import ArgumentError, BadInput, BadReturn, NotPicklable

from .data import numbers


class Thing:
    """Equal by its number, as an image or a token is."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and other.number == self.number

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"Thing({self.number})"


def things(row: dict[str, Any]) -> dict[str, Any]:
    """Every third has none."""
    number = int(row["id"])
    return {"id": number, "thing": Thing(number) if number % 3 else None}


def mixed(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": batch["id"],
        "wave": batch["id"] * 1j,
        "thing": [Thing(int(i)) if i % 3 else None for i in batch["id"]],
        "any": [int(i) if i % 2 else str(i) for i in batch["id"]],
    }


def used(batch: dict[str, Any]) -> dict[str, Any]:
    assert len(batch["id"]) in (64, 250 % 64) and batch["thing"].dtype == object
    return {**batch, "number": [each and each.number for each in batch["thing"]]}


EXPECTED = [
    {"id": i, "wave": i * 1j, "thing": Thing(i) if i % 3 else None, "any": i if i % 2 else str(i)}
    for i in range(250)
]


def test_the_very_objects_come_to_each_step_and_to_the_reader() -> None:
    made: dict[int, Any] = {}

    def make(row: dict[str, Any]) -> dict[str, Any]:
        made[row["id"]] = {"lock": threading.Lock()}  # which cannot be pickled
        return {"id": row["id"], "x": made[row["id"]]["lock"] if row["id"] != 4 else None}

    def same(row: dict[str, Any]) -> bool:
        return row["id"] == 4 or row["x"] is made[row["id"]]["lock"]

    data = hr.range(100).map(make).filter(same).with_options(engine="inline", shard_rows=30)
    rows = (
        data.map_batches(lambda batch: dict(batch), batch_size=7).flat_map(lambda row: [row, row]).take_all()
    )
    assert [row["id"] for row in rows] == [i // 2 for i in range(200)]
    assert all(row["x"] is (made[row["id"]]["lock"] if row["id"] != 4 else None) for row in rows)
    found = data.predict(lambda batch: [repr(x) for x in batch["x"]], inputs="x", output="r").take(6)
    assert (
        found[5]["x"] is made[5]["lock"]
        and found[5]["r"] == repr(made[5]["lock"])
        and found[4]["r"] == "None"
    )
    assert data.select_columns("x").rename_columns({"x": "y"}).limit(2).take_all() == [
        {"y": made[0]["lock"]},
        {"y": made[1]["lock"]},
    ]
    kept = data.materialize()
    made.clear()
    assert [type(row["x"]).__name__ for row in kept.take(5)] == ["lock"] * 4 + ["NoneType"]


def test_objects_between_processes_are_pickled_and_named_once() -> None:
    data = (
        numbers(250, 50)
        .with_options(engine="local")
        .map_batches(mixed, batch_size=20, num_cpus=1)
        .map_batches(used, batch_size=64)
    )
    staged = data.predict(lambda batch: batch["any"], inputs="any", output="same", num_cpus=0.5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = staged.take_all()
    expected = [{**row, "number": i if i % 3 else None, "same": row["any"]} for i, row in enumerate(EXPECTED)]
    assert rows == expected
    assert all(type(row["same"]) is type(row["any"]) for row in rows)
    told = [str(each.message) for each in caught if "pickled" in str(each.message)]
    assert len(told) == 4 and all(each.filename == __file__ for each in caught)
    assert sum("'thing' holds Python objects" in each and "Thing)" in each for each in told) == 1
    assert sum("'wave' holds Python objects (complex)" in each for each in told) == 1


def test_what_cannot_be_pickled_is_refused_at_the_border_and_named() -> None:
    data = numbers(200).with_options(engine="local").map(lambda row: {"x": threading.Lock()})
    with pytest.raises(
        NotPicklable, match=r"Column 'x' holds Python objects \(_thread.lock\) that cannot be"
    ):
        data.take_all()
    assert len(data.with_options(engine="inline").take_all()) == 200
    assert data.count() == 200


def test_every_form_in_which_objects_are_handed_out() -> None:
    data = hr.range(6).map_batches(mixed).with_options(engine="inline")
    batch = data.take_batch(6)
    assert batch["wave"].dtype == batch["thing"].dtype == object and batch["thing"].tolist()[:2] == [
        None,
        Thing(1),
    ]
    frame = data.to_pandas()
    assert frame["thing"].tolist()[1:4] == [Thing(1), Thing(2), None] and frame["wave"][2] == 2j
    through = data.map_batches(lambda frame: frame.iloc[::-1], batch_format="pandas")
    assert [(row["thing"], row["any"]) for row in through.take_all()[1:3]] == [(Thing(4), "4"), (None, 3)]
    (tensors,) = data.select_columns("thing").iter_batches(batch_format="pandas")
    assert isinstance(tensors, pd.DataFrame) and tensors["thing"][2] == Thing(2)
    for refused in (data.to_arrow, data.to_polars):
        with pytest.raises(ArgumentError, match=r"Column 'wave' holds Python objects \(complex\)"):
            refused()
    with pytest.raises(BadInput, match="Column 'wave' holds Python objects"):
        data.map_batches(lambda table: table, batch_format="pyarrow").take_all()
    chosen = data.map_batches(lambda table: table, batch_format="pyarrow", columns=["id"])
    assert chosen.take(1) == [{"id": 0}]


@pytest.mark.parametrize("write", ["write_parquet", "write_csv", "write_json"])
def test_files_refuse_objects_and_say_what_to_do(write: str, tmp_path: Path) -> None:
    data = hr.range(20).map(things).with_options(engine="inline", progress=False)
    with pytest.raises(BadReturn) as caught:
        getattr(data, write)(tmp_path / "out")
    message = str(caught.value)
    assert message.startswith("map(things) gave column 'thing' of Python objects (") and "Thing)" in message
    assert "drop_columns(['thing'])" in message and "row 1: id=1, thing=Thing(1)" in message
    assert getattr(data.drop_columns(["thing"]), write)(tmp_path / "out").rows == 20


def test_objects_that_fit_after_all_are_written(tmp_path: Path) -> None:
    data = numbers(200).map_batches(mixed).filter(lambda row: row["id"] % 2 == 1).select_columns(["any"])
    data.with_options(engine="inline", progress=False).write_json(tmp_path / "out")
    lines = [
        line for part in sorted((tmp_path / "out").glob("*.json*")) for line in part.read_text().splitlines()
    ]
    assert [json.loads(line) for line in lines] == [{"any": i} for i in range(1, 200, 2)]


def test_rows_with_objects_that_fail_are_rejected_one_by_one(tmp_path: Path) -> None:
    items = [{"id": i, "thing": Thing(i) if i != 7 else None} for i in range(12)]

    def number(row: dict[str, Any]) -> dict[str, Any]:
        return {"number": row["thing"].number // (row["id"] != 3)}

    data = hr.from_items(items).with_options(on_error="reject", engine="inline", progress=False)

    def numbers_of(batch: dict[str, Any]) -> dict[str, Any]:
        pairs = zip(batch["id"], batch["thing"], strict=True)
        return {"number": [thing.number // (i != 3) for i, thing in pairs]}

    for made in (data.map(number), data.map_batches(numbers_of)):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        result = made.write_parquet(out, mode="overwrite")
        assert (result.rows, result.rejected) == (10, 2)
        rejected = hr.read_rejected(out).take_all()
        assert [(row["id"], row["thing"], row["_row"]) for row in rejected] == [
            (3, "Thing(3)", 3),
            (7, None, 7),
        ]


def test_objects_in_memory_are_a_source_and_make_the_run_known(tmp_path: Path) -> None:
    def written(last: int) -> Any:
        items = [{"id": i, "thing": Thing(i)} for i in range(9)] + [{"id": last, "thing": Thing(last)}]
        data = hr.from_items(items).map(lambda row: {"n": row["thing"].number})
        return data.with_options(engine="local", progress=False).write_parquet(tmp_path / "out")

    with pytest.warns(UserWarning, match="Column 'thing' holds Python objects"):
        first = written(9)
    again = written(9)
    assert (first.rows, again.run, again.resumed) == (10, first.run, True)
    with pytest.raises(hr.errors.PlanChanged):
        written(10)
    frame = pd.DataFrame({"x": [1, "a", None, 2.5]})
    assert hr.from_pandas(frame).to_pandas()["x"].tolist() == [1, "a", None, 2.5]
    assert hr.from_numpy(np.arange(3) * 1j).take_all() == [{"data": 0j}, {"data": 1j}, {"data": 2j}]


def test_later_batches_are_widened_for_the_reader() -> None:
    def changing(batch: dict[str, Any]) -> dict[str, Any]:
        first = batch["id"][0]
        if first < 100:
            return {"x": batch["id"]}
        return {"x": batch["id"] + 0.5} if first < 200 else {"x": batch["id"].astype(str), "y": batch["id"]}

    data = numbers(300).map_batches(changing).with_options(engine="inline")
    expected = [i if i < 100 else i + 0.5 if i < 200 else str(i) for i in range(300)]
    rows = data.take_all()
    assert [row["x"] for row in rows] == expected and [row["y"] for row in rows] == [None] * 200 + [
        *range(200, 300)
    ]
    assert data.to_pandas()["x"].tolist() == expected and data.limit(200).to_pandas()["x"].dtype == np.float64
    assert [batch["x"].tolist() for batch in data.iter_batches(batch_size=150)] == [
        expected[:150],
        expected[150:],
    ]
    sizes: list[int] = []

    def after(batch: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(batch["x"]))
        return {"text": [str(x) for x in batch["x"]]}

    texts = [row["text"] for row in data.limit(200).map_batches(after, batch_size=80).take_all()]
    assert sizes == [80, 20, 80, 20] or sizes == [80, 80, 40]
    assert [float(text) for text in texts] == expected[:200]


def test_complex_numbers_of_pandas() -> None:
    frame = pd.DataFrame({"id": [1, 2], "wave": [1j, 2 - 1j]})
    ids = hr.from_items([{"id": 1}, {"id": 2}]).with_options(engine="inline")
    made = ids.map_batches(lambda batch: batch.assign(wave=frame["wave"]), batch_format="pandas")
    for data in (hr.from_pandas(frame), made):
        assert data.take_all() == frame.to_dict("records")
