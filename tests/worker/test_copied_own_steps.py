"""Steps of the user's own, which say nothing of copying."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.plan.steps.base import Step
from headrace.worker import copy_choice
from headrace.worker.steps.base import RunningStep, runs


@dataclass(frozen=True)
class Negated(Step):
    """A step as a user may write it: it says what it reads, and no more."""

    column: str
    verb = "negated"

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def label(self) -> str:
        return "negated()"

    def shape(self) -> dict[str, Any]:
        return {"verb": self.verb}


@runs(Negated)
class Negating(RunningStep[Negated]):
    def run(self, rows: Any, callers: Any, context: Any) -> Any:
        for part in rows:
            at = part.batch.schema.get_field_index(self.step.column)
            values = pa.array([-value for value in part.batch.column(at).to_pylist()])
            yield part.with_batch(part.batch.set_column(at, self.step.column, values))


def test_what_a_step_changes_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_choice, "LEAST_ROWS", 1)
    pq.write_table(pa.table({"id": np.arange(500), "x": np.arange(500.0)}), tmp_path / "a.parquet")
    data = hr.read_parquet(tmp_path / "a.parquet").with_step(Negated("id"))
    assert "copied   as" not in data.explain()
    data.with_options(engine="inline", progress=False).write_parquet(tmp_path / "out")
    assert hr.read_parquet(tmp_path / "out").to_pandas()["id"].tolist() == [-i for i in range(500)]
