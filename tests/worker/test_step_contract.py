"""The contract of verbs holds for ours, and finds what a step of one's own forgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.plan.steps.base import NeededColumns, Step
from headrace.testing import StepContract
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningStep, StepContext, runs

TABLE = pa.table(
    {"id": list(range(12)), "x": [None if i % 5 == 3 else i / 2 for i in range(12)], "z": ["a"] * 12}
)

VERBS: dict[str, Callable[[hr.Dataset], hr.Dataset]] = {
    "limit": lambda data: data.limit(5),
    "select": lambda data: data.select_columns(["x", "id"]),
    "drop": lambda data: data.drop_columns(["id"]),
    "rename": lambda data: data.rename_columns({"id": "key"}),
    "filter": lambda data: data.filter(expr=pc.field("id") > 3),
    "with_column": lambda data: data.with_column("y", hr.col("id") + 1),
    "map": lambda data: data.map(lambda row: {"id": row["id"] + 1}),
    "flat_map": lambda data: data.flat_map(lambda row: [row] * (row["id"] % 3)),
    "map_batches": lambda data: data.map_batches(lambda batch: {"id": batch["id"] * 2}),
    "accumulate": lambda data: data.accumulate(z=hr.Count()),
}


class OurSteps(StepContract):
    verb: Callable[[hr.Dataset], hr.Dataset]

    def make(self) -> Step:
        return type(self).verb(hr.from_arrow(TABLE))._plan.steps[0]

    def rows(self) -> pa.Table:
        return TABLE


for _name, _verb in VERBS.items():
    globals()[f"Test_{_name}"] = type(f"Test_{_name}", (OurSteps,), {"verb": staticmethod(_verb)})


@dataclass(frozen=True)
class Own(Step):
    """Drops rows without ``x`` and makes ``x`` one more, with one mistake or none."""

    mistake: str = ""
    verb = "own"

    @property
    def one_to_one(self) -> bool:  # type: ignore[override]
        return self.mistake == "one to one"

    def reads(self) -> tuple[str, ...]:
        return ("x",)

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        return needed if self.mistake == "needs" else super().needed_before(needed, schema)

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        return names[:-1] if names and self.mistake == "columns" else names

    def label(self) -> str:
        return "mine()" if self.mistake == "label" else "own()"

    def shape(self) -> dict[str, Any]:
        return {"verb": self.verb, "x": {1} if self.mistake == "shape" else 1}


@runs(Own)
class Owning(RunningStep[Own]):
    def run(self, rows: Iterator[Rows], callers: Sequence[Any], context: StepContext) -> Iterator[Rows]:
        for part in rows:
            mask = pc.is_valid(part.batch.column("x"))
            if self.step.mistake != "count":
                context.count_dropped(len(part) - mask.true_count)
            kept = part.masked(part.batch.filter(mask), mask.to_numpy(zero_copy_only=False))
            if self.step.mistake == "cut":
                kept = kept.with_batch(
                    kept.batch.append_column("first", pa.array([i == 0 for i in range(len(kept))]))
                )
            yield kept.with_batch(self.on_no_rows(kept.batch) if self.step.mistake != "types" else kept.batch)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        x = batch.column("x").cast(pa.float32()) if self.step.mistake == "types" else batch.column("x")
        return batch.set_column(batch.schema.get_field_index("x"), "x", pc.add(x, 1))


class TestOwn(StepContract):
    def make(self) -> Step:
        return Own()

    def rows(self) -> pa.Table:
        return TABLE

    def expected(self) -> list[dict[str, Any]]:
        return [{**row, "x": row["x"] + 1} for row in TABLE.to_pylist() if row["x"] is not None]


@pytest.mark.parametrize(
    ("mistake", "test", "says"),
    [
        ("count", "test_every_row_is_counted", "count_dropped"),
        ("cut", "test_any_cut_of_the_rows_gives_the_same", None),
        ("one to one", "test_it_tells_how_many_rows_come_out", None),
        ("columns", "test_it_tells_which_columns_come_out", None),
        ("types", "test_a_batch_without_rows_tells_the_columns", None),
        ("needs", "test_what_it_needs_is_read", "x"),
        ("label", "test_it_has_a_name_and_a_shape", None),
        ("shape", "test_it_has_a_name_and_a_shape", "set"),
    ],
)
def test_what_a_step_forgets_is_found(mistake: str, test: str, says: str | None) -> None:
    class Mistaken(TestOwn):
        def make(self) -> Step:
            return Own(mistake)

    given = [2] if "cut" in test or "counted" in test else []
    with pytest.raises(Exception, match=says):
        getattr(Mistaken(), test)(*given)
