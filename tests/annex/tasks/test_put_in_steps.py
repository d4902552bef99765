"""Values that were put, in the steps of a Dataset."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.compat import ray
from headrace.errors import ExecutorClosed, NotPicklable

BIG = 32 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Scores:
    """As in Ray's own benchmarks of batch inference: the model is put, and fetched where the class is made."""

    def __init__(self, weights: Any, *, scale: Any = None) -> None:
        self.weights = ray.get(weights)
        self.scale = 1 if scale is None else ray.get(scale)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"score": (batch["id"] + self.weights[0]) * self.scale}


@pytest.fixture
def rows() -> hr.Dataset:
    return hr.range(4).with_options(engine="local", progress=False)


@pytest.fixture
def put(executor: hr.Executor) -> Iterator[Callable[[Any], Any]]:
    yield executor.put


def scores(folder: Path) -> list[float]:
    return sorted(float(row["score"]) for row in hr.read_parquet(str(folder)).take_all())


@pytest.mark.parametrize("where", ["inline", "local"])
def test_a_class_fetches_what_was_put(
    rows: hr.Dataset, put: Callable[[Any], Any], where: Any, tmp_path: Path
) -> None:
    data = rows.map_batches(
        Scores, fn_constructor_args=(put(np.arange(5.0) + 10),), fn_constructor_kwargs={"scale": put(2)}
    ).with_options(engine=where)
    data.write_parquet(str(tmp_path / "out"))
    assert scores(tmp_path / "out") == [20.0, 22.0, 24.0, 26.0]


def test_arguments_closures_and_values_in_values(
    rows: hr.Dataset, executor: hr.Executor, tmp_path: Path
) -> None:
    one, future = executor.put(np.ones(BIG // 8)), executor.submit(max, 2, 3)
    nested = executor.put({"one": one})

    def add(batch: dict[str, Any], first: Any, *, second: Any) -> dict[str, Any]:
        inner = nested.get()["one"].get()[0]
        return {"score": batch["id"] + first.get()[0] + second[0].get() + inner}

    data = rows.map_batches(add, fn_args=(one,), fn_kwargs={"second": [future]})
    data.write_parquet(str(tmp_path / "out"))
    assert scores(tmp_path / "out") == [5.0, 6.0, 7.0, 8.0]


def test_every_stage_and_verb_may_use_it(rows: hr.Dataset, put: Callable[[Any], Any], tmp_path: Path) -> None:
    weights = put(np.full(3, 7.0))
    data = rows.map(lambda row: {"id": row["id"] + weights.get()[0]}, num_cpus=0.5)
    data.map_batches(Scores, fn_constructor_args=(weights,), concurrency=1).filter(
        lambda row: row["score"] > weights.get()[1]
    ).write_parquet(str(tmp_path / "out"))
    assert scores(tmp_path / "out") == [14.0, 15.0, 16.0, 17.0]


@linux
def test_buffers_are_in_memory_once_for_all_workers(put: Callable[[Any], Any], tmp_path: Path) -> None:
    weights = put(np.ones(BIG // 8))
    data = hr.range(64).with_options(engine="local", workers=2, progress=False)
    data.map_batches(mapped, batch_size=1, fn_args=(weights,)).write_parquet(str(tmp_path / "out"))
    found = hr.read_parquet(str(tmp_path / "out")).take_all()
    assert {row["sum"] for row in found} == {BIG / 8}
    assert len({row["inode"] for row in found}) == 1
    assert max(row["private"] for row in found) < 64
    assert os.getpid() not in {row["pid"] for row in found}


def mapped(batch: dict[str, Any], weights: Any) -> dict[str, Any]:
    """Say where the buffer of a value lies in this process, and how much of it is this process's own."""
    array = weights.get()
    found = {"sum": array.sum(), "pid": os.getpid()}
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        start, _, stop = part.split(" ", 1)[0].partition("-")
        if int(start, 16) <= array.ctypes.data < int(stop, 16):
            found["inode"] = part.split("\n")[0].split()[4]
            found["private"] = int(re.findall(r"Anonymous: +(\d+)", part)[0])
    return {name: [value] * len(batch["id"]) for name, value in found.items()}


def test_the_value_decides_whether_it_is_the_same_run(
    rows: hr.Dataset, put: Callable[[Any], Any], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")

    def job(weights: Any) -> hr.Dataset:
        return rows.map_batches(Scores, fn_constructor_args=(weights,))

    job(put(np.arange(3.0))).write_parquet(out)
    again = job(put(np.arange(3.0))).write_parquet(out)
    assert again.rows == 4
    with pytest.raises(hr.errors.HeadraceError, match="Constructor argument 1 of"):
        job(put(np.arange(3.0) + 1)).write_parquet(out)


def test_after_the_executor_is_shut_down_it_is_refused(rows: hr.Dataset, tmp_path: Path) -> None:
    with hr.connect(workers=1) as executor:
        data = rows.map_batches(Scores, fn_constructor_args=(executor.put(np.ones(2)),))
    with pytest.raises(ExecutorClosed, match="run a Dataset whose steps use it before"):
        data.write_parquet(str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(hr.errors.StepError, match="the executor that it was put to is shut down"):
        data.materialize()


@pytest.mark.filterwarnings("ignore:This run cannot be resumed")
def test_an_actor_is_refused(rows: hr.Dataset, executor: hr.Executor, tmp_path: Path) -> None:
    actor = executor.actor(dict)

    def ask(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": [len(actor.keys().result())] * len(batch["id"])}

    with pytest.raises(NotPicklable, match=r"map_batches\(.*ask\).*variable 'actor'.*cannot call an actor"):
        rows.map_batches(ask).write_parquet(str(tmp_path / "out"))
    with pytest.raises(NotPicklable, match="cannot call an actor"):
        rows.map_batches(lambda batch, keep: batch, fn_args=(executor.put([actor]),)).write_parquet(
            str(tmp_path / "other")
        )
