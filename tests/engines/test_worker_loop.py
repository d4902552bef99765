"""The loop of a worker, with a transport that notes what is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from headrace.core.engine_ports import WorkerContext
from headrace.engines.out_of_band_pickle import OutOfBandPickle, pack
from headrace.engines.worker_loop import WorkerLoop
from headrace.errors import NotPicklable


class Notes:
    """A transport that keeps what is sent; ``factory`` is what it loads."""

    def __init__(self, factory: Callable[[WorkerContext], Any]) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.factory = factory

    def prepare(self, *args: Any) -> tuple[WorkerContext, Callable[[], Any]]:
        def unused(*args: Any) -> Any:
            raise AssertionError

        context = WorkerContext(
            1,
            1,
            unused,
            unused,
            unused,
            self.send_released,
            lambda what: self.sent.append(("preparing", what)),
        )
        return context, lambda: self.factory

    def send_result(self, number: int, value: Any) -> None:
        self.sent.append(("result", number, value))

    def send_packed(self, number: int, packed: OutOfBandPickle) -> None:
        self.sent.append(("packed", number))
        packed.close()

    def send_error(self, number: int, error: BaseException) -> None:
        self.sent.append(("error", number, repr(error)))

    def send_released(self) -> None:
        self.sent.append(("released",))

    def after_call(self) -> None:
        self.sent.append(("after",))


class Hosted:
    def __init__(self, context: WorkerContext) -> None:
        self.fed: list[Any] = []
        self.closed = False

    def feed(self, value: Any) -> None:
        self.fed.append(value)

    def what_was_fed(self) -> list[Any]:
        return list(self.fed)

    def packed(self) -> OutOfBandPickle:
        return pack([1])

    def later(self) -> Future[str]:
        future: Future[str] = Future()
        threading.Timer(0.05, future.set_result, ("late",)).start()
        return future

    def given_up(self) -> Future[str]:
        future: Future[str] = Future()
        future.cancel()
        return future

    def fail(self) -> None:
        raise ValueError("of the user")

    def close(self) -> None:
        self.closed = True


def run(transport: Notes, *messages: tuple[Any, ...], feed: tuple[Any, ...] = ()) -> WorkerLoop:
    loop = WorkerLoop(transport)
    for value in feed:
        loop.feed((value,))
    for message in (("host",), *messages, ("end",)):
        loop.inbox.put(message)
    loop.run()
    return loop


def test_what_is_fed_before_the_object_is_there_reaches_it_in_order() -> None:
    transport = Notes(Hosted)
    run(transport, ("call", 7, "what_was_fed", ()), feed=("a", "b"))
    assert transport.sent == [
        ("preparing", "importing what the plan's functions need"),
        ("preparing", ""),
        ("released",),
        ("result", 7, ["a", "b"]),
        ("after",),
    ]


def test_every_call_is_answered_after_what_was_released() -> None:
    transport = Notes(Hosted)
    run(
        transport,
        ("call", 1, "packed", ()),
        ("call", 2, "fail", ()),
        ("call", 3, "none", ()),
        ("release_unused",),
    )
    kinds = [kind for kind, *_ in transport.sent[2:]]
    answers = [("released", kind, "after") for kind in ("packed", "error", "error")]
    assert kinds == [*(kind for answer in answers for kind in answer), "released"]
    assert ("error", 2, "ValueError('of the user')") in transport.sent


def test_an_answer_may_come_while_the_loop_goes_on() -> None:
    transport = Notes(Hosted)
    answered = threading.Event()
    send = transport.send_result

    def send_result(number: int, value: Any) -> None:
        send(number, value)
        if value == "late":
            answered.set()

    transport.send_result = send_result  # type: ignore[method-assign]
    run(transport, ("call", 1, "later", ()), ("call", 2, "what_was_fed", ()))
    assert answered.wait(30)
    assert [each[1:] for each in transport.sent if each[0] == "result"] == [(2, []), (1, "late")]


def test_a_call_that_was_given_up_before_it_began_is_answered() -> None:
    transport = Notes(Hosted)
    run(transport, ("call", 1, "given_up", ()))
    assert ("error", 1, "CancelledError()") in transport.sent


def test_an_object_that_cannot_be_made_fails_every_call_and_is_not_closed() -> None:
    def broken(context: WorkerContext) -> Any:
        raise LookupError("cannot be made")

    transport = Notes(broken)
    loop = run(transport, ("call", 1, "anything", ()), ("call", 2, "close", ()), feed=("lost",))
    assert [each[2] for each in transport.sent if each[0] == "error"] == ["LookupError('cannot be made')"] * 2
    loop.close()


def test_an_object_is_closed_once_it_was_made() -> None:
    made: list[Hosted] = []

    def make(context: WorkerContext) -> Hosted:
        made.append(Hosted(context))
        return made[0]

    loop = run(Notes(make))
    loop.close()
    assert made[0].closed
    WorkerLoop(Notes(make)).close()  # nothing was made


@pytest.mark.parametrize(
    ("error", "expected"), [(TypeError("odd"), NotPicklable), (ImportError("no such module"), ImportError)]
)
def test_what_the_user_cannot_unpickle_is_explained(error: Exception, expected: type[Exception]) -> None:
    class Refuses(Notes):
        def prepare(self, *args: Any) -> tuple[WorkerContext, Callable[[], Any]]:
            def load() -> Any:
                raise error

            return super().prepare(*args)[0], load

    transport = Refuses(Hosted)
    run(transport, ("call", 1, "anything", ()))
    assert expected.__name__ in transport.sent[-2][2]
