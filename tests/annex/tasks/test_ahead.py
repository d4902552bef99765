"""Short calls are sent to a worker before it can begin them: that makes no difference but in speed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.annex.tasks import lanes
from headrace.engines.local.pool import LocalPool
from headrace.engines.local.wire import TicketReader, Tickets
from headrace.errors import ActorDied, CallLost, ExecutorClosed

from .test_calls import WITHIN, fifo, let_through, through

MANY = 40


def work(number: int, marks: str = "", gate: str = "", then: Callable[[], Any] | None = None) -> Any:
    """Note that it runs, with the number of the process; maybe wait at a gate."""
    if marks:
        with open(marks, "a") as file:
            file.write(f"{number} {os.getpid()}\n")
    if gate:
        through(gate)
    return then() if then is not None else number


def ran(marks: str) -> list[int]:
    """Return the numbers of the calls that ran, in their order."""
    return [int(line.split()[0]) for line in Path(marks).read_text().splitlines()]


class Sent:
    """How many calls were sent ahead."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def add(self, count: int) -> None:
        with self._changed:
            self._count += count
            self._changed.notify_all()

    def wait(self, count: int = 8) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._count >= count, WITHIN)
            self._count = 0


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """However long a call takes, others may wait behind it; and it is noted when they do."""
    sent, submit_ahead = Sent(), LocalPool.submit_ahead

    def noted(pool: LocalPool, method: str, calls: Any) -> Any:
        answers = submit_ahead(pool, method, calls)
        sent.add(len(answers))
        return answers

    monkeypatch.setattr(LocalPool, "submit_ahead", noted)
    monkeypatch.setattr(lanes, "SHORT", 1e9)
    return sent


@pytest.fixture(scope="module")
def alone(nothing_is_left: None) -> Iterator[hr.Executor]:
    """An executor of one worker."""
    with hr.connect(workers=1) as executor:
        yield executor


@pytest.fixture
def marks(tmp_path: Path) -> str:
    (tmp_path / "marks").touch()
    return str(tmp_path / "marks")


def queue_behind(executor: hr.Executor, sent: Sent, first: dict[str, Any], marks: str) -> list[Any]:
    """Have a call begin, and many wait behind it in its worker."""
    executor.submit(work, -1).result(WITHIN)  # how long it takes is known now
    futures = [executor.submit(work, 0, marks, **first)]
    futures += [executor.submit(work, number, marks) for number in range(1, MANY)]
    sent.wait()
    return futures


def test_what_waits_behind_a_long_call_goes_to_an_idle_worker(
    executor: hr.Executor, sent: Sent, marks: str, tmp_path: Path
) -> None:
    long, short = fifo(tmp_path, "long"), fifo(tmp_path, "short")
    executor.submit(work, -1).result(WITHIN)
    futures = [executor.submit(work, number, marks, gate) for number, gate in enumerate((long, short))]
    futures += [executor.submit(work, number, marks) for number in range(2, MANY)]
    sent.wait()  # behind both
    let_through(short)
    assert [future.result(WITHIN) for future in futures[1:]] == list(range(1, MANY))
    assert futures[0].running() and not futures[0].done()
    let_through(long)
    assert futures[0].result(WITHIN) == 0
    assert sorted(ran(marks)) == list(range(MANY))


