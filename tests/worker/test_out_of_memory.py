"""Out of memory in a step: batches shrink until they fit, and every row's result is there once, in order."""

from __future__ import annotations

import gc
import importlib
import shutil
import sys
import time
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.core.arrow.batch import concat
from headrace.core.events import BatchShrunk
from headrace.core.work import PoisonRows, Split
from headrace.engines.inline import InlinePool
from headrace.errors import StepError
from headrace.output import journal as journals
from headrace.output.journal_state import Lowered
from headrace.plan.functions import Function
from headrace.plan.steps.functions import MapBatches
from headrace.plan.steps.predict import Model, Predict
from headrace.sources.range import RangeSource
from headrace.worker.messages import is_out_of_memory, make_room
from headrace.worker.meter import Meter, StepCounts
from headrace.worker.rows import Rows, RowSpan
from headrace.worker.steps.base import StepChain

COLLECT = gc.collect
Batch = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(autouse=True, scope="module")
def light() -> Iterator[None]:
    """Collecting garbage takes a second in a process that has loaded all that the other tests load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.worker.messages.gc.collect", lambda: 0)
        yield


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch names its own."""


def kind(module: str, name: str, *bases: type) -> type[Exception]:
    return type(name, bases or (Exception,), {"__module__": module})


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((1 << 60,), np.dtype(float)),
        pa.ArrowMemoryError("malloc of size 1 failed"),
        OutOfMemoryError("Tried to allocate 20.00 MiB"),
        kind("torch.cuda", "OutOfMemoryError", RuntimeError)("CUDA"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        kind("onnxruntime.capi.onnxruntime_pybind11_state", "RuntimeException")(
            "bfc_arena.cc:376 onnxruntime::BFCArena::AllocateRawInternal Available memory of 1 is smaller"
        ),
        kind("onnxruntime.capi.onnxruntime_pybind11_state", "Fail")("Failed to allocate memory for requested buffer"),
        kind("tensorflow.python.framework.errors_impl", "ResourceExhaustedError")("OOM when allocating tensor"),
        kind("xgboost.core", "XGBoostError", ValueError)("Memory allocation error on worker 0: bad allocation"),
        kind("xgboost.core", "XGBoostError", ValueError)("cudaErrorMemoryAllocation: out of memory"),
        kind("lightgbm.basic", "LightGBMError")("std::bad_alloc"),
    ],
)  # fmt: skip
def test_what_is_out_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)
    wrapped = ValueError("it failed")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("out of range"),
        OSError(28, "No space left on device"),
        KeyError("MemoryError"),
        kind("xgboost.core", "XGBoostError", ValueError)("feature_names mismatch"),
        kind("torch", "AcceleratorError", RuntimeError)("illegal memory access"),
    ],
)
def test_what_is_not(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_causes_in_a_circle_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert not is_out_of_memory(one)


def test_an_error_that_cannot_speak() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise OSError("no words")

    assert not is_out_of_memory(Mute())


def test_room_is_made_on_the_device_only_if_it_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def empty_cache() -> None:
        done.append("emptied")
        raise RuntimeError("CUDA error: device-side assert triggered")

    cuda = types.SimpleNamespace(is_initialized=lambda: "used" in done, empty_cache=empty_cache)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    make_room()
    assert done == []
    done.append("used")
    make_room()
    assert done == ["used", "emptied"]


# ---------------------------------------------------------------- in steps


class Bears:
    """Bears so many rows at a time; notes how many it got."""

    def __init__(self, rows: int, error: Callable[[], Exception] = MemoryError) -> None:
        self.rows = rows
        self.error = error
        self.calls: list[int] = []

    def check(self, batch: Batch) -> None:
        self.calls.append(len(batch["id"]))
        if self.calls[-1] > self.rows:
            raise self.error()


def as_function(bears: Bears) -> Any:
    def doubled(batch: Batch) -> Batch:
        bears.check(batch)
        return {"id": batch["id"], "double": batch["id"] * 2}

    return doubled


def as_class(bears: Bears) -> Any:
    class Doubled:
        def __init__(self) -> None:
            self.call = as_function(bears)

        def __call__(self, batch: Batch) -> Batch:
            done: Batch = self.call(batch)
            return done

    return Doubled


def as_generator(bears: Bears) -> Any:
    def doubled(batch: Batch) -> Iterator[Batch]:
        buffer = np.zeros(1, np.int64)
        for value in batch["id"][:1]:
            buffer[0] = value
            yield {"id": buffer, "double": buffer * 2}  # thrown away if what follows fails
        bears.check(batch)
        for value in batch["id"][1:]:
            buffer[0] = value
            yield {"id": buffer, "double": buffer * 2}

    return doubled


class Predictor:
    def __init__(self, bears: Bears) -> None:
        self.bears = bears
        self.ends: list[str] = []

    def load(self) -> None:
        self.ends.append("load")

    def predict(self, batch: Batch) -> Any:
        self.bears.check(batch)
        return {"double": batch["id"] * 2}

    def close(self) -> None:
        self.ends.append("close")


def map_step(fn: Any, size: int | None) -> MapBatches:
    return MapBatches(Function(fn), size, "numpy", None)


def predict_step(model: Any, size: int | None) -> Predict:
    return Predict((Model(Function(model, model=True), "double", ("id",), False, size, "numpy"),), None, True)


KINDS: dict[str, Callable[[Bears, int | None], Any]] = {
    "function": lambda bears, size: map_step(as_function(bears), size),
    "class": lambda bears, size: map_step(as_class(bears), size),
    "generator": lambda bears, size: map_step(as_generator(bears), size),
    "predictor": lambda bears, size: predict_step(Predictor(bears), size),
    "predicting function": lambda bears, size: predict_step(as_function(bears), size),
}


def rows_of(batch: pa.RecordBatch, *cuts: int) -> Iterator[Rows]:
    for start, stop in zip([0, *cuts], [*cuts, batch.num_rows], strict=True):
        yield Rows(batch.slice(start, stop - start), (RowSpan(Split(0, 0, 1), start, stop - start),))


def ids(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(rows))})


