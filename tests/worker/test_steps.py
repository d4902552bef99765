"""Steps at work: each kind has a running form, and a new kind needs nothing but its step and that."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import PlanError
from headrace.plan import steps
from headrace.plan.steps.base import OnBranch, Step
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps import base
from headrace.worker.steps.base import RunningStep, StepContext, running, runs


def kinds() -> Iterator[type[Step]]:
    for module in pkgutil.iter_modules(steps.__path__):
        for each in vars(importlib.import_module(f"{steps.__name__}.{module.name}")).values():
            if isinstance(each, type) and issubclass(each, Step) and "verb" in vars(each):
                yield each


def test_every_step_has_a_running_form() -> None:
    found = set(kinds()) - {OnBranch}  # which runs as the step within it does
    assert len(found) > 9
    for kind in found:
        assert type(running(object.__new__(kind))).__module__.startswith("headrace.worker.")
        of_a_write = kind.verb in signature(hr.Dataset.write_parquet).parameters  # such as `key=`
        assert of_a_write or callable(getattr(hr.Dataset, kind.verb))


def test_a_step_without_a_running_form_is_named() -> None:
    class Lost(Step):
        verb = "lost"

    Lost.__module__ = "headrace.plan.steps.base"
    with pytest.raises(PlanError, match="Lost has no class that does its work"):
        running(Lost())


@dataclass(frozen=True, slots=True)
class Round(Step):
    """A verb of the user's own: rounds one column."""

    column: str
    verb = "round"

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def label(self) -> str:
        return f"round({self.column})"

    def shape(self) -> dict[str, Any]:
        return {"verb": self.verb, "column": self.column}


class Rounding(RunningStep[Round]):
    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        return (part.with_batch(self.on_no_rows(part.batch)) for part in rows)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index(self.step.column)
        return batch.set_column(at, self.step.column, pc.round(batch.column(at)))


def test_a_new_verb_is_a_step_and_its_running_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(base, "_running", dict(base._running))
    runs(Round)(Rounding)
    data = hr.from_items([{"a": 1.4, "b": 1.5}, {"a": 2.6, "b": 2.5}]).with_options(
        engine="inline", progress=False
    )
    rounded = data.with_step(Round("a"))
    assert rounded.take_all() == [{"a": 1.0, "b": 1.5}, {"a": 3.0, "b": 2.5}]
    assert rounded.count() == 2
    assert rounded.schema() == data.schema()
    assert "round(a)" in str(rounded.explain()) and "round(a)" in repr(rounded)
    with pytest.raises(hr.errors.UnknownColumn, match=r"round\(c\) asks for column 'c'"):
        data.with_step(Round("c")).take_all()
    assert rounded.write_parquet(tmp_path / "out").ledger.steps == ((2, 2),)
    with pytest.raises(hr.errors.HeadraceError, match="step 1, round: column= was 'a', is 'b'"):
        data.with_step(Round("b")).write_parquet(tmp_path / "out")