def test_a_call_that_takes_long_keeps_no_others(
    alone: hr.Executor, sent: Sent, marks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, back = fifo(tmp_path), threading.Event()
    take_back = LocalPool.take_back

    def noted(pool: LocalPool) -> None:
        take_back(pool)
        back.set()

    monkeypatch.setattr(LocalPool, "take_back", noted)
    futures = queue_behind(alone, sent, {"gate": gate}, marks)
    assert not back.is_set()
    monkeypatch.setattr(lanes, "SHORT", 0.0)  # nothing is short any more
    last = alone.submit(work, MANY, marks)
    assert back.wait(WITHIN)
    let_through(gate)
    assert [future.result(WITHIN) for future in [*futures, last]] == list(range(MANY + 1))
    assert ran(marks) == list(range(MANY + 1)), "each waited again in its place"


def test_who_is_cancelled_does_not_run_and_who_is_not_does(
    alone: hr.Executor, sent: Sent, marks: str, tmp_path: Path
) -> None:
    gate = fifo(tmp_path)
    futures = queue_behind(alone, sent, {"gate": gate}, marks)
    assert not futures[0].cancel(), "it has begun"
    chosen = {3, 4, 9, MANY - 1}
    assert all(futures[number].cancel() for number in chosen)
    assert all(futures[number].cancelled() for number in chosen)
    let_through(gate)
    stayed = [number for number in range(MANY) if number not in chosen]
    assert [futures[number].result(WITHIN) for number in stayed] == stayed == ran(marks)


def test_cancelling_amid_the_rush_is_exact(executor: hr.Executor, marks: str) -> None:
    futures = [executor.submit(work, number, marks) for number in range(600)]
    answers = {number: futures[number].cancel() for number in range(599, 0, -7)}
    results = [None if future.cancelled() else future.result(WITHIN) for future in futures]
    counts = Counter(ran(marks))
    for number, future in enumerate(futures):
        assert future.cancelled() == answers.get(number, False)
        assert counts[number] == (0 if future.cancelled() else 1)
        assert results[number] == (None if future.cancelled() else number)


def test_a_killed_worker_costs_those_nothing_that_it_had_not_begun(
    alone: hr.Executor, sent: Sent, marks: str, tmp_path: Path
) -> None:
    once = alone.options(max_retries=0)
    gate = fifo(tmp_path)
    futures = queue_behind(once, sent, {"gate": gate}, marks)
    while not (lines := Path(marks).read_text().splitlines()):
        threading.Event().wait(0.01)
    os.kill(int(lines[0].split()[1]), signal.SIGKILL)
    with pytest.raises(CallLost, match="once"):
        futures[0].result(WITHIN)
    assert [future.result(WITHIN) for future in futures[1:]] == list(range(1, MANY))
    assert ran(marks) == list(range(MANY)), "in their order, each once"


def children() -> Any:
    executor = hr.connect()
    return sum(executor.get([executor.submit(work, number) for number in range(20)]))


def test_a_call_that_waits_keeps_none_behind_it(
    alone: hr.Executor, sent: Sent, marks: str, tmp_path: Path
) -> None:
    gate = fifo(tmp_path)
    futures = queue_behind(alone, sent, {"gate": gate, "then": children}, marks)
    let_through(gate)
    assert [future.result(WITHIN) for future in futures] == [190, *range(1, MANY)]
    assert ran(marks) == list(range(MANY))


def test_what_needs_something_else_has_its_turn(
    alone: hr.Executor, sent: Sent, marks: str, tmp_path: Path
) -> None:
    gate = fifo(tmp_path)
    futures = queue_behind(alone, sent, {"gate": gate}, marks)
    futures.append(alone.options(memory=1 << 20).submit(work, MANY, marks))
    futures += [alone.submit(work, MANY + number, marks) for number in range(1, MANY)]
    let_through(gate)
    assert [future.result(WITHIN) for future in futures] == list(range(2 * MANY)) == ran(marks)
    assert alone.available == alone.limits


class Diary:
    """Keeps the order of its calls."""

    def __init__(self) -> None:
        self.pages: list[Any] = []

    def note(self, page: Any, gate: str = "") -> int:
        if gate:
            through(gate)
        self.pages.append(page if isinstance(page, int) else len(page))
        return os.getpid()

    def read(self) -> list[Any]:
        return self.pages

    def leave(self) -> None:
        raise SystemExit


def test_an_actors_calls_keep_their_order(executor: hr.Executor, sent: Sent) -> None:
    diary = executor.actor(Diary)
    pages: list[Any] = [np.zeros(50_000) if number % 30 == 7 else number for number in range(300)]
    for number, page in enumerate(pages):
        diary.note(executor.submit(abs, page) if number % 50 == 3 else page)
    expected = [page if isinstance(page, int) else len(page) for page in pages]
    assert diary.read().result(WITHIN) == expected
    sent.wait(1)


def test_an_actors_calls_are_cancelled_or_carried_out(
    executor: hr.Executor, sent: Sent, tmp_path: Path
) -> None:
    diary, gate = executor.actor(Diary), fifo(tmp_path)
    futures = [diary.note(0, gate), *(diary.note(number) for number in range(1, MANY))]
    sent.wait()
    while not futures[0].running():
        threading.Event().wait(0.01)
    assert [futures[number].cancel() for number in (0, 2, 5, MANY - 1)] == [False, True, True, True]
    let_through(gate)
    stayed = [number for number in range(MANY) if number not in (2, 5, MANY - 1)]
    assert diary.read().result(WITHIN) == stayed
    rushed = [diary.note(number) for number in range(MANY, 400)]
    gone = [number for number, future in enumerate(rushed, MANY) if number % 3 == 0 and future.cancel()]
    assert diary.read().result(WITHIN) == stayed + [n for n in range(MANY, 400) if n not in gone]


def test_an_actor_that_is_killed_loses_only_what_it_was_at(
    executor: hr.Executor, sent: Sent, tmp_path: Path
) -> None:
    diary, gate = executor.actor(Diary, max_restarts=1), fifo(tmp_path)
    process = diary.note(-1).result(WITHIN)
    futures = [diary.note(0, gate), *(diary.note(number) for number in range(1, MANY))]
    sent.wait()
    os.kill(process, signal.SIGKILL)
    with pytest.raises(ActorDied):
        futures[0].result(WITHIN)
    assert {future.result(WITHIN) for future in futures[1:]}.isdisjoint({process})
    assert diary.read().result(WITHIN) == list(range(1, MANY))


def test_an_actor_that_leaves_begins_nothing_more(executor: hr.Executor, sent: Sent, tmp_path: Path) -> None:
    gate, marks = fifo(tmp_path), tmp_path / "marks"

    class Leaver(Diary):
        def mark(self) -> None:
            marks.touch()

    diary = executor.actor(Leaver)
    futures = [diary.note(0, gate), diary.leave(), *(diary.mark() for _ in range(MANY))]
    sent.wait()
    let_through(gate)
    assert futures[0].result(WITHIN)
    for future in futures[1:]:
        with pytest.raises(ActorDied):
            future.result(WITHIN)
    assert not marks.exists()


def test_a_ticket_is_taken_once_and_in_order() -> None:
    tickets = Tickets()
    reader = TicketReader(os.dup(tickets.fd))
    try:
        tickets.add([4, 5, 6, 7, 8])
        assert reader.take(4) and reader.take(5)
        assert tickets.take() == [6, 7, 8] and tickets.take() == []
        assert not reader.take(6)
        tickets.add([9, 10])
        assert [reader.take(number) for number in (7, 8, 9, 10)] == [False, False, True, True]
        tickets.add([11])
        assert tickets.take() == [11] and not reader.take(11)
    finally:
        tickets.close()
        os.close(reader._fd)


def test_an_answer_that_comes_as_the_executor_ends_begins_nothing(
    sent: Sent, marks: str, tmp_path: Path
) -> None:
    executor, gate = hr.connect(workers=1), fifo(tmp_path, "gate")
    dispatcher, answered = executor._core.dispatcher, threading.Event()
    try:
        first, *others = queue_behind(executor, sent, {"gate": gate}, marks)
        post = dispatcher.post

        def end() -> None:
            assert answered.wait(WITHIN)  # the answer waits behind this
            dispatcher._end(ExecutorClosed("it is closed"))

        def noted(action: Callable[[], None]) -> None:
            post(action)
            answered.set()

        post(end)
        dispatcher.post = noted  # type: ignore[method-assign]
        let_through(gate)
        for future in others:
            with pytest.raises(ExecutorClosed):
                future.result(WITHIN)
        assert first.exception(WITHIN) is None or isinstance(first.exception(), ExecutorClosed)
    finally:
        executor.shutdown()
