"""The results of a run, from the most reliable source: ``_SUCCESS``, else its last driver, else its record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.core.asked import RequirementsAsked
from headrace.core.events import BatchShrunk, BatchSized, MemoryTaken, RunStarted, WorkerReady
from headrace.core.work import Faults, Ledger
from headrace.observers.record_reader import Line, OutputRun, ledger_of, listed, replay, table, whole
from headrace.observers.run_parts import CommitSum, ProgressSample, WorkSum
from headrace.observers.run_state import Folded, RunState

Status = Literal["complete", "under way", "unpublished", "discarded", "failed", "interrupted", "stopped"]


class RejectedSample(msgspec.Struct, frozen=True):
    """A rejected row: where it is, what it failed with, and its values as text, if they may be shown."""

    where: str
    step: str
    error: str
    values: str = ""


class JournalTotals(msgspec.Struct, frozen=True):
    """What the journal says of a run that is not complete."""

    ledger: Ledger
    shards: int
    files: int
    bytes: int


class Facts(msgspec.Struct, frozen=True):
    """The results of a run: what its page says besides the history. ``shards`` are (done, all)."""

    run: str
    output: str
    status: Status
    error: str
    ledger: Ledger
    steps: tuple[str, ...]
    files: int
    bytes: int
    shards: tuple[int, int]
    faults: tuple[tuple[str, str, str, int], ...] = ()  # step, kind, message, rows
    metrics: Mapping[str, Any] = {}
    notes: Mapping[str, str] = {}
    charts: Mapping[str, Any] = {}
    measured: int = 0  # shards that metrics are of, if not of all
    samples: Sequence[RejectedSample] = ()
    trace: str = ""
    row: str = ""
    runs: tuple[OutputRun, ...] = ()  # of an output that has several, as far as they are complete
    number: int = 1  # which of them this is
    required: RequirementsAsked | None = None  # what was asked of the whole output, and decided
    values: bool = False  # those of rows are shown, whatever the run says


def facts(
    state: RunState,
    *,
    output: str,
    success: Mapping[str, Any] | None = None,
    alive: bool = False,
    committed: JournalTotals | None = None,
    samples: Sequence[RejectedSample] = (),
    values: bool = False,
    runs: tuple[OutputRun, ...] = (),
    number: int = 1,
) -> Facts:
    """Collect the results. ``success`` is what ``_SUCCESS`` says; ``alive``: a driver is at work.

    ``values``: those of rows may be shown, such as of the one that ended the run.
    ``committed``, of a run that is not complete, takes precedence over its record.

    >>> state = RunState()
    >>> facts(state, output="/out").status
    'stopped'
    """
    last = state.last
    described = last.described if last is not None else None
    finished = last.finished if last is not None else None
    ledger, labels = _ledger_and_labels(state, success, committed)
    error = last.error if last is not None and success is None else None
    done = state.shards_done
    if success is not None:
        committed = None
        done = whole(success, "shards") or done
        files, size = whole(success, "files"), whole(success, "bytes") or state.bytes
    elif committed is not None:
        done, files, size = committed.shards, committed.files, committed.bytes
    else:
        files = finished.files if finished is not None else 0
        size = (finished.bytes if finished is not None else 0) or state.bytes
    required = state.required if success is None else RequirementsAsked.of(success)
    waits = required is not None and required.verdict == "not met"
    counted = state.metrics if success is not None or waits or alive else None
    return Facts(
        str((success or {}).get("run") or (described.run if described is not None else "")),
        output,
        _status(success is not None, alive, error, required),
        error or "",
        ledger,
        tuple(labels) if len(labels) == len(ledger.steps) else (),
        files,
        size,
        (done, max(done, state.shards)),
        _faults(finished.faults if finished is not None else state.faults),
        table(success or {}, "metrics") or (counted.results if counted is not None else {}),
        {name: str(note) for name, note in counted.notes.items()} if counted is not None else {},
        counted.charts if counted is not None else {},
        counted.shards if counted is not None and success is None else 0,
        samples,
        finished.trace if finished is not None and error else "",
        finished.row if finished is not None and error and values else "",
        runs,
        number,
        required,
        values,
    )


def _ledger_and_labels(
    state: RunState, success: Mapping[str, Any] | None, committed: JournalTotals | None
) -> tuple[Ledger, Sequence[str]]:
    """Return where rows went, and the labels of the steps: as the output says, or else its journal or record."""
    in_success = table(success or {}, "ledger")
    if in_success:
        steps = [step for step in listed(in_success, "steps") if isinstance(step, dict)]
        return ledger_of(in_success), tuple(str(step.get("step", "")) for step in steps)
    last = state.last
    labels = last.described.steps if last is not None and last.described is not None else ()
    if success is None and committed is not None:
        return committed.ledger, labels
    if last is not None and last.finished is not None and last.finished.ledger.read:
        return last.finished.ledger, labels
    counted = Ledger(
        state.read, state.written, state.rejected, nulled=state.nulled, answered=state.models.answered
    )
    return counted, labels


def _status(complete: bool, alive: bool, error: str | None, required: RequirementsAsked | None) -> Status:
    if complete:
        return "complete"
    if alive:
        return "under way"
    if required is not None and required.verdict in ("not met", "discarded"):
        return "unpublished" if required.verdict == "not met" else "discarded"
    if error is None or not error:
        return "stopped"
    return "interrupted" if error == "interrupted" else "failed"


def _faults(faults: Faults) -> tuple[tuple[str, str, str, int], ...]:
    found = [(fault.step, fault.kind, fault.message, rows) for fault, rows in faults.counts]
    return tuple(sorted(found, key=lambda each: -each[3]))


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

    def workers_now(self) -> Iterator[tuple[int, int, float, Sequence[WorkerSpan]]]:
        """Yield the number, the stage, the time of being ready and the spans of each worker of the present driver."""
        for worker, ready in sorted(self.ready.items()):
            name = self._name(worker)
            stage = next((stage for stage, tracks in self.tracks.items() if name in tracks), 0)
            yield worker, stage, self._work_time(ready), self.tracks.get(stage, {}).get(name, ())

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
