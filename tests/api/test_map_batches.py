"""map_batches: what the function gets, and what it may give back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ArgumentError

from .data import numbers

ROWS = [{"id": i, "word": f"w{i}", "half": i / 2} for i in range(10)]


@pytest.fixture
def words() -> hr.Dataset:
    return hr.from_items(ROWS)


# ---------------------------------------------------------------- what it gets


def test_a_batch_is_a_dict_of_arrays(words: hr.Dataset) -> None:
    def look(batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        return {"seen": [f"{name} {values.dtype} {len(values)}" for name, values in batch.items()]}

    assert [row["seen"] for row in words.map_batches(look).take_all()] == [
        "id int64 10",
        "word object 10",
        "half float64 10",
    ]


@pytest.mark.parametrize(
    ("batch_format", "kind"),
    [("numpy", dict), ("default", dict), ("pandas", pd.DataFrame), ("pyarrow", pa.Table)],
)
def test_formats(words: hr.Dataset, batch_format: Any, kind: type) -> None:
    def same(batch: Any) -> Any:
        assert type(batch) is kind
        return batch

    assert words.map_batches(same, batch_format=batch_format).take_all() == ROWS


def test_columns_are_all_it_gets(words: hr.Dataset) -> None:
    out = words.map_batches(lambda batch: {"names": ["+".join(batch)]}, columns=["half", "id"])
    assert out.take_all() == [{"names": "half+id"}]


@pytest.mark.parametrize("size", [1, 3, 64, 100, 1000, np.int64(7)])
def test_batch_size_is_exact_within_a_shard(size: int) -> None:
    out = numbers(250).map_batches(
        lambda batch: {"first": batch["id"][:1], "rows": [len(batch["id"])]}, batch_size=size
    )
    wanted = []
    shard = max(100, int(size))  # a shard holds one whole batch at least
    for start in range(0, 250, shard):
        stop = min(start + shard, 250)
        wanted += [{"first": at, "rows": min(at + size, stop) - at} for at in range(start, stop, int(size))]
    assert out.take_all() == wanted


def lengths(column: str) -> Any:
    return lambda batch: {"rows": [len(batch[column])]}


def test_auto_size_goes_by_bytes() -> None:
    wide = hr.from_numpy(np.zeros((150, 1 << 15))).with_options(shard_rows=150)  # 256 KiB a row
    sizes = [row["rows"] for row in wide.map_batches(lengths("data")).take_all()]
    assert sizes[0] == 8 and max(sizes) <= 64 and sum(sizes) == 150


def test_auto_size_grows_by_powers_of_two() -> None:
    long = numbers(2_000_000, 2_000_000)
    sizes = [row["rows"] for row in long.map_batches(lengths("id")).take_all()]
    assert sum(sizes) == 2_000_000
    assert sizes[0] == 128 and 4_096 <= max(sizes) <= 65_536
    odd = [size for size in sizes[:-1] if size.bit_count() > 1]
    assert len(odd) <= 2  # where batches were made to begin with what was read again


@pytest.mark.parametrize(("asked", "rows"), [(8 * 30, 30), (1, 1), (np.int64(8 * 200), 100), ("0.4 KB", 50)])
def test_batches_of_so_many_bytes(asked: Any, rows: int) -> None:
    data = numbers(100, 100)
    for step in (
        data.map_batches(lengths("id"), batch_size_bytes=asked),
        data.predict(
            lambda batch: np.full(len(batch["id"]), len(batch["id"])), output="rows", batch_size_bytes=asked
        ),
        data.predict(
            {
                "rows": {
                    "model": lambda batch: np.full(len(batch["id"]), len(batch["id"])),
                    "batch_size_bytes": asked,
                }
            },
            batch_size=3,
        ),
    ):
        assert step.take_all()[0]["rows"] == rows


@pytest.mark.parametrize("asked", [0, -1, 1.5, True, "1 MM", "0 KB", "-1 MB", "MB"])
def test_bytes_that_make_no_batch(asked: Any) -> None:
    with pytest.raises(ArgumentError, match="whole number of bytes above zero"):
        numbers(3, 3).map_batches(len, batch_size_bytes=asked)


def test_rows_or_bytes_not_both() -> None:
    with pytest.raises(ArgumentError, match="not both"):
        numbers(3, 3).predict(len, batch_size=3, batch_size_bytes=100)
    numbers(3, 3).map_batches(len, batch_size="auto", batch_size_bytes=100)


def test_arguments_of_function_and_class() -> None:
    def function(batch: dict[str, Any], add: int, *, times: int) -> dict[str, Any]:
        return {"x": (batch["id"] + add) * times}

    class Model:
        def __init__(self, base: int, *, step: int) -> None:
            self.base = base + step

        def __call__(self, batch: dict[str, Any], add: int = 0) -> dict[str, Any]:
            return {"x": batch["id"] + self.base + add}

    data = hr.range(2)
    assert data.map_batches(function, fn_args=[1], fn_kwargs={"times": 10}).take_all() == [
        {"x": 10},
        {"x": 20},
    ]
    made = {"fn_constructor_args": [100], "fn_constructor_kwargs": {"step": 20}}
    assert data.map_batches(Model, **made).take_all() == [{"x": 120}, {"x": 121}]  # type: ignore[arg-type]
    assert data.map_batches(Model, fn_args=(3,), **made).take_all()[0] == {"x": 123}  # type: ignore[arg-type]
    assert data.map_batches(Model(1, step=1)).take_all() == [{"x": 2}, {"x": 3}]
    assert data.map_batches(Model(1, step=1).__call__).take_all() == [{"x": 2}, {"x": 3}]


def test_a_class_is_constructed_once_per_worker(tmp_path: Path, engine: str) -> None:
    class Model:
        def __init__(self) -> None:
            with open(tmp_path / "made", "a") as file:
                file.write(f"{os.getpid()}\n")

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"pid": [os.getpid()] * len(batch["id"])}

    pids = {row["pid"] for row in numbers(2_000).map_batches(Model).with_options(engine=engine).take_all()}
    made = (tmp_path / "made").read_text().split()
    assert len(made) == len(set(made)) <= 2
    assert {int(pid) for pid in made} >= pids
    assert (os.getpid() in pids) == (engine == "inline")


# ---------------------------------------------------------------- what it may give back


def test_the_number_of_rows_may_change() -> None:
    def odd(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": np.repeat(batch["id"][batch["id"] % 2 == 1], 3)}

    assert [row["id"] for row in hr.range(6).map_batches(odd).take_all()] == [1, 1, 1, 3, 3, 3, 5, 5, 5]
    assert hr.range(6).map_batches(lambda batch: {"id": batch["id"][:0]}).take_all() == []


def test_a_generator_yields_several_batches() -> None:
    def pieces(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for number in batch["id"]:
            yield {"id": np.full(int(number), number)}

    class Pieces:
        def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
            yield from pieces(batch)

    wanted = [1, 2, 2, 3, 3, 3]
    for code in (pieces, Pieces):
        assert [row["id"] for row in hr.range(4).map_batches(code, batch_size=2).take_all()] == wanted


def test_steps_follow_one_another(engine: str) -> None:
    data = (
        numbers(1000)
        .map_batches(lambda batch: {"id": batch["id"], "double": batch["id"] * 2}, batch_size=64)
        .filter(lambda row: row["id"] % 10 == 0)
        .map_batches(lambda table: table.drop_columns("id"), batch_format="pyarrow", batch_size=7)
        .rename_columns({"double": "x"})
        .with_options(engine=engine)
    )
    assert [row["x"] for row in data.take_all()] == list(range(0, 2000, 20))
