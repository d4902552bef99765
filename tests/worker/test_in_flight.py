"""Functions and models that wait: several batches at a time, results in order, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.core.arrow.batch import concat
from headrace.core.work import PoisonRows, Split
from headrace.errors import BadReturn, StepError
from headrace.plan.functions import Function
from headrace.plan.steps.base import Step
from headrace.plan.steps.functions import MapBatches
from headrace.plan.steps.predict import Model, Predict
from headrace.sources.range import RangeSource
from headrace.worker.calls import IN_FLIGHT
from headrace.worker.meter import Meter, StepCounts
from headrace.worker.rows import Rows, RowSpan
from headrace.worker.steps.base import StepChain

Batch = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = {thread.name for thread in set(threading.enumerate()) - before}
    left -= {"headrace-spawn"}  # which the tests keep for the next run
    assert not any(name.startswith("headrace") for name in left)


class Shared:
    """Counts in one place: a worker's own copy of it would count for itself."""

    def __copy__(self) -> Any:
        return self


class Endpoint(Shared):
    """Doubles ids, and ends calls in any order; ``gather``: none ends before so many are there together."""

    def __init__(self, gather: int = 0, seed: int = 0, fails: Callable[[Batch], bool] | None = None) -> None:
        self.gather = gather
        self.chance = random.Random(seed)
        self.fails = fails
        self.now = self.most = self.cancelled = 0
        self.asked: list[int] = []
        self.full: asyncio.Event | None = None

    async def __call__(self, batch: Batch) -> Batch:
        self.full = self.full or asyncio.Event()
        self.asked.append(int(batch["id"][0]))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.now >= self.gather:
                self.full.set()
            await self.full.wait()
            for _ in range(self.chance.randrange(8)):
                await asyncio.sleep(0)
            if self.fails and self.fails(batch):
                raise OSError("503 Service Unavailable")
            return {"id": batch["id"], "double": batch["id"] * 2}
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1


class Desk(Shared):
    """The same for threads."""

    def __init__(self, gather: int) -> None:
        self.barrier = threading.Barrier(gather)
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __call__(self, batch: Batch) -> Batch:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.barrier.wait()
        with self.lock:
            self.now -= 1
        return {"id": batch["id"], "double": batch["id"] * 2}


def map_step(fn: Any, size: int | None, most: int | None = None) -> MapBatches:
    return MapBatches(Function(fn), size, "numpy", None, max_in_flight=most)


def predict_step(model: Any, size: int | None, most: int | None = None, name: str = "p") -> Predict:
    function = Function(model, model=True)
    return Predict((Model(function, name, ("id",), False, size, "numpy", max_in_flight=most),), None, True)


def rows_of(rows: int, *cuts: int) -> Iterator[Rows]:
    batch = pa.record_batch({"id": pa.array(range(rows))})
    for start, stop in zip([0, *cuts], [*cuts, rows], strict=True):
        yield Rows(batch.slice(start, stop - start), (RowSpan(Split(0, 0, 1), start, stop - start),))


def where(rows: Rows) -> str:
    return f"rows {rows.spans[0].bounds()[0]} to {rows.spans[-1].bounds()[1]}"


def run(steps: list[Step], rows: Iterator[Rows], meter: Meter | None = None) -> pa.RecordBatch:
    chain = StepChain(steps, where)
    try:
        done = chain.run(rows, meter or Meter(len(steps)), [])
        return concat([part.batch for part in done])
    finally:
        chain.close()


def asking(endpoint: Endpoint) -> Callable[[Batch], Any]:
    async def ask(batch: Batch) -> Batch:
        return await endpoint(batch)

    return ask


