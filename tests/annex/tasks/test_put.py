"""What is put: one copy, how it is shared, and that it goes when nobody has it any more."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.engines import out_of_band_pickle as files
from headrace.engines.out_of_band_pickle import KeptPickle, pack
from headrace.errors import ArgumentError, NotPicklable

from .leftovers import memory_files, private_memory, workers

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


class Counts:
    """An object that can be changed."""

    def __init__(self) -> None:
        self.array = np.ones(MIB)
        self.changes = 0

    def total(self) -> float:
        return float(self.array.sum())


def until(true: Callable[[], bool], within: float = 20.0) -> None:
    """Wait for something that happens by itself, soon."""
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_no_call_sees_what_another_changed_in_a_value() -> None:
    def use(thing: Any) -> tuple[int, float]:
        thing.changes += 1
        thing.array[0] += 1
        return thing.changes, thing.total()

    with hr.connect(workers=1) as executor:
        ref = executor.put(Counts())
        for _ in range(3):
            assert executor.submit(use, ref).result() == (1, MIB + 1.0)
        assert executor.submit(use, thing=ref).result() == (1, MIB + 1.0)
        assert executor.submit(lambda refs: use(refs[0].get()) == use(refs[0].get()), [ref]).result()
        assert (ref.get().changes, ref.get().total()) == (0, MIB)


@pytest.mark.parametrize("length", [3, MIB])
def test_plain_data_is_fresh_for_each_call_and_its_arrays_are_read_only(
    length: int, fresh: hr.Executor
) -> None:
    def spoils(value: dict[str, Any]) -> list[Any]:
        value["rows"].append(1)
        value["more"] = True
        seen = []
        for array in (value["array"], value["rows"][0]):
            try:
                array[0] = 7
            except ValueError as error:
                seen.append("read-only" in str(error))
        return [len(value["rows"]), len(value), seen]

    ref = fresh.put({"array": np.ones(length), "rows": [np.ones(length)]})
    for _ in range(2):
        assert fresh.submit(spoils, ref).result() == [2, 3, [True, True]]
    with pytest.raises(ValueError, match="read-only"):
        ref.get()["array"][0] = 7


def test_a_model_that_a_task_trains_is_as_it_was_for_the_next() -> None:
    torch = pytest.importorskip("torch")

    def trains(model: Any) -> float:
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(1.0)
        return float(model.weight.detach()[0, 0])

    model = torch.nn.Linear(300, 300)
    with torch.no_grad():
        model.weight.zero_()
    with hr.connect(workers=1) as executor:
        ref = executor.put(model)
        assert [executor.submit(trains, ref).result() for _ in range(2)] == [1.0, 1.0]
        assert float(ref.get().weight.detach()[0, 0]) == 0.0


def test_a_result_is_as_it_was_returned_for_whoever_asks(fresh: hr.Executor) -> None:
    future = fresh.submit(lambda: {"rows": [1], "array": np.zeros(MIB)})
    first = fresh.get(future)
    first["rows"].append(2)
    first["array"] += 1
    again = fresh.get(future)
    assert again["rows"] == [1] and not again["array"].any()

    def spoils(result: Any) -> int:
        result["rows"].append(3)
        return len(result["rows"])

    assert [fresh.submit(spoils, future).result() for _ in range(3)] == [2, 2, 2]


def test_more_values_than_descriptors_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FEWEST_FILES", 1)
    monkeypatch.setattr(files, "_descriptors", lambda: 4)
    received = [KeptPickle(pack(np.full(MIB, i))) for i in range(3)]
    assert len(memory_files()) <= 1
    for i, each in enumerate(received):
        each.load()[0] = 7
        assert each.load()[0] == i
        each.close()
    assert not memory_files()


@linux
def test_buffers_are_in_memory_once() -> None:
    def private(array: Any) -> int:
        assert array.sum() == len(array)
        return private_memory()

    with hr.connect(workers=2) as executor:
        before = max(executor.map(private, [np.ones(1)] * 4))
        ref = executor.put(np.ones(32 * MIB))  # 256 MiB
        assert list(memory_files().values()) == [256 * MIB]
        after = executor.get([executor.submit(private, ref) for _ in range(4)])
        assert max(after) - before < 64 * MIB


@linux
def test_memory_is_free_when_the_last_ref_is_gone(executor: hr.Executor) -> None:
    ref = executor.put(np.ones(MIB))
    other = executor.put({"inside": [ref]})
    assert executor.submit(lambda d: d["inside"][0].get().sum(), other).result() == MIB
    assert len(memory_files()) == 1
    del ref
    gc.collect()
    assert len(memory_files()) == 1, "the other value refers to it"
    del other
    gc.collect()
    until(lambda: not memory_files())
    for worker in workers():
        until(lambda worker=worker: not memory_files(worker.pid))  # type: ignore[misc]


@linux
def test_results_and_arguments_leave_nothing(executor: hr.Executor) -> None:
    for _ in range(20):
        future = executor.submit(lambda a: a * 2, np.ones(MIB))
        assert future.result().sum() == 2 * MIB
    del future
    gc.collect()
    until(lambda: not memory_files())
    for worker in workers():
        until(lambda worker=worker: not memory_files(worker.pid))  # type: ignore[misc]


@linux
def test_an_argument_is_gone_though_the_future_is_not(executor: hr.Executor) -> None:
    future = executor.submit(len, np.ones(MIB))
    assert future.result() == MIB
    until(lambda: not memory_files())
    assert future.done()


def test_a_ref_that_a_function_keeps_stays_valid(executor: hr.Executor) -> None:
    class ObjectStore:
        def keep(self, refs: list[Any]) -> None:
            self.refs = refs

        def total(self) -> float:
            return float(self.refs[0].get().sum())

        def give(self) -> Any:
            return self.refs

    keeper = executor.actor(ObjectStore)
    ref = executor.put(np.ones(MIB))
    keeper.keep([ref]).result()
    assert keeper.give().result()[0].get().sum() == MIB
    del ref
    gc.collect()
    assert keeper.total().result() == MIB


def test_a_ref_belongs_to_its_executor(executor: hr.Executor) -> None:
    with hr.connect(workers=1) as other:
        refs = other.put(np.ones(10)), other.submit(abs, 1)
        for ref in refs:
            with pytest.raises(ArgumentError, match=r"sum was given a \w+ of another executor"):
                executor.submit(sum, ref)
            with pytest.raises(ArgumentError, match=r"list was given .* of another executor"):
                executor.actor(list, [ref])
        with pytest.raises(ArgumentError, match=r"put was given a Ref of another executor"):
            executor.put({"ref": refs[0]})


def test_a_ref_means_nothing_elsewhere(executor: hr.Executor) -> None:
    import pickle

    with pytest.raises(NotPicklable, match="get its value first"):
        pickle.dumps(executor.put(1))


def test_a_value_may_have_a_future_in_it(executor: hr.Executor) -> None:
    assert executor.put([executor.submit(abs, -1)]).get()[0].result() == 1


def test_more_values_than_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FEWEST_FILES", 3)
    monkeypatch.setattr(files, "_descriptors", lambda: 4)
    with hr.connect(workers=1) as executor:
        refs = [executor.put(np.full(MIB, i)) for i in range(6)]
        assert len(memory_files()) <= 3
        assert [executor.submit(lambda a: int(a[-1]), ref).result() for ref in refs] == list(range(6))
        assert [int(ref.get()[0]) for ref in refs] == list(range(6))
        results = [executor.submit(np.full, MIB, i) for i in range(5)]
        assert [int(future.result()[5]) for future in results] == list(range(5))
        del refs, results
