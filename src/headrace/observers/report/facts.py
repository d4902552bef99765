"""The results of a run, from the most reliable source: ``_SUCCESS``, else its last driver, else its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.core.events import RequirementsAsked, RunFinished
from headrace.core.work import Ledger
from headrace.observers.output_runs import OutputRun
from headrace.observers.record_reader import ledger_of, listed, table, whole
from headrace.observers.run_state import RunState

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
    samples: Sequence[RejectedSample] = ()
    trace: str = ""
    row: str = ""
    runs: tuple[OutputRun, ...] = ()  # of an output that has several, as far as they are complete
    number: int = 1  # which of them this is
    required: RequirementsAsked | None = None  # what was asked of the whole output, and decided


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

    ``values``: those of the row that ended the run may be shown.
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
    counted = state.metrics if success is not None or waits else None
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
        _faults(finished),
        table(success or {}, "metrics") or (counted.results if counted is not None else {}),
        {name: str(note) for name, note in counted.notes.items()} if counted is not None else {},
        counted.charts if counted is not None else {},
        samples,
        finished.trace if finished is not None and error else "",
        finished.row if finished is not None and error and values else "",
        runs,
        number,
        required,
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


def _faults(finished: RunFinished | None) -> tuple[tuple[str, str, str, int], ...]:
    counts = finished.faults.counts if finished is not None else ()
    found = [(fault.step, fault.kind, fault.message, rows) for fault, rows in counts]
    return tuple(sorted(found, key=lambda each: -each[3]))