class Remote(Shared):
    """A predictor all of whose methods are at home on the event loop."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint
        self.loops: list[Any] = []

    async def load(self) -> None:
        self.loops.append(asyncio.get_running_loop())

    async def predict(self, batch: Batch) -> Any:
        self.loops.append(asyncio.get_running_loop())
        return (await self.endpoint(batch))["double"]

    async def close(self) -> None:
        self.loops.append(asyncio.get_running_loop())


# ---------------------------------------------------------------- how many


@pytest.mark.parametrize("make", [asking, lambda endpoint: endpoint], ids=["function", "object"])
@pytest.mark.parametrize(("most", "expected"), [(1, 1), (3, 3), (None, IN_FLIGHT)])
def test_so_many_are_in_flight(make: Any, most: int | None, expected: int) -> None:
    endpoint = Endpoint(gather=expected)
    whole = run([map_step(make(endpoint), 5, most)], rows_of(200, 31, 100))
    assert endpoint.most == expected
    assert endpoint.asked == list(range(0, 200, 5))
    assert whole.column("double").to_pylist() == [2 * i for i in range(200)]


def test_so_many_threads_are_at_work() -> None:
    desk = Desk(4)
    step = Predict(
        (Model(Function(desk, model=True), "p", None, False, 5, "numpy", max_in_flight=4),), None, True
    )
    whole = run([step], rows_of(40, 7))
    assert desk.most == 4
    assert whole.column("p_double").to_pylist() == [2 * i for i in range(40)]


def test_a_plain_function_is_called_in_the_workers_own_thread() -> None:
    seen: set[int] = set()

    def fn(batch: Batch) -> Batch:
        seen.add(threading.get_ident())
        return batch

    run([map_step(fn, 5), map_step(fn, 5, 1)], rows_of(20))
    assert seen == {threading.get_ident()}


def test_no_event_loop_is_made_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: pytest.fail("nobody needs it"))
    run([map_step(lambda b: b, 5), predict_step(lambda b: b["id"], 5, 3)], rows_of(20))


def test_attempts_side_by_side_share_the_places() -> None:
    endpoint = Endpoint()
    chain = StepChain([map_step(endpoint, 1, 3)], where)
    one, two = (chain.run(rows_of(20), Meter(1), []) for _ in range(2))
    pairs = list(zip(one, two, strict=True))
    assert [len(pairs), endpoint.most <= 3] == [20, True]
    chain.close()


# ---------------------------------------------------------------- order


@settings(max_examples=few(12))
@given(
    rows=st.integers(1, 80),
    cuts=st.lists(st.integers(0, 80), max_size=4),
    sizes=st.lists(st.none() | st.integers(1, 90), min_size=3, max_size=3),
    most=st.lists(st.none() | st.integers(1, 6), min_size=3, max_size=3),
    seed=st.integers(0, 1000),
)
def test_any_sizes_and_any_order_of_ends_give_the_same_rows(
    rows: int, cuts: list[int], sizes: list[int | None], most: list[int | None], seed: int
) -> None:
    endpoints = [Endpoint(seed=seed + i) for i in range(2)]
    steps: list[Step] = [
        map_step(asking(endpoints[0]), sizes[0], most[0]),
        predict_step(Remote(endpoints[1]), sizes[1], most[1]),
        predict_step(lambda b: b["id"] + 1, sizes[2], most[2], "q"),
    ]
    meter = Meter(3)
    whole = run(steps, rows_of(rows, *sorted(min(cut, rows) for cut in cuts)), meter)
    assert whole.to_pydict() == {
        "id": list(range(rows)),
        "double": [2 * i for i in range(rows)],
        "p": [2 * i for i in range(rows)],
        "q": [i + 1 for i in range(rows)],
    }
    assert meter.steps == [StepCounts(rows, rows)] * 3 and meter.done_rows == rows
    for endpoint, k in zip(endpoints, most[:2], strict=True):
        assert endpoint.most <= (k or IN_FLIGHT)


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_an_error_names_its_rows_and_comes_in_its_turn(kind: str) -> None:
    endpoint = Endpoint(gather=4, fails=lambda batch: 20 in batch["id"])
    going = threading.Event()

    def plain(batch: Batch) -> Batch:
        if batch["id"][0] == 20:
            going.set()
            raise OSError("503 Service Unavailable")
        assert going.wait() or batch["id"][0] > 20, "the error comes before the results before it"
        return batch

    chain = StepChain(
        [map_step(endpoint if kind == "async" else plain, 5, 5 if kind == "threads" else 4)], where
    )
    seen: list[int] = []
    with pytest.raises(
        StepError, match=r"OSError: 503 Service Unavailable. It was working on rows 20 to 20: id=20\."
    ):
        for part in chain.run(rows_of(200), Meter(1), []):
            seen += part.batch.column("id").to_pylist()
    assert seen == list(range(20))
    assert endpoint.now == 0, "nothing is at work any more"
    chain.close()


def test_those_behind_an_error_are_cancelled() -> None:
    forever: list[asyncio.Event] = []
    told: list[str] = []

    async def ask(batch: Batch) -> Batch:
        if batch["id"][0] == 0:
            while len(forever) < 3:
                await asyncio.sleep(0)
            raise OSError("503")
        forever.append(asyncio.Event())
        try:
            await forever[-1].wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            await asyncio.sleep(0)
            told.append("cleaned up")
            raise
        return batch

    with pytest.raises(StepError, match="503"):
        run([map_step(ask, 1, 4)], rows_of(50))
    assert sorted(told) == ["cancelled"] * 3 + ["cleaned up"] * 3


def test_giving_up_an_attempt_cancels_what_is_in_flight() -> None:
    endpoint = Endpoint()
    chain = StepChain([map_step(endpoint, 1, 8)], where)
    parts = chain.run(rows_of(100), Meter(1), [])
    next(parts)
    del parts
    assert endpoint.now == 0 and len(endpoint.asked) <= 8
    assert sum(map(len, chain.run(rows_of(30), Meter(1), []))) == 30, "the worker goes on"
    chain.close()


def test_a_chain_can_be_loaded_again_after_it_was_closed() -> None:
    remote = Remote(Endpoint())
    chain = StepChain([predict_step(remote, 5)], where)
    for _ in range(2):
        assert sum(map(len, chain.run(rows_of(30), Meter(1), []))) == 30
        chain.close()


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyError("x"), StopIteration()])
def test_odd_errors_of_coroutines(error: BaseException) -> None:
    async def ask(batch: Batch) -> Batch:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(StepError, match=r"StopIteration|" + type(error).__name__):
        run([map_step(ask, 5)], rows_of(20))


def test_what_a_task_of_the_users_raises_ends_no_worker() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def ask(batch: Batch) -> Batch:
        task = asyncio.get_running_loop().create_task(leave())
        while not task.done():
            await asyncio.sleep(0)
        task.exception()
        return batch

    assert run([map_step(ask, 5)], rows_of(20)).num_rows == 20


def test_tasks_that_are_left_are_cancelled_at_the_end() -> None:
    told: list[str] = []

    async def beat() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("ended")

    class Beats:
        def __init__(self) -> None:
            self.task = asyncio.get_running_loop().create_task(beat())

        async def __call__(self, batch: Batch) -> Batch:
            return batch

    run([map_step(Beats, 5)], rows_of(20))
    assert told == ["ended"]


def test_a_class_that_cannot_be_made_on_the_loop() -> None:
    class Broken:
        def __init__(self) -> None:
            raise OSError("no route to host")

        async def __call__(self, batch: Batch) -> Batch:
            return batch

    with pytest.raises(StepError, match=r"Broken could not be constructed .*no route to host"):
        run([map_step(Broken, 5)], rows_of(20))


def test_a_coroutine_that_nobody_announced() -> None:
    endpoint = Endpoint()
    with pytest.raises(BadReturn, match="it returned a coroutine: define the function with `async def`"):
        run([map_step(lambda batch: endpoint(batch), 5)], rows_of(20))


def test_a_predictors_methods_are_called_on_the_loop() -> None:
    remote = Remote(Endpoint())
    chain = StepChain([predict_step(remote, 5)], where)
    assert sum(map(len, chain.run(rows_of(10), Meter(1), []))) == 10
    kept = [*remote.loops]
    chain.close()
    assert len(kept) == 3 and len(set(map(id, kept))) == 1


# ---------------------------------------------------------------- generators


def test_what_a_generator_yields_is_taken_in_its_thread() -> None:
    names: set[str] = set()

    def fn(batch: Batch) -> Iterator[Batch]:
        buffer = np.zeros(1, np.int64)
        for value in batch["id"]:
            names.add(threading.current_thread().name)
            buffer[0] = value
            yield {"id": buffer}

    assert run([map_step(fn, 5, 3)], rows_of(50)).column("id").to_pylist() == list(range(50))
    assert all(name.startswith("headrace-call") for name in names)


def test_async_functions_may_return_generators_where_plain_ones_may() -> None:
    async def ask(batch: Batch) -> Iterator[Batch]:
        await asyncio.sleep(0)
        return ({"id": batch["id"][i : i + 1]} for i in range(len(batch["id"])))

    assert run([map_step(ask, 5)], rows_of(20)).column("id").to_pylist() == list(range(20))
    with pytest.raises(BadReturn, match="For a function that yields, use map_batches"):
        run([predict_step(ask, 5)], rows_of(20))


# ---------------------------------------------------------------- out of memory


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting garbage takes a second in a process that has loaded all that the other tests load."""
    monkeypatch.setattr("headrace.worker.messages.gc.collect", lambda: 0)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("kind", ["async", "threads", "submit"])
