"""Rows that end their worker, or keep it for ever, are found, and treated like other rows that fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.dataset.dataset import Dataset
from headrace.errors import ShardFailed, StepError

ROWS = 3_000


def data() -> Dataset:
    return hr.range(ROWS).with_options(progress=False, workers=2, shard_rows=1_000, on_error="reject")


def fatal(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 13:
        os._exit(3)
    return row


def test_a_guilty_row_of_a_function_of_rows_is_set_aside(tmp_path: Path) -> None:
    """Of models: test_matrix.py."""
    assert data().map(fatal).write_parquet(tmp_path / "out").rows == ROWS - 1
    (row,) = hr.read_rejected(tmp_path / "out").take_all()
    assert (row["id"], row["_row"], row["_error_type"]) == (13, 13, "WorkerDied") and "map" in row["_step"]


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
        data().with_options(max_attempts=2).map(fatal).write_parquet(tmp_path / "out")
