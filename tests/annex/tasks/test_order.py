"""Many calls at once: each is carried out once, in its order, or is cancelled; whoever is killed or leaves."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ActorDied

from .test_calls import WITHIN, fifo, let_through, through

MANY = 40


def work(number: int, marks: str) -> int:
    """Note that it runs."""
    with open(marks, "a") as file:
        file.write(f"{number}\n")
    return number


def test_cancelling_amid_the_rush_is_exact(executor: hr.Executor, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    futures = [executor.submit(work, number, str(marks)) for number in range(600)]
    answers = {number: futures[number].cancel() for number in range(599, 0, -7)}
    results = [None if future.cancelled() else future.result(WITHIN) for future in futures]
    counts = Counter(map(int, marks.read_text().split()))
    for number, future in enumerate(futures):
        assert future.cancelled() == answers.get(number, False)
        assert counts[number] == (0 if future.cancelled() else 1)
        assert results[number] == (None if future.cancelled() else number)


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


def test_an_actors_calls_keep_their_order(executor: hr.Executor) -> None:
    diary = executor.actor(Diary)
    pages: list[Any] = [np.zeros(50_000) if number % 30 == 7 else number for number in range(300)]
    for number, page in enumerate(pages):
        diary.note(executor.submit(abs, page) if number % 50 == 3 else page)
    expected = [page if isinstance(page, int) else len(page) for page in pages]
    assert diary.read().result(WITHIN) == expected


def test_an_actors_calls_are_cancelled_or_carried_out(executor: hr.Executor, tmp_path: Path) -> None:
    diary, gate = executor.actor(Diary), fifo(tmp_path)
    futures = [diary.note(0, gate), *(diary.note(number) for number in range(1, MANY))]
    while not futures[0].running():
        threading.Event().wait(0.01)
    assert [futures[number].cancel() for number in (0, 30, 35, MANY - 1)] == [False, True, True, True]
    let_through(gate)
    stayed = [number for number in range(MANY) if number not in (30, 35, MANY - 1)]
    assert diary.read().result(WITHIN) == stayed
    rushed = [diary.note(number) for number in range(MANY, 400)]
    gone = [number for number, future in enumerate(rushed, MANY) if number % 3 == 0 and future.cancel()]
    assert diary.read().result(WITHIN) == stayed + [n for n in range(MANY, 400) if n not in gone]


def test_an_actor_that_is_killed_loses_only_what_it_was_at(executor: hr.Executor, tmp_path: Path) -> None:
    diary, gate = executor.actor(Diary, max_restarts=1), fifo(tmp_path)
    process = diary.note(-1).result(WITHIN)
    futures = [diary.note(0, gate), *(diary.note(number) for number in range(1, MANY))]
    while not futures[0].running():
        threading.Event().wait(0.01)
    os.kill(process, signal.SIGKILL)
    with pytest.raises(ActorDied):
        futures[0].result(WITHIN)
    assert {future.result(WITHIN) for future in futures[1:]}.isdisjoint({process})
    assert diary.read().result(WITHIN) == list(range(1, MANY))


def test_an_actor_that_leaves_begins_nothing_more(executor: hr.Executor, tmp_path: Path) -> None:
    gate, marks = fifo(tmp_path), tmp_path / "marks"

    class Leaver(Diary):
        def mark(self) -> None:
            marks.touch()

    diary = executor.actor(Leaver)
    futures = [diary.note(0, gate), diary.leave(), *(diary.mark() for _ in range(MANY))]
    let_through(gate)
    assert futures[0].result(WITHIN)
    for future in futures[1:]:
        with pytest.raises(ActorDied):
            future.result(WITHIN)
    assert not marks.exists()