def test_memory_for_small_batches_only(kind: str, most: int) -> None:
    calls: list[int] = []

    def plain(batch: Batch) -> Any:
        calls.append(len(batch["id"]))
        if calls[-1] > 6:
            raise MemoryError
        return batch["id"] * 2

    async def ask(batch: Batch) -> Any:
        await asyncio.sleep(0)
        return plain(batch)

    model = {"async": ask, "threads": plain, "submit": Submits(plain)}[kind]
    meter = Meter(1)
    told: list[Any] = []
    meter.report_to(SimpleNamespace(worker=0, notify=told.append), PoisonRows(), 0)
    whole = run([predict_step(model, 20, most)], rows_of(200), meter)
    assert whole.column("p").to_pylist() == [2 * i for i in range(200)]
    assert [(each.before, each.now) for each in told] == [(20, 10), (10, 5)]
    assert len([call for call in calls if call == 20]) <= most and calls.count(10) <= 1 + most


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("kind", ["async", "threads"])
def test_memory_for_one_batch_at_a_time_only(kind: str) -> None:
    """Batches of one row that fail beside others are tried again alone."""
    lock = threading.Lock()
    now = 0
    met = threading.Barrier(2)
    alone: list[bool] = []

    def enter() -> None:
        nonlocal now
        with lock:
            now += 1
            alone.append(now == 1)

    def leave() -> None:
        nonlocal now
        with lock:
            now -= 1

    def plain(batch: Batch) -> Any:
        enter()
        try:
            if len(alone) <= 2:
                met.wait()
                raise MemoryError
            return batch["id"] * 2
        finally:
            leave()

    async def ask(batch: Batch) -> Any:
        enter()
        try:
            if len(alone) <= 2:
                while len(alone) < 2:
                    await asyncio.sleep(0)
                raise MemoryError
            await asyncio.sleep(0)
            return batch["id"] * 2
        finally:
            leave()

    whole = run([predict_step(ask if kind == "async" else plain, 1, 2)], rows_of(6))
    assert whole.column("p").to_pylist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("kind", ["async", "submit"])
