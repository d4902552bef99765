"""Verbs of the user's own: what they may do, and what is said where they forget something."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import LedgerMismatch, PlanError, StepError
from headrace.plan.steps.base import Step
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningStep, StepContext, runs
from headrace.worker.steps.columns import Limiting

ROWS = [{"x": 1, "z": 10}, {"x": None, "z": 20}, {"x": 3, "z": 30}] * 20
KEPT = [row for row in ROWS if row["x"] is not None]


@dataclass(frozen=True)
class First(Step):
    """A limit by another name."""

    rows: int
    verb = "first"

    @property
    def row_limit(self) -> int:
        return self.rows

    def rows_after(self, rows: int) -> int:
        return min(rows, self.rows)

    def label(self) -> str:
        return f"first({self.rows})"


@runs(First)
class Firsting(Limiting):  # type: ignore[type-arg]
    """Runs it as a limit."""


@dataclass(frozen=True)
class DropNulls(Step):
    """Drops rows; says what it reads, and neither ``needed_before`` nor that rows may be missing."""

    column: str
    counts: bool = True
    verb = "drop_nulls"
    passes_values = True

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def label(self) -> str:
        return f"drop_nulls({self.column!r})"

    def shape(self) -> dict[str, Any]:
        return {"verb": self.verb, "column": self.column}


@runs(DropNulls)
class DroppingNulls(RunningStep[DropNulls]):
    def run(self, rows: Iterator[Rows], callers: Sequence[Any], context: StepContext) -> Iterator[Rows]:
        for part in rows:
            mask = pc.is_valid(part.batch.column(self.step.column))
            if self.step.counts:
                context.count_dropped(len(part) - mask.true_count)
            yield part.masked(part.batch.filter(mask), mask.to_numpy(zero_copy_only=False))

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


@dataclass(frozen=True)
class Twice(Step):
    """Gives each batch twice, and counts the second as added, if it shall."""

    counts: bool
    verb = "twice"
    makes_rows = True

    def label(self) -> str:
        return "twice()"


@runs(Twice)
class Doubling(RunningStep[Twice]):
    def run(self, rows: Iterator[Rows], callers: Sequence[Any], context: StepContext) -> Iterator[Rows]:
        for part in rows:
            if self.step.counts:
                context.count_added(len(part))
            yield from (part, part)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


@dataclass(frozen=True)
class Tenfold(Step):
    """Gives row i for row i, or says so."""

    column: str
    mistake: str = ""
    verb = "tenfold"
    one_to_one = True

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def label(self) -> str:
        return f"tenfold({self.column!r})"


@runs(Tenfold)
class Multiplying(RunningStep[Tenfold]):
    def run(self, rows: Iterator[Rows], callers: Sequence[Any], context: StepContext) -> Iterator[Rows]:
        for part in rows:
            made = self.on_no_rows(part.batch)
            if self.step.mistake == "new rows":
                yield Rows(made, part.spans)
            elif self.step.mistake:
                yield part.with_batch(pa.Table.from_batches([made, made]).combine_chunks().to_batches()[0])
            else:
                yield part.with_batch(made)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index(self.step.column)
        return batch.set_column(at, self.step.column, pc.multiply(batch.column(at), 10))


@dataclass(frozen=True)
class Unrun(Step):
    """Has no running step."""

    verb = "unrun"

    def label(self) -> str:
        return "unrun()"


def items(step: Step, engine: str = "inline", **options: Any) -> hr.Dataset:
    return hr.from_items(ROWS).with_step(step).with_options(engine=engine, progress=False, **options)


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_limit_by_another_name_is_one(engine: str, tmp_path: Path) -> None:
    data = hr.range(5000).with_step(First(7)).with_options(engine=engine, progress=False, shard_rows=1024)
    assert data.take_all() == [{"id": i} for i in range(7)]
    assert data.count() == 7
    result = data.write_parquet(tmp_path / "out")
    assert result.rows == 7
    assert hr.read_parquet(tmp_path / "out").take_all() == [{"id": i} for i in range(7)]
    assert hr.verify(tmp_path / "out").findings == ()


def test_a_limit_by_another_name_ends_an_earlier_stage() -> None:
    data = (
        hr.range(1000)
        .map(lambda row: row, concurrency=1)
        .with_step(First(7))
        .map_batches(lambda batch: batch, concurrency=1)
    )
    assert data.with_options(progress=False, shard_rows=50).take_all() == [{"id": i} for i in range(7)]


def test_a_step_of_a_dataset_of_a_union_runs_in_workers() -> None:
    both = items(DropNulls("x"), "local", shard_rows=20).union(hr.from_items(ROWS))
    assert both.take_all() == KEPT + ROWS
    assert both.count() == len(KEPT) + len(ROWS)


def test_a_dataset_of_a_zip_is_made_by_its_steps() -> None:
    both = items(Tenfold("z"), "local", shard_rows=20).zip(hr.range(len(ROWS)))
    assert both.take_all() == [{**row, "z": row["z"] * 10, "id": i} for i, row in enumerate(ROWS)]


def test_rows_that_a_step_drops_and_adds_are_counted() -> None:
    assert items(DropNulls("x")).take_all() == KEPT
    assert items(DropNulls("x")).count() == len(KEPT)  # it did not say that it keeps all rows
    assert items(Twice(True)).count() == 2 * len(ROWS)


def test_what_a_step_reads_is_read() -> None:
    assert items(DropNulls("x")).select_columns(["z"]).take_all() == [{"z": row["z"]} for row in KEPT]


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (DropNulls("x", counts=False), r"60 rows came to drop_nulls\('x'\) and 40 left it"),
        (Twice(False), r"60 rows came to twice\(\) and 120 left it"),
    ],
)
def test_rows_that_a_step_does_not_count_are_its_own_mistake(step: Step, says: str) -> None:
    with pytest.raises(LedgerMismatch, match=says) as caught:
        items(step).take_all()
    assert "count_dropped" in str(caught.value) and type(step).__name__ in str(caught.value)
    assert "bug in Headrace" not in str(caught.value)


def test_a_step_that_keeps_all_rows_and_drops_some_is_told() -> None:
    class Sure(DropNulls):
        one_to_one = True

    with pytest.raises(LedgerMismatch, match=r"keeps every row, and dropped 20 .*one_to_one = True"):
        items(Sure("x")).take_all()


def test_a_step_without_a_running_step_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"Unrun has no class that does its work.*@runs\(Unrun\)"):
        hr.range(3).with_step(Unrun()).with_options(engine="inline").write_parquet(tmp_path / "out")


@dataclass(frozen=True)
class Odd(Step):
    """Raises at ``at``."""

    at: str
    verb = "odd"

    def label(self) -> str:
        return f"odd({self.at!r})"


@runs(Odd)
class Odding(RunningStep[Odd]):
    def run(self, rows: Iterator[Rows], callers: Sequence[Any], context: StepContext) -> Iterator[Rows]:
        if self.step.at == "begin":
            raise KeyError("x")
        for part in rows:
            if self.step.at == "rows":
                raise KeyError("x")
            yield part.batch if self.step.at == "batch" else part  # type: ignore[misc]
        if self.step.at == "end":
            raise KeyError("x")


@pytest.mark.parametrize(
    ("at", "rows"), [("begin", "had no row yet"), ("rows", "rows 0 to 59"), ("end", "rows 0 to 59")]
)
def test_what_a_step_raises_is_its_own_mistake(at: str, rows: str) -> None:
    with pytest.raises(StepError) as caught:
        items(Odd(at)).take_all()
    said = str(caught.value)
    place = next(word for word in said.split() if word.startswith(__file__))
    assert said.startswith(f"odd({at!r}) raised KeyError: 'x', in Odding at {__file__}:")
    assert rows in said
    line = int(place.rstrip(".").rpartition(":")[2])
    assert Path(__file__).read_text().splitlines()[line - 1].strip() == 'raise KeyError("x")'
    shown = str(caught.value.__cause__)
    assert shown.strip().splitlines()[1].startswith(f'  File "{__file__}", line {line}, in run')
    assert shown.strip().endswith("KeyError: 'x'")


def test_what_a_step_raises_may_hold_data() -> None:
    with pytest.raises(StepError, match=r"raised KeyError: \(its text is hidden") as caught:
        items(Odd("rows"), show_data=False).take_all()
    assert "'x'" not in str(caught.value.__cause__)


def test_a_step_that_yields_no_rows_is_told() -> None:
    with pytest.raises(
        StepError, match=r"odd\('batch'\): Odding.run has to yield Rows, and yielded .*RecordBatch"
    ):
        items(Odd("batch")).take_all()


def test_what_comes_from_before_a_step_or_behind_it_is_not_its_mistake() -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("mine")

    data = hr.from_items(ROWS).with_options(engine="inline", progress=False)
    for failing in (data.map(fails).with_step(Odd("")), data.with_step(Odd("")).map(fails)):
        with pytest.raises(StepError, match=r"^map\(.*fails.*\) raised ValueError: mine"):
            failing.take_all()
    assert data.with_step(Odd("")).take_all() == ROWS
    assert data.with_step(Odd("")).take(2) == ROWS[:2]


PLAN = """
from dataclasses import dataclass
from headrace.plan.steps.base import Step

