"""Errors of user code that are odd themselves, and messages that say what to do."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import crossed, few
from headrace.core.failures import MESSAGE_CHARS
from headrace.core.terminal import encodable, visible
from headrace.errors import BadReturn, StepError

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

    data = hr.range(3)
    run = data.map_batches(Model) if verb == "class" else getattr(data, verb)(fails)
    with pytest.raises(StepError, match=said) as caught:
        run.take_all()
    assert len(str(caught.value)) < 2 * MESSAGE_CHARS


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


WAYS: dict[str, Callable[[hr.Dataset, Any], hr.Dataset]] = {
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


@pytest.mark.parametrize(("way", "error"), crossed(WAYS, [KeyboardInterrupt, GeneratorExit]))
def test_in_a_worker_no_error_of_the_users_is_an_interrupt(way: str, error: type[BaseException]) -> None:
    data = WAYS[way](numbers(4, 2), error).with_options(engine="local", workers=1)
    with pytest.raises(StepError, match=error.__name__) as caught:
        data.take_all()
    said = str(caught.value)
    assert "No row was read" in said if way == "class" else "It was working on range, row" in said, said


@pytest.mark.parametrize("way", [way for way in WAYS if way != "maker"])
def test_a_function_that_exits_as_a_generator_does_raises_like_any_other(way: str) -> None:
    with pytest.raises(StepError, match="GeneratorExit"):
        WAYS[way](hr.range(3), GeneratorExit).take_all()


def test_workers_go_on_when_somebody_interrupts_them() -> None:
    def interrupted(batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return batch

    data = numbers(4, 2).map_batches(interrupted).with_options(engine="local", workers=1)
    assert [row["id"] for row in data.take_all()] == [0, 1, 2, 3]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "maker"])
def test_in_the_drivers_own_process_an_interrupt_stays_one(way: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = WAYS[way](hr.range(3), KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        data.write_parquet(out)
    assert not list(out.rglob("*.staged")) and not list(out.glob("part-*"))
    assert hr.range(3).write_parquet(out, on_change="restart", mode="overwrite").rows == 3


@pytest.mark.parametrize(("value", "words"), [("v1", r"`\['v1'\] \* n`"), (1.5, r"`\[1.5\] \* n`")])
def test_one_value_for_every_row(value: Any, words: str) -> None:
    with pytest.raises(BadReturn, match=words):
        hr.range(3).map_batches(lambda batch: {**batch, "model": value}).take_all()


def group(text: str) -> BaseException:
    error: BaseException = ValueError(text)
    for _ in range(200):
        error = BaseExceptionGroup(text, [error, KeyboardInterrupt(text)])
    return error


def chained(text: str) -> BaseException:
    error: BaseException = ValueError(text)
    for _ in range(3_000):
        outer = KeyError(text)
        outer.__cause__, error = error, outer
    return error


def syntax(text: str) -> BaseException:
    error = SyntaxError(text)
    error.filename, error.lineno, error.text, error.offset = 3, "x", [text], object()  # type: ignore[assignment]
    return error


def classed(text: str) -> BaseException:
    return type(encodable(text).replace("\0", "") or "E", (Exception,), {})(text)  # type: ignore[no-any-return]


def noted(text: str) -> BaseException:
    error = ValueError("x")
    error.__notes__ = [text, 3]  # type: ignore[attr-defined]
    return error


MAKERS: dict[str, Callable[[str], BaseException]] = {
    "ValueError": ValueError,
    "KeyError": KeyError,
    "its class": classed,
    "group": group,
    "chained": chained,
    "syntax": syntax,
    "mute": lambda text: Mute(text),
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "unpicklable": lambda text: Unpicklable(),
    "OSError": lambda text: OSError(2, text, text),
    "UnicodeDecodeError": lambda text: UnicodeDecodeError("utf-8", b"\xff", 0, 1, text),
    "noted": noted,
}


KINDS = st.sampled_from([kind for kind in MAKERS if kind != "KeyboardInterrupt"])  # here that is an interrupt
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=())),  # surrogates among them
    st.sampled_from(["\udcff", "\x1b[2J\x9b\u202e", "a" * 100_000, "\ud800\udc00", "{}%s\\", "\r\n"]),
)


@settings(max_examples=few(8), suppress_health_check=list(HealthCheck))
@given(
    kind=KINDS,
    text=TEXTS,
    verb=st.sampled_from(["map", "predict"]),
)
def test_no_error_ends_a_run_that_sets_rows_aside(kind: str, text: str, verb: str) -> None:
    make = MAKERS[kind]

    def fails(row: Any) -> Any:
        if 1 in np.atleast_1d(row["id"]):
            raise make(text)
        return row if verb == "map" else row["id"]

    with tempfile.TemporaryDirectory() as folder:
        data = hr.range(3).with_options(
            engine="inline", progress=False, durability="process", on_error="reject"
        )
        data = data.map(fails) if verb == "map" else data.predict(fails, inputs=["id"], output="y")
        result = data.write_parquet(f"{folder}/out")
        assert (result.rows, result.rejected) == (2, 1)
        assert encodable(result.summary) == result.summary
        (row,) = hr.read_rejected(f"{folder}/out").take_all()
        assert row["id"] == 1 and len(row["_error"]) < 2 * MESSAGE_CHARS


@settings(max_examples=few(6), suppress_health_check=list(HealthCheck))
@given(kind=KINDS, text=TEXTS)
def test_every_error_names_its_row(kind: str, text: str) -> None:
    make = MAKERS[kind]

    def fails(row: Any) -> Any:
        raise make(text)

    with pytest.raises(StepError, match="It was working on range, row 0: id=0") as caught:
        hr.range(3).map(fails).with_options(engine="inline").take_all()
    assert encodable(str(caught.value)) == str(caught.value) == visible(str(caught.value))


def test_any_error_crosses_process_borders_as_a_rejected_row(tmp_path: Path) -> None:
    makers = list(MAKERS.values())

    def fails(row: Any) -> Any:
        if row["id"] < len(makers):
            raise makers[row["id"]]("\udcff\x1b[2J")
        return row

    data = numbers(len(makers) + 1, 4).map(fails).with_options(engine="local", workers=1, on_error="reject")
    result = data.with_options(progress=False).write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (1, len(makers))
    kinds = hr.read_rejected(tmp_path / "out").to_arrow().column("_error_type").to_pylist()
    assert {"KeyboardInterrupt", "SystemExit", "GeneratorExit"} < set(kinds)