def test_one_row_that_never_fits(kind: str) -> None:
    calls: list[int] = []

    def plain(batch: Batch) -> Any:
        if 7 in batch["id"]:
            calls.append(len(batch["id"]))
            raise MemoryError
        return batch["id"]

    async def ask(batch: Batch) -> Any:
        return plain(batch)

    with pytest.raises(
        StepError, match=r"MemoryError\. This happened with a single row.*working on rows 7 to 7"
    ):
        run([predict_step(ask if kind == "async" else Submits(plain), 4, 3)], rows_of(20))
    assert calls == [4, 2, 1]


# ---------------------------------------------------------------- predictors that work by themselves


class Submits(Shared):
    """Computes when the result is collected, and notes what is in flight."""

    def __init__(self, call: Callable[[Batch], Any], early: bool = False) -> None:
        self.call = call
        self.early = early
        self.steps: list[str] = []
        self.open = self.most = 0

    def load(self) -> None:
        self.steps.append("load")

    def predict(self, batch: Batch) -> Any:
        self.steps.append("predict")
        return self.call(batch)

    def submit(self, batch: Batch) -> Any:
        self.steps.append(f"submit {batch['id'][0]}")
        made = self.call(batch) if self.early else None
        self.open += 1
        self.most = max(self.most, self.open)
        return batch, made

    def collect(self, handle: Any) -> Any:
        batch, made = handle
        self.steps.append(f"collect {batch['id'][0]}")
        self.open -= 1
        return made if self.early else self.call(batch)

    def close(self) -> None:
        self.steps.append("close")