@dataclass(frozen=True)
class Plus(Step):
    verb = "plus"
    one_to_one = True
    def label(self):
        return "plus()"
"""
WORK = """
import pyarrow.compute as pc
from headrace.worker.steps.base import RunningStep, runs

@runs(Plus)
class Adding(RunningStep):
    def run(self, rows, callers, context):
        for part in rows:
            yield part.with_batch(self.on_no_rows(part.batch))

    def on_no_rows(self, batch):
        return batch.set_column(0, "id", pc.add(batch.column(0), 1))
"""
JOB = """
import headrace as hr
if __name__ == "__main__":
    print(hr.range(3).with_step(Plus()).with_options(engine="local", progress=False).take_all())
"""


@pytest.mark.parametrize("apart", [True, False], ids=["two modules", "a script"])
def test_workers_get_a_running_step_from_wherever_it_is(apart: bool, tmp_path: Path) -> None:
    (tmp_path / "plan_part.py").write_text(PLAN)
    (tmp_path / "work_part.py").write_text(f"from plan_part import Plus\n{WORK}")
    script = f"from plan_part import Plus\nimport work_part\n{JOB}" if apart else PLAN + WORK + JOB
    (tmp_path / "job.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[{'id': 1}, {'id': 2}, {'id': 3}]", done.stderr
