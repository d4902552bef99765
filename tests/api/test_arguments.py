"""Values and names that a verb cannot use, and resources that a machine does not have."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import (
    ArgumentError,
    HeadraceError,
    NotPicklable,
    ResourcesUnavailable,
    UnknownArgument,
    UnknownColumn,
)
from headrace.plan.verb_options import StepOptions, WorkerOptions

from .data import numbers


def same(batch: Any) -> Any:
    return batch


class NotCallable:
    pass


class Async:
    async def __call__(self, batch: Any) -> Any:
        return batch


async def async_function(batch: Any) -> Any:
    return batch


async def async_batches(batch: Any) -> Any:
    yield batch


class AsyncBatches:
    def load(self) -> None: ...

    async def predict(self, batch: Any) -> Any:
        yield batch

    def close(self) -> None: ...


Verb = Callable[[hr.Dataset], Any]

VALUES: list[tuple[Verb, str]] = [
    (lambda d: d.map_batches(3), r"map_batches\(3\): it takes a function"),
    (lambda d: d.map_batches(NotCallable), r"NotCallable\): the class needs a method __call__"),
    (lambda d: d.map_batches(NotCallable()), "it takes a function, a callable object or a class"),
    (lambda d: d.map(async_batches), r"map\(async_batches\): async generators are for map_batches"),
    (lambda d: d.predict(async_batches), r"predict\(async_batches\): async generators are for map_batches"),
    (lambda d: d.predict(AsyncBatches()), r"predict\(AsyncBatches\): async generators are not supported"),
    (lambda d: d.flat_map(Async), r"flat_map\(Async\): async functions are for map_batches and predict"),
    (lambda d: d.map(async_function), r"map\(async_function\): async functions"),
    (
        lambda d: d.map_batches(same, batch_size=0),
        "batch_size=0: it takes a whole number of at least 1, or 'auto'",
    ),
    (lambda d: d.map_batches(same, batch_size=-5), "batch_size=-5"),
    (lambda d: d.map_batches(same, batch_size=2.5), "batch_size=2.5"),
    (lambda d: d.map_batches(same, batch_size=True), "batch_size=True"),
    (lambda d: d.map_batches(same, batch_size="big"), "'big': .* or 'auto'"),
    (
        lambda d: d.map_batches(same, max_in_flight=0),
        "max_in_flight=0: it takes a whole number of at least 1",
    ),
    (lambda d: d.predict(same, max_in_flight=2.5), "max_in_flight=2.5"),
    (lambda d: d.predict({"a": {"model": same, "max_in_flight": "2"}}), "max_in_flight='2'"),
    (lambda d: d.map_batches(same, batch_format="panda"), "'panda' is not one of .*Did you mean 'pandas'"),
    (lambda d: d.map_batches(same, columns=[]), "not a list of column names"),
    (lambda d: d.map_batches(same, columns=3), "columns: 3 is not a list of column names"),
    (lambda d: d.map_batches(same, columns=["id", "id"]), "column 'id' is named twice"),
    (lambda d: d.map_batches(same, fn_args=3), "fn_args=3 is not a list or tuple"),
    (lambda d: d.map_batches(same, fn_args="ab"), "fn_args='ab' is not a list or tuple"),
    (lambda d: d.map_batches(same, fn_kwargs=[1]), "is not a dict of arguments by name"),
    (lambda d: d.map_batches(same, fn_constructor_args=[1]), "are for a class; for a function use fn_args"),
    (lambda d: d.map_batches(same, version=3), "version=3 is not a string"),
    (lambda d: d.map_batches(same, concurrency=0), r"concurrency=0: give .* such as \(1, 8\)"),
    (lambda d: d.map_batches(same, concurrency=(3, 2)), r"concurrency=\(3, 2\)"),
    (lambda d: d.map_batches(same, concurrency="two"), "concurrency='two'"),
    (lambda d: d.map_batches(same, concurrency=1.5), "concurrency=1.5"),
    (lambda d: d.map_batches(same, concurrency=True), "concurrency=True"),
    (lambda d: d.map_batches(same, compute="actors"), r"compute='actors': it takes ActorPoolStrategy"),
    (lambda d: d.map_batches(same, compute=hr.TaskPoolStrategy(), concurrency=2), "not both"),
    (lambda d: d.map_batches(same, compute=hr.ActorPoolStrategy(size=0)), "size=0"),
    (lambda d: d.map_batches(same, compute=hr.ActorPoolStrategy(size=2, max_size=3)), "not both"),
    (lambda d: d.map_batches(same, compute=hr.ActorPoolStrategy(min_size=4, max_size=2)), r"\(4, 2\)"),
    (lambda d: d.map_batches(same, compute=hr.ActorPoolStrategy(min_size=0, max_size=2)), "min_size"),
    (lambda d: d.map_batches(same, num_cpus=-1), "num_cpus=-1: it takes a number that is not negative"),
    (lambda d: d.map_batches(same, num_gpus="1"), "num_gpus='1'"),
    (lambda d: d.map_batches(same, memory=float("nan")), "memory=nan"),
    (lambda d: d.map_batches(same, memory=float("inf")), "memory=inf"),
    (lambda d: d.filter(), "takes either a function of a row or expr="),
    (lambda d: d.filter(expr=3), "it takes an expression such as"),
    (lambda d: d.filter(expr="id >"), r"expr='id >'\): this is not an expression"),
    (lambda d: d.filter(expr="id IS NULL AND"), r"AND'\): this is not an expression"),
    (lambda d: d.filter(expr="id NOT IN (3) AND id = 2"), "leaves out nulls in SQL"),
    (lambda d: d.filter(expr="len(id) > 3"), r"'len\(id\)' is not understood"),
    (lambda d: d.filter(expr="1 > 3"), "it names no column"),
    (lambda d: d.filter(expr="'a' in id"), "'in' stands between a column and a list"),
    (lambda d: d.with_column("", same), "the name of a column is a text"),
    (lambda d: d.with_column("x", 3), r"with_column\('x', 3\)"),
    (lambda d: d.std("id", ddof=-1), "ddof=-1"),
    (lambda d: hr.range_tensor(3, shape=()), r"The shape .* such as \(2, 2\), not \(\)"),
    (lambda d: hr.from_polars({"a": [1]}), "from_polars takes a Polars DataFrame"),
    (lambda d: hr.from_daft(3), "from_daft takes a Daft DataFrame, not int"),
    (lambda d: hr.from_huggingface([1]), "takes a datasets.Dataset, not list"),
    (lambda d: hr.from_torch(3), "takes a dataset of PyTorch, not int"),
    (lambda d: d.select_columns([]), "not a list of column names"),
    (lambda d: d.select_columns([1]), "not a list of column names"),
    (lambda d: d.drop_columns(None), "not a list of column names"),
    (lambda d: d.rename_columns({"id": 3}), "column names are non-empty strings"),
    (lambda d: d.rename_columns(["a", "b"]), r"got 2 names for 1 columns \(id\)"),
    (lambda d: d.limit(-1), r"limit\(limit=-1\): it takes a whole number of at least 0"),
    (lambda d: d.limit(1.5), "limit=1.5"),
    (lambda d: d.take("3"), r"take\(limit='3'\)"),
    (lambda d: d.show("3"), r"show\(limit='3'\)"),
    (lambda d: d.take_all("3"), r"take_all\(limit='3'\)"),
    (lambda d: d.random_sample("3"), "random_sample: fraction='3'"),
    (lambda d: d.take_batch(-3), "batch_size=-3"),
    (lambda d: d.iter_batches(batch_size=0), "batch_size=0"),
    (lambda d: d.with_options(engine="locl"), "engine='locl' is not one of .*Did you mean 'local'"),
    (lambda d: d.with_options(workers=0), "workers=0: it takes a number above zero"),
    (lambda d: d.with_options(workers=1.5), "workers=1.5: it takes a whole number"),
    (lambda d: d.with_options(workers="2"), "workers='2'"),
    (lambda d: d.with_options(progress="no"), "progress='no' is neither True"),
    (lambda d: d.with_options(max_attempts=None), "max_attempts=None"),
    (lambda d: d.with_options(stall_timeout=0), "stall_timeout=0"),
    (lambda d: d.with_options(max_errors=-1), "max_errors=-1"),
    (lambda d: d.with_options(max_errors=1.5), "max_errors=1.5"),
    (lambda d: d.with_options(max_errors="many"), "max_errors='many'"),
    (lambda d: d.with_options(max_errors=True), "max_errors=True"),
    (lambda d: d.with_options(retry_on="TimeoutError"), "retry_on='TimeoutError'"),
    (lambda d: d.with_options(retry_on=(TimeoutError, 3)), "retry_on="),
    (lambda d: d.with_options(retry_on=TimeoutError()), "retry_on="),
    (lambda d: d.write_parquet(3), "output path 3 is not a path"),
    (lambda d: d.write_parquet("x", mode="upsert"), "mode='upsert' is not one of"),
    (lambda d: d.write_parquet("x", on_change="keep"), "on_change='keep' is not one of"),
    (lambda d: d.write_parquet("x", compression="zip"), "zip"),
    (lambda d: d.write_csv("x", delimiter=";;"), "delimiter"),
    (lambda d: d.write_parquet("x", schema={"id": int}), "schema"),
]


@pytest.mark.parametrize(("verb", "words"), VALUES)
def test_values_that_make_no_sense(
    verb: Verb, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError) as caught:
        verb(hr.range(3))
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert re.search(words, message) and "\n" not in message, message
    assert list(tmp_path.iterdir()) == []


NAMES: list[tuple[Verb, str]] = [
    (
        lambda d: d.map_batches(same, batchsize=3),
        r"map_batches\(\) has no argument 'batchsize'. Did you mean 'batch_size'",
    ),
    (lambda d: d.map_batches(same, num_gpu=1), "Did you mean 'num_gpus'"),
    (lambda d: d.map(same, fn_kwarg={}), "Did you mean 'fn_kwargs'"),
    (lambda d: d.filter(same, expression=1), "Did you mean 'expr'"),
    (lambda d: d.iter_batches(batch_sizes=3), "Did you mean 'batch_size'"),
    (lambda d: d.limit(rows=3), r"has no argument 'rows'. It takes: limit\."),
    (lambda d: d.with_options(worker=3), "There is no option 'worker'. Did you mean 'workers'"),
    (lambda d: d.write_parquet("x", compresion=None), "Did you mean 'compression'"),
    (lambda d: hr.read_parquet("x", column=["a"]), "Did you mean 'columns'"),
]


@pytest.mark.parametrize(("verb", "words"), NAMES)
def test_names_that_nobody_knows(verb: Verb, words: str) -> None:
    with pytest.raises(UnknownArgument, match=words) as caught:
        verb(hr.range(3))
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "verb",
    [
        lambda d: d.select_columns(["idd"]),
        lambda d: d.drop_columns("idd"),
        lambda d: d.rename_columns({"idd": "x"}),
        lambda d: d.map_batches(same, columns=["idd"]),
    ],
)
@pytest.mark.parametrize("run", ["take", "count", "schema", "explain", "take_all"])
def test_unknown_columns_are_found_before_any_work(verb: Verb, run: str) -> None:
    with pytest.raises(
        UnknownColumn, match=r"column 'idd', but the columns (t?here) are id\. Did you mean 'id'\?"
    ):
        getattr(verb(hr.range(3)), run)()


def test_renaming_two_columns_to_one() -> None:
    data = hr.from_items([{"a": 1, "b": 2}]).rename_columns({"a": "b"})
    with pytest.raises(HeadraceError, match="two columns the name 'b'"):
        data.take_all()


# ---------------------------------------------------------------- resources


def test_memory_that_no_machine_has(tmp_path: Path) -> None:
    data = hr.range(10).map_batches(same, memory=2**50)
    for run in (data.take_all, data.count, data.explain, lambda: data.write_parquet(tmp_path / "out")):
        with pytest.raises(
            ResourcesUnavailable, match=r"needs 1 PiB of memory, and the limit is [\d.]+ [MG]iB"
        ):
            run()
    assert not (tmp_path / "out").exists()


def test_memory_bounds_the_number_of_workers() -> None:
    data = hr.range(10).map_batches(same, memory=3 * 2**30, concurrency=8).with_options(engine="local")
    assert "local: 2 workers" in data.with_options(memory_limit=8 * 2**30).explain()
    assert "local: 8 workers" in data.with_options(memory_limit=24 * 2**30).explain()
    with pytest.raises(ResourcesUnavailable, match=r"needs 3 GiB of memory, and the limit is 2 GiB"):
        data.with_options(memory_limit=2 * 2**30).explain()


def test_gpus_on_a_machine_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for asked, said in ((1, "1 GPU,"), (2, "2 GPUs,"), (0.5, "0.5 GPUs,")):
        with pytest.raises(ResourcesUnavailable, match=f"needs {said} and this machine has 0"):
            hr.range(10).map_batches(same, num_gpus=asked).with_options(engine="local").count()


@pytest.mark.parametrize(
    ("given", "workers"),
    [
        ({"concurrency": 3}, "3"),
        ({"concurrency": (1, 4)}, "1 to 4"),
        ({"compute": hr.ActorPoolStrategy(size=3)}, "3"),
        ({"compute": hr.ActorPoolStrategy(min_size=1, max_size=5)}, "1 to 5"),
        ({"compute": hr.TaskPoolStrategy(size=6)}, "6"),
        ({"compute": hr.TaskPoolStrategy()}, "2"),
        ({}, "2"),
    ],
)
def test_how_many_workers(given: dict[str, Any], workers: str) -> None:
    told = hr.range(10).map_batches(same, **given).with_options(engine="local").explain()
    assert f"local: {workers} workers" in told


def test_cores_are_advice() -> None:
    """A plan that asks for more cores than there are still runs."""
    assert hr.range(10).map_batches(same, num_cpus=10_000).with_options(engine="local").count() == 10


# ---------------------------------------------------------------- what cannot travel

LOCK = threading.Lock()


def closure() -> Callable[[Any], Any]:
    lock = threading.Lock()

    def guarded(batch: Any) -> Any:
        with lock:
            return batch

    return guarded


class Holds:
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __call__(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (
            lambda d: d.map_batches(closure()),
            r"guarded\) cannot travel .* the variable 'lock' that it uses, a lock",
        ),
        (lambda d: d.map_batches(lambda batch, x: batch, fn_args=[LOCK]), "its argument 1, a lock"),
        (lambda d: d.map_batches(lambda batch, x: batch, fn_kwargs={"x": LOCK}), "its argument 'x', a lock"),
        (lambda d: d.map_batches(Holds, fn_constructor_args=[LOCK]), "its argument 1, a lock"),
        (lambda d: d.map_batches(Holds(LOCK)), "its attribute 'lock', a lock"),
        (lambda d: d.map_batches(Holds([LOCK])), r"its attribute 'lock' → \[0\], a lock"),
        (lambda d: d.map_batches(Holds(LOCK).__call__), "its attribute 'lock', a lock"),
        (lambda d: d.map(lambda row, x=LOCK: row), "the default of its parameter 'x', a lock"),
    ],
)
def test_what_cannot_travel_is_named(verb: Verb, words: str) -> None:
    with pytest.raises(NotPicklable, match=words) as caught:
        verb(numbers(1000)).with_options(engine="local").take_all()
    assert "Create it inside the function, or in the constructor of a class" in str(caught.value)


@pytest.mark.parametrize("verb", ["map_batches", "map", "flat_map", "filter", "predict", "with_column"])
def test_shared_options_are_a_verbs_own(verb: str) -> None:
    signature = inspect.signature(getattr(hr.Dataset, verb))
    assert "options" not in signature.parameters
    shared = StepOptions.__annotations__ if verb != "with_column" else WorkerOptions.__annotations__
    for name in shared:
        parameter = signature.parameters[name]
        assert (parameter.kind, parameter.default) == (parameter.KEYWORD_ONLY, None)
        assert isinstance(parameter.annotation, str)
    arguments = ("x", same) if verb == "with_column" else (same,)
    with pytest.raises(UnknownArgument, match=r"has no argument 'num_gpu'\. Did you mean 'num_gpus'"):
        getattr(numbers(10), verb)(*arguments, num_gpu=1)
