"""A plan is tried out where its GPUs are not, and is told at once what a real run will refuse."""

from __future__ import annotations

import sqlite3
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ResourcesUnavailable

from .data import numbers

NONE = r"predict\(Net\) asks for 1 GPU, and this machine has none: it runs on the CPU, in this process"


class Net:
    def __call__(self, batch: dict[str, Any]) -> Any:
        return batch["id"] * 2


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> hr.Dataset:
    """A dataset of several shards that asks for a GPU, on a machine without."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    data = numbers(1000).map_batches(lambda batch: {"id": batch["id"] + 1}, num_cpus=1)
    return data.predict(Net, inputs=["id"], output="p", num_gpus=1).with_options(engine="local")


def said(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    assert all(each.filename == __file__ for each in caught), "the warning is at the user's line"
    return result, [str(each.message) for each in caught]


def test_a_look_needs_no_gpu(asks: hr.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": 1, "p": 2}
    for run, expected in (
        (lambda: asks.take(1), [row]),
        (lambda: asks.take_all()[-1], {"id": 1000, "p": 2000}),
        (lambda: asks.take_batch(2)["p"].tolist(), [2, 4]),
        (lambda: asks.show(1), None),
        (lambda: asks.columns(), ["id", "p"]),
        (lambda: asks.limit(9).schema().names, ["id", "p"]),
    ):
        result, (line,) = said(run)
        assert result == expected
        assert line == (
            "predict(Net) asks for 1 GPU, and this machine has none: it runs on the CPU, in this process."
        )
    assert capsys.readouterr().out.splitlines()[-1].split() == ["1", "2"]


def test_the_inline_engine_needs_no_gpu(asks: hr.Dataset, tmp_path: Path) -> None:
    inline = asks.with_options(engine="inline")
    with pytest.warns(UserWarning, match=NONE) as caught:
        result = inline.write_parquet(tmp_path / "out")
    assert len(caught) == 1
    assert result.rows == 1000 and "gpus     predict(Net) asks for 1 GPU" in inline.explain()
    with pytest.warns(UserWarning, match=NONE):
        assert hr.read_parquet(tmp_path / "out").to_pandas().equals(inline.to_pandas())


def test_a_real_run_is_refused_with_the_numbers(asks: hr.Dataset, tmp_path: Path) -> None:
    for run in (
        asks.count, asks.to_pandas, asks.to_arrow, asks.materialize, lambda: next(asks.iter_batches()),
        lambda: next(asks.iter_rows()), lambda: asks.sum("p"), lambda: asks.write_parquet(tmp_path / "out"),
    ):  # fmt: skip
        with pytest.raises(ResourcesUnavailable, match="needs 1 GPU, and this machine has 0") as caught:
            run()
        assert "take(), show() and with_options(engine='inline') run without" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_explain_shows_what_would_run_and_that_it_is_refused(asks: hr.Dataset) -> None:
    lines = asks.explain().splitlines()
    assert "and 0 GPUs" in next(line for line in lines if line.startswith("engine"))
    assert any("1 worker with" in line and "1 GPU each" in line for line in lines)
    assert lines[-1].startswith("refused  A worker of this plan needs 1 GPU, and this machine has 0.")
    three = numbers(10).predict(Net, inputs=["id"], num_gpus=0.6, concurrency=3)
    three = three.with_options(engine="local")
    assert "3 workers with" in three.explain() and "refused  A worker" in three.explain()


def test_too_few_gpus_are_refused_to_workers_and_told_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from headrace.engines.local import machine

    for i in range(2):
        (tmp_path / str(i)).mkdir()
    monkeypatch.setattr(machine, "_NVIDIA", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    data = numbers(1000).predict(Net, inputs=["id"], output="p", num_gpus=3).with_options(engine="local")
    with pytest.warns(
        UserWarning, match="asks for 3 GPUs, and this machine has 2: it runs with what there is"
    ):
        assert data.take(1) == [{"id": 0, "p": 0}]
    with pytest.raises(ResourcesUnavailable, match="needs 3 GPUs, and this machine has 2"):
        data.take_all()


# ---------------------------------------------------------------- what cannot travel


def with_lock() -> Callable[[Any], Any]:
    lock = threading.Lock()

    def guarded(batch: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return {"x": batch["id"] + 1}

    return guarded


def test_what_cannot_travel_is_told_at_take(tmp_path: Path) -> None:
    connection = sqlite3.connect(":memory:")

    def look_up(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": connection.execute("select ?", (int(row["id"]),)).fetchone()[0] + 1}

    with open(tmp_path / "log.txt", "a") as file:
        for function, verb, words in (
            (look_up, "map", r"map\(.*look_up\) cannot travel .* the variable 'connection' .*, a Connection"),
            (
                with_lock(),
                "map_batches",
                r"guarded\) cannot travel .* the variable 'lock' that it uses, a lock",
            ),
            (lambda row: {"x": row["id"] + 1, "f": file.name}, "map", "'file' that it uses, a TextIOWrapper"),
        ):
            data = getattr(numbers(1000), verb)(function).with_options(engine="local")
            with pytest.warns(
                UserWarning, match="It will not work in a run with worker processes: .*" + words
            ) as caught:
                assert data.take(1)[0]["x"] == 1
            assert len(caught) == 1 and caught[0].filename == __file__
            assert data.take(1)[0]["x"] == 1, "once is enough"
            data.with_options(engine="inline").take(1)


def test_who_stays_in_this_process_is_not_told() -> None:
    data = numbers(1000).map_batches(with_lock()).with_options(engine="inline")
    assert data.take(1) == [{"x": 1}]
    assert data.take_all()[-1] == {"x": 1000}


def test_take_all_of_little_tells_it_too() -> None:
    data = hr.range(3).map_batches(with_lock()).with_options(engine="local")
    with pytest.warns(UserWarning, match="a lock, cannot be pickled"):
        assert data.take_all() == [{"x": 1}, {"x": 2}, {"x": 3}]


class Heavy:
    """What takes long to pickle; ``reduced`` counts how much was asked for."""

    reduced = 0

    def __reduce__(self) -> Any:
        Heavy.reduced += 1
        return bytes, (b"x" * 100_000,)


def test_only_the_first_of_something_big_is_tried() -> None:
    heavy = [Heavy() for _ in range(1000)]
    big = np.zeros(1 << 26, np.uint8)
    data = numbers(10).map(lambda row: {"n": len(heavy) + int(big[0])}).with_options(engine="local")
    assert data.take(1) == [{"n": 1000}]
    assert 0 < Heavy.reduced <= 20
    data.take(2)
    assert Heavy.reduced <= 20
