"""Every metric keeps the contract that is public, one of a user's and those of torchmetrics among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from faults.job import Big
from headrace.testing import AccumulatorContract

from .test_algebra import METRICS


def batches(rows: int = 40) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(3)
    columns = {
        "x": rng.normal(size=rows),
        "z": rng.normal(size=rows),
        "w": rng.random(rows),
        "p": rng.random(rows).round(1),
        "y": rng.random(rows) < 0.4,
        "c": rng.integers(0, 3, rows),
        "d": rng.integers(0, 3, rows),
        "g": [str(i % 3) for i in range(rows)],
        "s": [f"the {i % 2} {i % 5}" if i % 4 else '{"b": 1}' for i in range(rows)],
        "j": [f'{{"b": {i % 3}}}' for i in range(rows)],
        "id": np.arange(rows),
    }
    whole = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    return [whole.slice(at, 10) for at in range(0, rows, 10)]


class TestOurs(AccumulatorContract):
    metric: Any = None

    @pytest.fixture(autouse=True, params=[*METRICS, Big()], ids=repr)
    def _metric(self, request: pytest.FixtureRequest) -> None:
        self.metric = request.param

    def make(self) -> Any:
        return self.metric.empty()

    def batches(self) -> Sequence[pa.RecordBatch]:
        return batches()


class TestTorchMetrics(AccumulatorContract):
    def make(self) -> Any:
        classification = pytest.importorskip("torchmetrics.classification")
        return hr.TorchMetric(classification.BinaryAUROC(), inputs=["p", "y"])

    def batches(self) -> Sequence[pa.RecordBatch]:
        return [batch.set_column(4, "y", batch.column("y").cast(pa.int64())) for batch in batches()]
