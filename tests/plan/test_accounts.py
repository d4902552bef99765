"""Rows that get lost, or come twice, end the run before they are committed: whoever loses them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.work import Done, Ledger, Shard, Split, Timings
from headrace.dataset.dataset import Dataset
from headrace.driver.shards import parts_of
from headrace.errors import LedgerMismatch
from headrace.output import runs as outputs
from headrace.plan.accounts import Accounts
from headrace.plan.logical import Plan
from headrace.sinks.files import PartWriter
from headrace.sources.range import RangeSource
from headrace.worker import attempt as worker
from headrace.worker import blocks as maker
from headrace.worker import blocks as taker
from headrace.worker.rows import Rows
from headrace.worker.steps import columns, map_batches, predict
from headrace.worker.steps import rows as row_steps

Change = Callable[[Iterator[Any]], Iterator[Any]]


def loses(items: Iterator[Any]) -> Iterator[Any]:
    """Lose the second of some things."""
    return (item for i, item in enumerate(items) if i != 1)


def repeats(items: Iterator[Any]) -> Iterator[Any]:
    """Let the second of some things come twice."""
    return (item for i, item in enumerate(items) for _ in range(1 + (i == 1)))


changes = pytest.mark.parametrize("change", [loses, repeats])


def double(batch: dict[str, Any]) -> Any:
    return batch["id"] * 2


def same(batch: dict[str, Any]) -> dict[str, Any]:
    return dict(batch)


def sevens_fail(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] % 10 == 7:
        raise ValueError("seven")
    return row


def data(rows: int = 1000, **options: Any) -> Dataset:
    return hr.range(rows).with_options(**{"engine": "inline", "progress": False, **options})


def kept(out: Path) -> int:
    """Return how many rows of an output are committed: what is wrong never is."""
    run = outputs.current_run(out) if (out / "_headrace").is_dir() else None
    return run.state.ledger.written if run is not None else 0


class TestSteps:
    """A step of ours that loses or repeats a batch."""

    @changes
    def test_predict(self, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        right = predict.predict
        monkeypatch.setattr(predict, "predict", lambda *args, **options: change(right(*args, **options)))
        plan = data().map_batches(same, batch_size=100).predict(double, inputs=["id"], output="twice")
        with pytest.raises(
            LedgerMismatch, match=r"in part 0 of the input, 1,000 rows came to predict\(double\) and"
        ):
            plan.write_parquet(tmp_path / "out")
        assert kept(tmp_path / "out") == 0

    @changes
    @pytest.mark.parametrize("step", ["select_columns", "drop_columns", "rename_columns"])
    def test_columns(
        self, change: Change, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = columns._ColumnStep.run
        monkeypatch.setattr(columns._ColumnStep, "run", lambda *args: change(right(*args)))
        what: Any = {"rename_columns": {"id": "x"}, "drop_columns": ["more"]}.get(step, ["id"])
        plan = data().map_batches(lambda b: {**b, "more": b["id"]}, batch_size=100)
        with pytest.raises(LedgerMismatch, match=step):
            getattr(plan, step)(what).write_parquet(tmp_path / "out")

    @changes
    @pytest.mark.parametrize("verb", ["map", "flat_map", "filter"])
    def test_row_steps(self, change: Change, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
        name = {"map": "map_rows", "flat_map": "flat_map", "filter": "filter_rows"}[verb]
        right = getattr(row_steps, name)
        monkeypatch.setattr(row_steps, name, lambda *args: change(right(*args)))
        function = {
            "map": lambda row: dict(row),
            "flat_map": lambda row: [row] * (row["id"] % 3),
            "filter": lambda row: True,
        }[verb]
        plan = data(on_error="reject").map_batches(same, batch_size=100)
        with pytest.raises(LedgerMismatch, match=verb):
            getattr(plan, verb)(function).count()

    @changes
    def test_map_batches(self, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
        right = map_batches.map_batches
        monkeypatch.setattr(map_batches, "map_batches", lambda *args, **more: change(right(*args, **more)))
        with pytest.raises(LedgerMismatch, match="map_batches"):
            data().map_batches(lambda b: {"x": b["id"][::2]}, batch_size=100).count()

    def test_one_that_keeps_every_row_may_not_say_that_it_dropped_some(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = row_steps.map_rows

        def forgetful(rows: Iterator[Rows], call: Any, guard: Any) -> Iterator[Rows]:
            for part in right(rows, call, guard):
                guard.count_dropped(1)
                yield part.cut(1, len(part))

        monkeypatch.setattr(row_steps, "map_rows", forgetful)
        with pytest.raises(LedgerMismatch, match="keeps every row, and dropped 1 and added 0"):
            data(on_error="reject").map(same).count()

    @changes
    def test_before_a_limit_that_is_not_reached(
        self, change: Change, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = map_batches.map_batches
        monkeypatch.setattr(map_batches, "map_batches", lambda *args, **more: change(right(*args, **more)))
        with pytest.raises(LedgerMismatch, match="map_batches"):
            data().map_batches(same, batch_size=100).limit(5000).count()

    def test_a_row_twice_before_a_limit_that_is_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = columns._ColumnStep.run
        monkeypatch.setattr(columns._ColumnStep, "run", lambda *args: repeats(right(*args)))
        with pytest.raises(LedgerMismatch, match="select_columns"):
            data().map_batches(same, batch_size=100).select_columns(["id"]).limit(250).count()


def many() -> Dataset:
    """Return what is read in ten batches."""
    return Dataset(Plan(RangeSource(1000, rows_per_split=100)), data()._options)


@changes
@pytest.mark.parametrize("on_error", ["raise", "reject"])
def test_reading_that_gives_other_rows_than_the_source_has(
    change: Change, on_error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = worker.count_read
    monkeypatch.setattr(worker, "count_read", lambda reads, meter: right(change(reads), meter))
    with pytest.raises(LedgerMismatch, match=r"the source has 1,000 rows and (900|1,100) were read"):
        many().with_options(on_error=on_error).write_parquet(tmp_path / "out")


class TestSinks:
    """A writer that loses or repeats what it was given."""

    @changes
    @pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
    def test_parts(self, change: Change, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        forgets(monkeypatch, change, "part-")
        plan = data().map_batches(same, batch_size=100)
        with pytest.raises(
            LedgerMismatch, match=r"1,000 rows came to the writer and its files have (900|1,100)"
        ):
            getattr(plan, f"write_{kind}")(tmp_path / "out")
        assert not list((tmp_path / "out").glob("part-*"))

    def test_rejected_rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.worker.staged_output.REJECTED_ROWS", 30)
        forgets(monkeypatch, loses, "_rejected/")
        with pytest.raises(
            LedgerMismatch, match="100 rows were rejected and the files of rejected rows have 70"
        ):
            data(on_error="reject").map(sevens_fail).write_parquet(tmp_path / "out")

    def test_what_was_committed_before_is_kept_and_a_run_after_it_completes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = RangeSource(1000, rows_per_split=250)
        plan = Dataset(Plan(source), data(shard_rows=250)._options).map_batches(same, batch_size=50)
        with monkeypatch.context() as broken:
            forgets(broken, loses, "part-00002")
            with pytest.raises(LedgerMismatch, match="in part 2 of the input, 250 rows came to the writer"):
                plan.write_parquet(tmp_path / "out")
        assert kept(tmp_path / "out") == 500
        with monkeypatch.context() as broken:  # on resume as well
            forgets(broken, repeats, "part-00003")
            with pytest.raises(LedgerMismatch, match="in part 3 of the input, 250 rows came to the writer"):
                plan.write_parquet(tmp_path / "out")
        result = plan.write_parquet(tmp_path / "out")
        assert (result.rows, result.resumed) == (1000, True)
        assert hr.verify(tmp_path / "out").good


def forgets(monkeypatch: pytest.MonkeyPatch, change: Change, name: str) -> None:
    """Have the encoder of files whose names begin so change what it is given."""
    begun = PartWriter._opened_encoder

    def wrong(self: PartWriter) -> Any:
        encoder = begun(self)
        if self._name.startswith(name) and not isinstance(encoder, _Wrong):
            self._encoder = encoder = _Wrong(encoder, change)
        return encoder

    monkeypatch.setattr(PartWriter, "_opened_encoder", wrong)


class _Wrong:
    """An encoder whose second batch is lost, or comes twice."""

    def __init__(self, encoder: Any, change: Change) -> None:
        self._encoder, self._change, self._at = encoder, change, 0

    def write(self, batch: pa.RecordBatch) -> None:
        for at in self._change(iter(range(self._at + 1))):
            if at == self._at:
                self._encoder.write(batch)
        self._at += 1

    def close(self) -> int:
        return int(self._encoder.close())


class Breaks:
    """Breaks the worker process that constructs it: what stands behind ``place`` loses or repeats a batch."""

    def __init__(self, place: str, change: Change) -> None:
        if place == "made":
            grouped = maker._grouped
            maker._grouped = lambda rows, size: grouped(change(rows), size)
        elif place == "given":
            grouped = maker._grouped
            maker._grouped = lambda rows, size: (list(change(iter(parts))) for parts in grouped(rows, size))
        else:
            take = taker.rows_of_block
            taker.rows_of_block = lambda *args: change(take(*args))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return dict(batch)


@pytest.mark.parametrize(("place", "change"), [("made", loses), ("given", repeats), ("taken", loses)])
def test_a_batch_between_two_stages(change: Change, place: str, tmp_path: Path) -> None:
    """Workers are processes of their own, so what breaks them arrives in a step."""
    options = data(engine="local", on_error="reject")._options
    plan = Dataset(Plan(RangeSource(20_000, rows_per_split=20_000)), options)
    breaks: Any = {"fn_constructor_args": (place, change), "concurrency": 1, "batch_size_bytes": 520_000}
    plain: Any = {"concurrency": 1, "num_cpus": 1}
    if place == "taken":
        plan = plan.map_batches(wide, batch_size_bytes=8_000, **plain).map_batches(Breaks, **breaks)
    else:
        plan = plan.map_batches(wide, batch_size_bytes=8_000, concurrency=1).map_batches(Breaks, **breaks)
        plan = plan.map_batches(same, **plain)
    with pytest.raises(LedgerMismatch, match="rows"):
        plan.write_parquet(tmp_path / "out")
    assert kept(tmp_path / "out") == 0


def wide(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "heavy": np.zeros((len(batch["id"]), 64))}


def test_parts_of_a_shard_have_its_rows() -> None:
    shard = Shard(3, (Split(0, 0, 1, 100), Split(0, 1, 2, 50)))
    accounts = Accounts([], writes=False)
    for part in parts_of(shard, 60, 7):
        rows = part.rows
        assert accounts.check(part, Done(part.index, 0, (), Ledger(rows, rows), Timings())) is None
        told = accounts.check(part, Done(part.index, 0, (), Ledger(150, 150), Timings()))
        assert told is not None and "the source has 30 rows and 150 were read" in told.message
    whole = accounts.check(shard, Done(3, 0, (), Ledger(30, 30), Timings()))
    assert (
        whole is not None
        and "in part 3 of the input, the source has 150 rows and 30 were read" in whole.message
    )


class TestVerify:
    """What stands in an output is checked again, by the same rules."""

    def test_a_record_that_lost_rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a version that did not check would have written it."""
        monkeypatch.setattr(Accounts, "check", lambda self, shard, done: None)
        right = columns._ColumnStep.run
        with monkeypatch.context() as broken:
            broken.setattr(columns._ColumnStep, "run", lambda *args: loses(right(*args)))
            data().map_batches(same, batch_size=100).select_columns(["id"]).write_parquet(tmp_path / "out")
        found = hr.verify(tmp_path / "out")
        assert not found.good
        assert "its counts of rows do not agree: 1,000 rows came to step 2 and 900 left it" in str(found)

    def test_a_source_that_was_not_read_to_its_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Accounts, "check", lambda self, shard, done: None)
        right = worker.count_read
        monkeypatch.setattr(worker, "count_read", lambda reads, meter: right(loses(reads), meter))
        many().write_parquet(tmp_path / "out")
        assert "it has 1,000 rows, and 900 were read" in str(hr.verify(tmp_path / "out"))

    @pytest.mark.parametrize("name", ["rows_in", "dropped", "unused"])
    def test_totals_that_say_something_else(self, tmp_path: Path, name: str) -> None:
        data().filter(lambda row: row["id"] > 7).write_parquet(tmp_path / "out")
        path = tmp_path / "out" / "_SUCCESS"
        told = json.loads(path.read_text())
        told["ledger"]["steps"][0][name] += 1
        path.write_text(json.dumps(told))
        assert "ledger.steps is" in str(hr.verify(tmp_path / "out"))
