"""Errors of user code that are odd themselves, and messages that say what to do."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import millrace as mr
from millrace.errors import BadReturn, MillraceError, StepError
from millrace.run.failures import MESSAGE_CHARS, report, words


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
            mr.range(3).map_batches(fails).with_options(engine="local", workers=1).take_all()


def test_an_interrupt_stays_one() -> None:
    def fails(_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mr.range(3).map_batches(fails).take_all()


def test_words_and_reports_are_short() -> None:
    assert words(ValueError("short")) == "short"
    long = report(RuntimeError("x" * 10**6))
    assert len(long.message) < 2 * MESSAGE_CHARS and len(long.traceback) < 30_000
    assert isinstance(MillraceError("y"), Exception)


@pytest.mark.parametrize(("value", "words"), [("v1", r"`\['v1'\] \* n`"), (1.5, r"`\[1.5\] \* n`")])
def test_one_value_for_every_row(value: Any, words: str) -> None:
    with pytest.raises(BadReturn, match=words):
        mr.range(3).map_batches(lambda batch: {**batch, "model": value}).take_all()