def where(rows: Rows) -> str:
    numbers = [span.bounds() for span in rows.spans]
    return f"rows {numbers[0][0]} to {numbers[-1][1]}"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=few(16))  # collecting garbage takes its time
@given(rows=st.integers(1, 100), fits=st.integers(1, 100), size=st.none() | st.integers(1, 100))
def test_every_result_is_there_once_and_in_order(kind: str, rows: int, fits: int, size: int | None) -> None:
    bears = Bears(fits, OutOfMemoryError)
    meter = Meter(1)
    sent: list[Any] = []
    meter.report_to(SimpleNamespace(worker=0, notify=sent.append), PoisonRows(), 0)
    chain = StepChain([KINDS[kind](bears, size)], where)
    done = list(chain.run(rows_of(ids(rows), rows // 3), meter, []))
    chain.close()
    whole = concat([part.batch for part in done])
    assert whole.column("id").to_pylist() == list(range(rows))
    doubled = "double_double" if kind == "predicting function" else "double"  # it gives two columns
    assert whole.column(doubled).to_pylist() == [2 * i for i in range(rows)]
    assert meter.steps == [StepCounts(rows, rows)] and meter.done_rows == rows
    failed = [call for call in bears.calls if call > fits]
    told = [(each.before, each.now) for each in sent if isinstance(each, BatchShrunk)]
    assert [before for before, _ in told] == failed, "each size that fails is tried once"
    assert all(now == before // 2 for before, now in told)
    if told:
        ceiling = told[-1][1]
        assert max(bears.calls[bears.calls.index(failed[-1]) + 1 :]) <= ceiling


def test_the_ceiling_is_remembered_for_the_workers_life() -> None:
    bears = Bears(30)
    chain = StepChain([KINDS["function"](bears, 100)], where)
    sizes = [len(part) for part in chain.run(rows_of(ids(100)), Meter(1), [])]
    assert bears.calls == [100, 50, *[25] * 4] and sizes == [25] * 4
    bears.calls.clear()
    assert sum(map(len, chain.run(rows_of(ids(60)), Meter(1), []))) == 60
    assert bears.calls == [25, 25, 10]


def test_each_model_has_a_ceiling_of_its_own() -> None:
    small, large = Bears(10), Bears(1000)
    models = tuple(
        Model(Function(Predictor(bears), model=True), name, ("id",), True, 40, "numpy")
        for name, bears in (("a", small), ("b", large))
    )
    chain = StepChain([Predict(models, None, False)], where)
    whole = concat([part.batch for part in chain.run(rows_of(ids(80)), Meter(1), [])])
    chain.close()
    assert whole.column("a").equals(whole.column("b"))
    assert small.calls == [40, 20, *[10] * 8] and large.calls == [40, 40]


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_that_does_not_fit(kind: str) -> None:
    bears = Bears(0, lambda: MemoryError("Unable to allocate 8 TiB"))
    chain = StepChain([KINDS[kind](bears, 8)], where)
    with pytest.raises(StepError, match=r"MemoryError: Unable to allocate 8 TiB\. .*with a single row.*memory=.*"
                       r"It was working on rows 0 to 0: ") as caught:  # fmt: skip
        list(chain.run(rows_of(ids(20)), Meter(1), []))
    chain.close()
    assert bears.calls == [8, 4, 2, 1]
    assert isinstance(caught.value.__cause__, MemoryError)


def test_a_row_in_the_middle_that_is_too_big() -> None:
    def fn(batch: Batch) -> Batch:
        if 13 in batch["id"]:
            raise MemoryError
        return batch

    chain = StepChain([map_step(fn, 8)], where)
    seen: list[int] = []
    with pytest.raises(StepError, match=r"MemoryError\. This happened with a single row.*rows 13 to 13"):
        for part in chain.run(rows_of(ids(20)), Meter(1), []):
            seen += part.batch.column("id").to_pylist()
    assert seen == list(range(13)), "what came before is delivered"


def test_other_errors_are_not_a_lack_of_memory() -> None:
    calls: list[int] = []

    def fn(batch: Batch) -> Batch:
        calls.append(len(batch["id"]))
        if calls[-1] > 5:
            raise MemoryError
        raise ValueError("no")

    with pytest.raises(StepError, match=r"ValueError: no\. It was working on rows 0 to 0: id=0\."):
        list(StepChain([map_step(fn, 10)], where).run(rows_of(ids(10)), Meter(1), []))
    assert calls == [10, 5, 2, 1], "only the first row at fault is looked for"


def test_what_the_failed_call_held_is_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.worker.messages.gc.collect", COLLECT)

    class Big:
        pass

    held: list[weakref.ref[Big]] = []

    def fn(batch: Batch) -> Batch:
        assert all(ref() is None for ref in held)
        big = Big()
        big.itself = big  # type: ignore[attr-defined]
        held.append(weakref.ref(big))
        if len(batch["id"]) > 2:
            raise MemoryError
        held.clear()
        return batch

    assert sum(map(len, StepChain([map_step(fn, 8)], where).run(rows_of(ids(8)), Meter(1), []))) == 8


@pytest.mark.parametrize("name", ["map_batches.from_result", "predict.from_columns"])
def test_memory_may_run_out_as_the_result_is_converted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function = name.split(".")
    module = f"headrace.worker.steps.{module}"
    convert = getattr(importlib.import_module(module), function)

    def tight(result: Any, *rest: Any) -> Any:
        if len(next(iter(result.values()))) > 3:
            raise pa.ArrowMemoryError("malloc of size 64 failed")
        return convert(result, *rest)

    monkeypatch.setattr(f"{module}.{function}", tight)
    step = map_step(lambda b: b, 10) if "map_batches" in name else predict_step(lambda b: b["id"], 10)
    done = list(StepChain([step], where).run(rows_of(ids(10)), Meter(1), []))
    assert concat([part.batch for part in done]).columns[-1].to_pylist() == [*range(10)]


# ---------------------------------------------------------------- in a run


def test_a_run_counts_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    begin = InlinePool.__init__

    def spy(self: Any, spec: Any, notify: Any, *rest: Any) -> None:
        begin(self, spec, lambda worker, message: (told.append(message), notify(worker, message))[1], *rest)

    monkeypatch.setattr(InlinePool, "__init__", spy)

    def heavy(batch: Batch) -> Batch:
        if len(batch["id"]) > 16:
            raise MemoryError
        return batch

    data = hr.range(100).with_options(engine="inline", progress=False)
    done = data.map_batches(heavy, batch_size=50).write_parquet(tmp_path / "out")
    assert done.rows == 100
    files = sorted((tmp_path / "out").glob("part-*"))
    assert pa.concat_tables(pq.read_table(file) for file in files).column("id").to_pylist() == list(
        range(100)
    )
    label = "map_batches(test_a_run_counts_and_tells.heavy)"
    shrunk = [event for event in told if isinstance(event, BatchShrunk)]
    assert shrunk == [BatchShrunk(0, label, 50, 25), BatchShrunk(0, label, 25, 12)]
    assert done.summary.splitlines()[-1] == (
        f"memory: {label} got 12 rows at a time, more did not fit; batches of that size would avoid retries"
    )


def test_the_summary_names_every_step_of_every_stage(tmp_path: Path) -> None:
    def above(most: int) -> Any:
        def heavy(batch: Batch) -> Batch:
            if len(batch["id"]) > most:
                raise MemoryError
            return batch

        return heavy

    data = hr.range(2_000).with_options(engine="local", workers=1, progress=False)
    data = data.map_batches(above(30), batch_size=200, num_cpus=1)
    done = data.predict(above(7), inputs=["id"], replace=True, concurrency=2, batch_size=80)
    told = [
        line
        for line in done.write_parquet(tmp_path / "out").summary.splitlines()
        if line.startswith("memory: ")
    ]
    assert [line.partition(" got ")[2].partition(" at a time")[0] for line in told] == ["25 rows", "5 rows"]
    assert told[0].startswith("memory: map_batches(") and told[1].startswith("memory: predict(")


# ---------------------------------------------------------------- what one worker finds, others know


def test_what_others_found_to_fit_is_not_tried() -> None:
    bears = Bears(30)
    chain = StepChain([map_step(as_function(bears), 50)], where)
    label = "map_batches(as_function.doubled)"
    for ceilings, calls in (
        ({label: 20}, [20, 20, 10, 20, 20, 10]),
        ({label: 40, "other": 1}, [20, 20, 10] * 2),
    ):
        bears.calls.clear()
        assert sum(map(len, chain.run(rows_of(ids(100)), Meter(1), [], ceilings))) == 100
        assert bears.calls == calls


def ranged(rows: int) -> hr.Dataset:
    return hr.Dataset.from_source(RangeSource(rows, rows_per_split=100))


def notes(out: Path) -> list[Lowered]:
    (journal,) = out.glob("_headrace/*/journal")
    return [note for note in journals.read(journal).notes() if isinstance(note, Lowered)]


def sizes_in(folder: Path) -> list[int]:
    return [int(file.name.partition("-")[0]) for file in folder.iterdir()]


def test_a_ceiling_is_told_to_later_attempts_and_outlives_its_driver(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()

    def heavy(batch: Batch) -> Batch:
        (seen / f"{len(batch['id'])}-{uuid.uuid4()}").touch()
        if len(batch["id"]) > 12:
            raise MemoryError
        if batch["id"][-1] >= 900 and not (tmp_path / "mended").exists():
            raise ValueError("not yet")
        return batch

    data = ranged(1_000).with_options(engine="local", workers=1, progress=False, shard_rows=100)
    data = data.map_batches(heavy, batch_size=50, version="1")
    with pytest.raises(StepError, match="not yet"):
        data.write_parquet(tmp_path / "out")
    (label,) = {note.step for note in notes(tmp_path / "out")}
    assert [note.rows for note in notes(tmp_path / "out")] == [25, 12]

    shutil.rmtree(seen)
    seen.mkdir()
    (tmp_path / "mended").touch()
    assert data.write_parquet(tmp_path / "out").rows == 1_000
    assert max(sizes_in(seen)) == 12, f"{label} is not tried with more again"


def test_workers_tell_each_other_through_the_driver(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    tried.mkdir()

    def heavy(batch: Batch) -> Batch:
        if len(batch["id"]) > 12:
            (tried / f"{len(batch['id'])}-{uuid.uuid4()}").touch()
            raise MemoryError
        time.sleep(0.01)
        return batch

    first = {"batch_size": 100, "num_cpus": 1}
    data = ranged(2_000).with_options(engine="local", workers=2, progress=False, shard_rows=100)
    data.map_batches(heavy, **first).map_batches(as_it_is, concurrency=1).write_parquet(tmp_path / "out")
    assert len(sizes_in(tried)) <= 8, "each of two workers tries 100, 50 and 25 once at most"


def as_it_is(batch: Batch) -> Batch:
    return batch
