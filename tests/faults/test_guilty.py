"""Rows that end their worker, or keep it for ever, are found, and treated like other rows that fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.dataset.dataset import Dataset
from headrace.errors import ShardFailed, StepError

ROWS = 3_000


class Fatal:
    """Brings its process down over some rows, or never comes back from them."""

    def __init__(self, way: str, bad: list[int]) -> None:
        self.way = way
        self.bad = bad

    def __call__(self, batch: dict[str, Any]) -> Any:
        if np.isin(batch["id"], self.bad).any():
            if self.way == "exit":
                os._exit(3)
            while self.way == "hang":
                time.sleep(0.05)
            os.kill(os.getpid(), getattr(signal, self.way))
        return batch["id"] * 2.0


def data(way: str, bad: list[int], *, staged: bool = False, step: str = "predict") -> Dataset:
    rows = hr.range(ROWS).with_options(progress=False, workers=2, shard_rows=1_000)
    if way == "hang":
        rows = rows.with_options(batch_timeout=0.6)
    if staged:
        rows = rows.map_batches(lambda b: b, num_cpus=1)
    model = Fatal(way, bad)
    if step == "map":
        return rows.map(lambda row: {"id": row["id"], "y": float(model({"id": np.array([row["id"]])})[0])})
    more: dict[str, Any] = {"concurrency": 1} if staged else {}
    return rows.predict(
        Fatal, inputs=["id"], output="y", fn_constructor_args=[way, bad], batch_size=512, **more
    )


@pytest.mark.parametrize(
    ("way", "bad", "staged", "step"),
    [
        ("exit", [0], False, "predict"),
        ("SIGSEGV", [ROWS - 1], False, "predict"),
        pytest.param("SIGKILL", [1500, 1501, 2900], False, "predict", marks=pytest.mark.soak),
        ("SIGABRT", [77], True, "predict"),
        ("exit", [13], False, "map"),
        ("hang", [201], False, "predict"),
    ],
)
def test_guilty_rows_are_set_aside(way: str, bad: list[int], staged: bool, step: str, tmp_path: Path) -> None:
    result = (
        data(way, bad, staged=staged, step=step)
        .with_options(on_error="reject")
        .write_parquet(tmp_path / "out")
    )
    good = [i for i in range(ROWS) if i not in bad]
    assert pq.read_table(tmp_path / "out").to_pydict() == {"id": good, "y": [2.0 * i for i in good]}
    assert (result.ledger.read, result.rows, result.rejected) == (ROWS, len(good), len(bad))
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert rejected.column("id").to_pylist() == rejected.column("_row").to_pylist() == bad
    assert set(rejected.column("_error_type").to_pylist()) == {
        "BatchTimeout" if way == "hang" else "WorkerDied"
    }
    assert all(("more than batch_timeout" if way == "hang" else "worker process") in text
               for text in rejected.column("_error").to_pylist())  # fmt: skip
    assert all(step in text for text in rejected.column("_step").to_pylist())


@pytest.mark.parametrize(
    ("way", "says"), [("exit", "exited with status 3"), ("hang", "more than batch_timeout=0.6 s")]
)
def test_the_guilty_row_is_named(way: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=rf"predict\(Fatal\) cannot process range, row 201: .*{says}"):
        data(way, [201]).write_parquet(tmp_path / "out")


class Spoils:
    """Over a bad row it leaves its device in a state in which all that follows fails, too."""

    spoilt = False

    def __call__(self, batch: dict[str, Any]) -> Any:
        self.spoilt = self.spoilt or bool(np.isin(batch["id"], [42, 2000]).any())
        if self.spoilt:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return batch["id"] * 2.0


def test_a_spoilt_device_blames_no_other_row(tmp_path: Path) -> None:
    rows = hr.range(ROWS).with_options(progress=False, workers=2, shard_rows=1_000)
    scored = rows.predict(Spoils, inputs=["id"], output="y", batch_size=512)
    with pytest.raises(StepError, match=r"device-side assert triggered\. It was working on range, rows"):
        scored.write_parquet(tmp_path / "raise")
    result = scored.with_options(on_error="reject").write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (ROWS - 2, 2)
    assert hr.read_rejected(tmp_path / "out").to_arrow().column("id").to_pylist() == [42, 2000]


def test_with_few_attempts_nobody_looks_for_rows(tmp_path: Path) -> None:
    with pytest.raises(ShardFailed, match="Shard 0 ended its worker 2 times"):
        data("exit", [201]).with_options(on_error="reject", max_attempts=2).write_parquet(tmp_path / "out")
