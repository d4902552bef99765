"""Doubles for tests of the loop: an inbox on a fake clock, a committer that records its calls, scripted workers."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from headrace.core.work import CommitRecord, Done, Ledger, Outcome, Shard, Task, Timings
from headrace.driver.ports import InMemoryCommitter
from headrace.testing import FakeClock


class FakeInbox:
    """An inbox in which waiting moves a clock on, and takes no time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._messages: deque[Any] = deque()

    def put(self, message: Any) -> None:
        self._messages.append(message)

    def get(self, *, timeout: float) -> Any:
        if not self._messages:
            self._clock.advance(timeout)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._messages:
            raise queue.Empty
        return self._messages.popleft()


class RecordingCommitter(InMemoryCommitter):
    """Records what it was asked for, in ``calls``; ``commit`` waits for ``flush``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.waiting = 0

    @property
    def pending(self) -> bool:  # type: ignore[override]
        return self.waiting > 0

    def settle(self, schema: bytes) -> bytes:
        self.calls.append("settle")
        return schema

    def divide(self, parts: Sequence[Shard], *, early: bool = False) -> None:
        self.calls.append(f"divide {parts[0].index}{' early' if early else ''}")

    def accept(self, record: CommitRecord) -> None:
        super().accept(record)
        self.calls.append(f"accept {record.shard}")
        self.waiting += 1

    def commit_accepted(self, *, wait: bool = True) -> None:
        if self.waiting:
            self.calls.append("commit_accepted")
        self.waiting = 0


class ScriptedWorker:
    """Answers an attempt with what ``script`` says, and goes on with ``proceed``."""

    def __init__(self, script: Callable[[Task], Outcome], context: Any) -> None:
        self._script = script
        self._tasks: dict[int, Task] = {}

    def attempt(self, task: Task) -> Outcome:
        self._tasks[task.shard.index] = task
        return self._script(task)

    def proceed(self, shard: int, attempt: int, schema: bytes | None) -> Outcome:
        return done(self._tasks[shard])


def done(task: Task, **more: Any) -> Done:
    """Return the outcome of an attempt that wrote one row."""
    return Done(task.shard.index, task.attempt, (), Ledger(1, 1), Timings(), **more)
