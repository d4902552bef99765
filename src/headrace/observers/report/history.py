"""The state of a run, and what the report draws over time: rows, workers, memory, batch sizes, incidents."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.core.events import BatchShrunk, BatchSized, MemoryTaken, RunStarted, WorkerReady
from headrace.observers.record_reader import Line, replay
from headrace.observers.run_parts import CommitSum, ProgressSample, WorkSum
from headrace.observers.run_state import Folded, RunState

MOST_INCIDENTS = 500


class WorkerSpan(msgspec.Struct):
    """A worker in calls from ``start`` to ``end``. ``busy``: the share of that time in which it worked."""

    start: float
    end: float
    busy: float = 1.0
    calls: int = 1
    outcome: str = "done"


class History(RunState):
    """A state that also keeps series, for the report. Times are seconds of work: between two drivers none passes.

    >>> lines = [{"at": 5.0, "event": "described"}, {"at": 7.0, "event": "committed", "shards": 1, "read": 9}]
    >>> found = history(lines)
    >>> found.seconds, found.progress
    (2.0, [(2.0, 9, 1)])
    """

    def __init__(self) -> None:
        super().__init__()
        self.progress: list[tuple[float, int, int]] = []  # time, rows read, shards done
        self.tracks: dict[int, dict[str, list[WorkerSpan]]] = {}  # stage → worker → its spans
        self.starts: dict[str, tuple[float, float]] = {}  # worker → when it was started, and ready
        self.memory_series: list[tuple[float, int, int, list[int]]] = []  # time, driver, blocks, stages
        self.batches: list[tuple[float, str, str, int, float]] = []  # time, step, what, rows, rows per second
        self.incidents: list[tuple[float, str, str]] = []  # time, what, words

    def add(self, event: Folded, at: float) -> None:
        """Add an event that happened at ``at``."""
        super().add(event, at)
        now = self._work_time(at)
        match event:
            case RunStarted() | CommitSum() | ProgressSample():
                self.progress.append((now, self.rows, self.shards_done))
            case MemoryTaken():
                self.memory_series.append((now, event.driver, event.blocks, list(event.stages)))
            case BatchSized():
                self.batches.append((now, event.step, "found best", event.rows, event.rows_per_second))
            case BatchShrunk():
                self.batches.append((now, event.step, "did not fit before", event.now, 0.0))

    def _start_of_worker(self, event: WorkerReady, at: float, took: float) -> None:
        now = self._work_time(at)
        self.starts.setdefault(self._name(event.worker), (max(self.drivers[-1].start, now - took), now))

    def _count(self, what: str, words: str) -> None:
        super()._count(what, words)
        if len(self.incidents) < MOST_INCIDENTS:
            self.incidents.append((self._work_time(self.at), what, " ".join(words.split())[:300]))

    def _work(self, work: WorkSum) -> None:
        super()._work(work)
        bad = next((each for each in ("lost", "failed") if work.outcomes.get(each)), "done")
        start, end = self._work_time(work.began), self._work_time(work.ended)
        span = WorkerSpan(start, max(start, end), work.busy, work.calls, bad)
        self.tracks.setdefault(work.stage, {}).setdefault(self._name(work.worker), []).append(span)

    def _work_time(self, at: float) -> float:
        driver = self.drivers[-1]
        return driver.start + max(0.0, at - driver.began)

    def _name(self, worker: int) -> str:
        """Return a worker's name: the number of its driver, from 1, and its own, from 0."""
        return f"{len(self.drivers)}.{worker}"


def history(lines: Iterable[Line | None]) -> History:
    """Read a record; what cannot be understood is left out, and counted in ``unread``."""
    found = History()
    replay(found, lines)
    return found
