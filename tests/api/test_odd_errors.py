"""Errors of user code that are odd themselves, and messages that say what to do."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.errors import BadReturn, MillraceError, StepError
from millrace.run.failures import MESSAGE_CHARS, report, words

from .data import numbers


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Stopped(BaseException):
    pass


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Mute(), r"Mute: \(no message: its __str__ raised RuntimeError\)"),
        (Stopped("enough"), "Stopped: enough"),
        (asyncio.CancelledError(), "CancelledError"),
        (SystemExit(3), "SystemExit: 3"),
        (Unpicklable(), "Unpicklable: holds a lock"),
        (ValueError("a" * 50_000 + "z" * 50_000), "ValueError: a{1000} … z{1000}"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("verb", ["map_batches", "map", "flat_map", "filter", "class"])
def test_errors_that_are_odd_themselves(error: BaseException, said: str, verb: str) -> None:
    def fails(_: Any) -> Any:
        raise error

    class Model:
        def __init__(self) -> None:
            raise error

        def __call__(self, batch: Any) -> Any:
            return batch

    data = mr.range(3)
    run = data.map_batches(Model) if verb == "class" else getattr(data, verb)(fails)
    with pytest.raises(StepError, match=said) as caught:
        run.take_all()
    assert len(str(caught.value)) < 2 * MESSAGE_CHARS


def test_odd_errors_cross_process_borders() -> None:
    for error in (Mute, Unpicklable, Stopped):

        def fails(_: Any, error: Any = error) -> Any:
            raise error

        with pytest.raises(StepError, match=error.__name__):
            numbers(4, 2).map_batches(fails).with_options(engine="local", workers=1).take_all()


def yields(error: type[BaseException], batch: Any) -> Any:
    yield batch
    raise error


def model(error: type[BaseException]) -> Any:
    class Model:
        def __init__(self) -> None:
            raise error

        def __call__(self, batch: Any) -> Any:
            return batch

    return Model


def unspeakable(error: type[BaseException]) -> Any:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise error

    return Unspeakable


def fails(error: type[BaseException], batch: Any) -> Any:
    raise error


async def fails_later(batch: Any, error: type[BaseException]) -> Any:
    await asyncio.sleep(0)
    raise error


WAYS: dict[str, Callable[[mr.Dataset, Any], mr.Dataset]] = {
    "map_batches": lambda data, error: data.map_batches(lambda batch: fails(error, batch)),
    "generator": lambda data, error: data.map_batches(lambda batch: yields(error, batch)),
    "threads": lambda data, error: data.map_batches(lambda batch: fails(error, batch), max_in_flight=2),
    "async": lambda data, error: data.map_batches(fails_later, fn_args=[error]),
    "map": lambda data, error: data.map(lambda row: fails(error, row)),
    "filter": lambda data, error: data.filter(lambda row: fails(error, row)),
    "predict": lambda data, error: data.predict(lambda batch: fails(error, batch), inputs=["id"]),
    "class": lambda data, error: data.map_batches(model(error)),
    "words": lambda data, error: data.map(lambda row: fails(unspeakable(error), row)),
    "maker": lambda data, error: data.map(lambda row: fails(error, row), num_cpus=1).map_batches(
        lambda batch: batch, concurrency=1
    ),
}


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("way", list(WAYS))
def test_in_a_worker_no_error_of_the_users_is_an_interrupt(way: str, error: type[BaseException]) -> None:
    data = WAYS[way](numbers(4, 2), error).with_options(engine="local", workers=1)
    with pytest.raises(StepError, match=error.__name__) as caught:
        data.take_all()
    said = str(caught.value)
    assert "No row was read" in said if way == "class" else "It was working on range, row" in said, said


@pytest.mark.parametrize("way", [way for way in WAYS if way != "maker"])
def test_a_function_that_exits_as_a_generator_does_raises_like_any_other(way: str) -> None:
    with pytest.raises(StepError, match="GeneratorExit"):
        WAYS[way](mr.range(3), GeneratorExit).take_all()


def test_workers_go_on_when_somebody_interrupts_them() -> None:
    def interrupted(batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return batch

    data = numbers(4, 2).map_batches(interrupted).with_options(engine="local", workers=1)
    assert [row["id"] for row in data.take_all()] == [0, 1, 2, 3]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "maker"])
def test_in_the_drivers_own_process_an_interrupt_stays_one(way: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = WAYS[way](mr.range(3), KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        data.write_parquet(out)
    assert not list(out.rglob("*.staged")) and not list(out.glob("part-*"))
    assert mr.range(3).write_parquet(out, on_change="restart", mode="overwrite").rows == 3


def test_words_and_reports_are_short() -> None:
    assert words(ValueError("short")) == "short"
    long = report(RuntimeError("x" * 10**6))
    assert len(long.message) < 2 * MESSAGE_CHARS and len(long.traceback) < 30_000
    assert isinstance(MillraceError("y"), Exception)


@pytest.mark.parametrize(("value", "words"), [("v1", r"`\['v1'\] \* n`"), (1.5, r"`\[1.5\] \* n`")])
def test_one_value_for_every_row(value: Any, words: str) -> None:
    with pytest.raises(BadReturn, match=words):
        mr.range(3).map_batches(lambda batch: {**batch, "model": value}).take_all()
