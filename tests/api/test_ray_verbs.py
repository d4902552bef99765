"""What programs for Ray Data do with a dataset, written as there."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.engines.local import machine
from headrace.errors import ArgumentError, BadReturn, UnknownColumn

from .data import numbers

# ---------------------------------------------------------------- beginning


def test_range_tensor() -> None:
    data = hr.range_tensor(5_000, shape=(2, 3))
    assert data.count() == 5_000 and data.take(2)[1]["data"].tolist() == [[1, 1, 1], [1, 1, 1]]
    total = data.map_batches(lambda batch: {"sum": batch["data"].sum(axis=(1, 2))}).sum("sum")
    assert total == 6 * sum(range(5_000))
    assert hr.range_tensor(3).take(1)[0]["data"].shape == (1,)
    assert hr.range_tensor(3, shape=(2,)).select_columns(["data"]).map_batches(lambda b: b).count() == 3


def test_ray_names_for_what_is_given() -> None:
    assert hr.from_numpy(ndarrays=[np.zeros(2), np.ones(1)]).count() == 3
    assert hr.from_pandas(dfs=[pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})]).count() == 2
    assert hr.from_arrow(tables=[pa.table({"a": [1]})] * 3).count() == 3


# ---------------------------------------------------------------- columns and rows


@pytest.mark.parametrize(
    ("batch_format", "fn"),
    [
        ("pandas", lambda batch: batch["id"] * 2),
        ("numpy", lambda batch: batch["id"] * 2),
        ("pyarrow", lambda batch: pa.array([i * 2 for i in batch["id"].to_pylist()])),
        ("pyarrow", lambda batch: pa.chunked_array([[i * 2 for i in batch["id"].to_pylist()]])),
        ("numpy", lambda batch: [int(i) * 2 for i in batch["id"]]),
    ],
)
def test_with_column(batch_format: Any, fn: Any) -> None:
    data = hr.range(3).with_column("double", fn, batch_format=batch_format)
    assert data.take_all() == [{"id": i, "double": 2 * i} for i in range(3)]
    assert hr.range(3).with_column("id", fn, batch_format=batch_format).take_all() == [
        {"id": 2 * i} for i in range(3)
    ]


def test_with_column_is_pandas_by_default_and_adds_tensors() -> None:
    assert hr.range(2).with_column("x", lambda frame: frame["id"] + 1).take_all()[1] == {"id": 1, "x": 2}
    tensors = hr.range(2).with_column("t", lambda b: np.zeros((len(b["id"]), 2, 2)), batch_format="numpy")
    assert tensors.take_batch(2)["t"].shape == (2, 2, 2)
    with pytest.raises(BadReturn):
        hr.range(3).with_column("x", lambda frame: [1]).take_all()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a > 1", [2, 3]),
        ("a >= 1 and b != 'x'", [2]),
        ("not a == 2", [1, 3]),
        ("b is None", [3]),
        ("b is not None and a < 2", [1]),
        ("b in ['x', 'z']", [1]),
        ("a not in (1, 3)", [2]),
        ("1 < a <= 3", [2, 3]),
        ("a * 2 - 1 > -a / 2 + 3", [2, 3]),
        ("3 - a == 1 and -1 < a", [2]),
        ("c.d > 1.5 or a == 1", [1, 2, 3]),
    ],
)
def test_filters_in_words(text: str, kept: list[int]) -> None:
    data = hr.from_arrow(pa.table({"a": [1, 2, 3], "b": ["x", "y", None], "c.d": [1.5, 2.5, 3.5]}))
    assert [row["a"] for row in data.filter(expr=text).take_all()] == kept


def test_no_format_is_no_conversion() -> None:
    kinds = hr.range(2).map_batches(lambda b: {"kind": [type(b).__name__]}, batch_format=None).take_all()
    assert kinds == [{"kind": "Table"}]
    (batch,) = hr.range(2).iter_batches(batch_format=None)
    assert isinstance(batch, pa.Table)


# ---------------------------------------------------------------- a look


def test_show_prints_vectors(capsys: pytest.CaptureFixture[str]) -> None:
    data = hr.from_numpy(np.asarray(["Complete this", "for me"])).with_column(
        "vector", lambda batch: np.ones((len(batch["data"]), 2), np.float32), batch_format="numpy"
    )
    data.show(limit=1)
    assert capsys.readouterr().out.splitlines() == [
        "data           vector",
        "string         float32 (2)",
        "-------------  -----------",
        "Complete this  [1.0, 1.0]",
    ]
    (row,) = data.take(1)
    assert type(row["data"]) is str and isinstance(row["vector"], np.ndarray)


def test_input_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"{name}.parquet")
    assert hr.read_parquet(tmp_path).map_batches(lambda b: b).input_files() == [
        str(tmp_path / "a.parquet"),
        str(tmp_path / "b.parquet"),
    ]


def test_local_paths_as_ray_writes_them(tmp_path: Path) -> None:
    hr.range(3).write_parquet(f"local://{tmp_path}/out")
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert hr.read_parquet(f"local://{tmp_path}/out").count() == 3


def test_stats_are_of_the_last_run(tmp_path: Path) -> None:
    data = numbers(1000).filter(expr="id < 400")
    assert "has not run yet" in data.stats()
    assert len(data.take(3)) == 3 and "has not run yet" in data.stats()
    assert data.count() == 400
    lines = data.stats().splitlines()
    assert lines[0].startswith("1,000 rows in, 400 out, 600 filtered in ")
    assert lines[1] == "filter((id < 400)): 1,000 rows in, 400 out"
    result = data.write_parquet(tmp_path / "out")
    assert data.stats() == result.summary
    assert "has not run yet" in data.limit(3).stats()
    next(iter(data.iter_batches(batch_size=10)))
    assert "stopped before the end" in data.stats()


def test_materialize_runs_once(tmp_path: Path) -> None:
    def note(batch: Any) -> Any:
        with open(tmp_path / "ran", "a") as file:
            file.write(".")
        return {"id": batch["id"], "vector": np.ones((len(batch["id"]), 3))}

    made = hr.range(10).map_batches(note).with_options(workers=1).materialize()
    before = (tmp_path / "ran").read_text()
    assert made.count() == 10 and made.take_batch(4)["vector"].shape == (4, 3)
    assert [row["id"] for row in made.map(lambda row: {"id": row["id"]}).take_all()] == list(range(10))
    assert (tmp_path / "ran").read_text() == before
    assert made.stats().startswith("10 rows in, 10 out")
    assert hr.range(5).filter(expr="id > 9").materialize().schema().names == ["id"]


# ---------------------------------------------------------------- numbers

MIXED = {
    "n": [3, None, 1, 2],
    "x": [0.5, 2.5, float("nan"), 1.0],
    "s": ["b", "a", "c", None],
    "z": [None] * 4,
}


@pytest.fixture
def mixed() -> hr.Dataset:
    table = pa.table({**MIXED, "z": pa.array([None] * 4, pa.float64())})
    return hr.from_arrow([table, table.slice(1)])


def test_numbers(mixed: hr.Dataset) -> None:
    assert (mixed.sum("n"), mixed.min("n"), mixed.max("n"), mixed.mean("n")) == (9, 1, 3, 1.8)
    assert (mixed.min("s"), mixed.max("s"), mixed.max("x")) == ("a", "c", 2.5)
    assert mixed.sum("n", ignore_nulls=False) is None and mixed.mean("z") is None
    assert mixed.min(["n", "s"]) == {"min(n)": 1, "min(s)": "a"}
    assert hr.range(10).max() == 9 == hr.range(10).max(["id"])
    assert type(hr.range(10).sum("id")) is int
    assert mixed.unique("n") == [3, None, 1, 2] and mixed.unique("s", ignore_nulls=True) == ["b", "a", "c"]
    assert len(mixed.unique("x")) == 4


def test_spread_agrees_with_numpy() -> None:
    values = np.random.default_rng(0).normal(1e6, 2.0, 10_000)
    data = hr.from_numpy(values).with_options(shard_rows=997)
    assert math.isclose(data.std("data"), float(values.std(ddof=1)), rel_tol=1e-9)
    assert math.isclose(data.std("data", ddof=0), float(values.std()), rel_tol=1e-9)
    assert hr.range(1).std("id") is None and hr.range(0).std("id") is None


def test_numbers_that_there_are_not(mixed: hr.Dataset) -> None:
    for verb in (lambda: mixed.sum("s"), lambda: mixed.std("s"), lambda: mixed.mean()):
        with pytest.raises(ArgumentError, match="no such number for a column of type string"):
            verb()
    with pytest.raises(UnknownColumn):
        mixed.sum("m")
    with pytest.raises(ArgumentError, match="cannot be compared"):
        hr.from_items([{"x": [1, 2]}]).unique("x")


# ---------------------------------------------------------------- workers


class Twice:
    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "twice": self.factor * batch["id"], "worker": np.full(len(batch["id"]), os.getpid())}


@pytest.mark.parametrize(
    "given",
    [
        {"compute": hr.ActorPoolStrategy(size=2), "num_cpus": 1},
        {"compute": hr.ActorPoolStrategy(min_size=1, max_size=2), "num_cpus": 1, "batch_size": None},
        {"concurrency": 2, "num_cpus": 1, "batch_size": 10, "fn_constructor_kwargs": {"factor": 2}},
    ],
)
def test_two_workers_of_one_core_on_two_cores(
    tmp_path: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where reading would need a core of its own, the pool would have them all, and nothing would ever move."""
    here = msgspec.structs.replace(machine.capacity(), cpus=2)
    monkeypatch.setattr(machine, "capacity", lambda: here)
    for part in range(4):
        pq.write_table(pa.table({"id": np.arange(100) + 100 * part}), tmp_path / f"{part}.parquet")
    data = hr.read_parquet(tmp_path).map_batches(Twice, **given).with_options(engine="local")
    rows = data.take_all()
    assert [row["twice"] for row in rows] == [2 * i for i in range(400)]
    assert os.getpid() not in {row["worker"] for row in rows}