def test_two_batches_are_with_a_predictor_that_computes_by_itself() -> None:
    model = Submits(lambda b: b["id"] * 2)
    whole = run([predict_step(model, 5)], rows_of(20))
    assert whole.column("p").to_pylist() == [2 * i for i in range(20)]
    assert model.steps == [
        "load", "submit 0", "submit 5", "collect 0", "submit 10", "collect 5", "submit 15", "collect 10",
        "collect 15", "close",
    ]  # fmt: skip


def test_one_at_a_time_is_plain_prediction() -> None:
    model = Submits(lambda b: b["id"] * 2)
    assert run([predict_step(model, 5, 1)], rows_of(10)).num_rows == 10
    assert model.steps == ["load", "predict", "predict", "close"]


@pytest.mark.parametrize("early", [True, False])
def test_what_submit_raises_comes_in_its_turn(early: bool) -> None:
    def call(batch: Batch) -> Any:
        if batch["id"][0] == 10:
            raise ValueError("no")
        return batch["id"]

    chain = StepChain([predict_step(Submits(call, early), 5)], where)
    seen: list[int] = []
    with pytest.raises(StepError, match=r"ValueError: no\. It was working on rows 10 to 10: id=10"):
        for part in chain.run(rows_of(50, 5, 10, 15), Meter(1), []):
            seen += part.batch.column("id").to_pylist()
    chain.close()
    assert seen == list(range(10))


# ---------------------------------------------------------------- in a run


def numbers(rows: int, per_shard: int = 100) -> hr.Dataset:
    source = RangeSource(rows, rows_per_split=per_shard)
    return hr.Dataset.from_source(source).with_options(shard_rows=per_shard)


async def double(batch: Batch) -> Any:
    await asyncio.sleep(0)
    return batch["id"] * 2


class Doubles:
    async def __call__(self, batch: Batch, by: int = 2) -> Any:
        return {"double": batch["id"] * by, "id": batch["id"]}


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_run(engine: str) -> None:
    data = numbers(300).with_options(engine=engine, workers=2, progress=False)
    models = {"a": double, "b": {"model": lambda b: b["id"] + 1, "max_in_flight": 2, "batch_size": 7}}
    made = data.predict(models, inputs=["id"], max_in_flight=3, batch_size=9).to_arrow()
    assert made.column("a").to_pylist() == [2 * i for i in range(300)]
    assert made.column("b").to_pylist() == [i + 1 for i in range(300)]
    mapped = data.map_batches(Doubles, fn_args=[3], batch_size=9).to_arrow()
    assert mapped.column("double").to_pylist() == [3 * i for i in range(300)]


@pytest.mark.parametrize("size", [None, 2, 100])
def test_a_look_asks_for_no_more_than_it_needs(size: int | None) -> None:
    endpoint = Endpoint()
    data = hr.range(1000).with_options(engine="inline", progress=False)
    rows = data.map_batches(endpoint, batch_size=size).take(10)
    assert [row["double"] for row in rows] == [2 * i for i in range(10)]
    assert max(endpoint.asked) < 10


def test_a_limit_ends_what_is_in_flight() -> None:
    endpoint = Endpoint()
    data = numbers(1000, per_shard=500).with_options(engine="inline", progress=False)
    made = data.map_batches(endpoint, batch_size=5, max_in_flight=4).limit(12).to_arrow()
    assert made.column("id").to_pylist() == list(range(12))
    assert max(endpoint.asked) <= 30 and endpoint.now == 0


def test_schemas_without_rows_ask_nobody() -> None:
    data = hr.range(0).with_options(engine="inline", progress=False)
    assert data.predict(double).to_arrow().num_rows == 0
    assert data.map_batches(Doubles()).to_arrow().num_rows == 0


def test_two_runs_are_one_whatever_is_in_flight(tmp_path: Any) -> None:
    data = numbers(100).with_options(engine="inline", progress=False)
    data.predict(double, max_in_flight=2).write_parquet(tmp_path)
    assert data.predict(double, max_in_flight=5).write_parquet(tmp_path).resumed
