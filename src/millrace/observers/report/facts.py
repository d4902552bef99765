"""What is known of a run, from whoever knows it best: ``_SUCCESS``, else its last driver, else the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from millrace.core.work import Ledger
from millrace.observers.report.history import History

Status = Literal["complete", "under way", "failed", "interrupted", "stopped"]


class Sample(msgspec.Struct, frozen=True):
    """A rejected row: where it is, what it failed with, and its values as text, if they may be shown."""

    where: str
    step: str
    error: str
    values: str = ""


class Committed(msgspec.Struct, frozen=True):
    """What the journal says of a run that is not complete."""

    ledger: Ledger
    shards: int
    files: int
    bytes: int


class Facts(msgspec.Struct, frozen=True):
    """What a page says of a run besides its history. ``shards`` are (done, all)."""

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
    samples: Sequence[Sample] = ()
    trace: str = ""


def facts(
    history: History,
    *,
    output: str,
    success: Mapping[str, Any] | None = None,
    alive: bool = False,
    committed: Committed | None = None,
    samples: Sequence[Sample] = (),
) -> Facts:
    """Put together what is known. ``success`` is what ``_SUCCESS`` says; ``alive``: a driver is at work.

    ``committed``, of a run that is not complete, counts more than its record.

    >>> lines = [{"at": 5.0, "event": "described", "run": "r1"}]
    >>> from millrace.observers.report.history import history
    >>> facts(history(lines), output="/out").status
    'stopped'
    """
    last = history.last
    finished = last.finished if last is not None else {}
    told = _table(success or {}, "ledger") or _table(finished, "ledger")
    steps = [step for step in _list(told, "steps") if isinstance(step, dict)]
    labels = tuple(str(step.get("step", "")) for step in steps)
    ledger = (
        Ledger(
            _whole(told, "read"),
            _whole(told, "written"),
            _whole(told, "rejected"),
            tuple((_whole(step, "rows_in"), _whole(step, "rows_out")) for step in steps),
            tuple(_whole(step, "rejected") for step in steps),
            _whole(told, "nulled"),
            *(tuple(_whole(step, name) for step in steps) for name in ("dropped", "added", "unused")),
        )
        if told
        else _summed(history)
    )
    if success is None and committed is not None:
        ledger = committed.ledger
        labels = tuple(map(str, _list(last.described, "steps"))) if last is not None else ()
        labels = labels if len(labels) == len(ledger.steps) else ()
    error = last.error if last is not None else None
    done, everything = _shards(history)
    if success is not None:
        done = _whole(success, "shards") or done
        committed = None
    if committed is not None:
        done = committed.shards
    source = success if success is not None else finished
    metrics = history.metrics if success is not None else {}
    return Facts(
        str((success or {}).get("run") or (last.described.get("run", "") if last is not None else "")),
        output,
        _status(success is not None, alive, error),
        error or "",
        ledger,
        labels,
        committed.files if committed is not None else _whole(source, "files"),
        committed.bytes if committed is not None else _whole(source, "bytes") or history.bytes,
        (done, max(done, everything)),
        _faults(finished),
        _table(success or {}, "metrics") or _table(metrics, "results"),
        {name: str(note) for name, note in _table(metrics, "notes").items()},
        _table(metrics, "charts"),
        samples,
        last.trace if last is not None and error else "",
    )


def _status(complete: bool, alive: bool, error: str | None) -> Status:
    if complete:
        return "complete"
    if alive:
        return "under way"
    if error is None or not error:
        return "stopped"
    return "interrupted" if error == "interrupted" else "failed"


def _summed(history: History) -> Ledger:
    """Return what the record tells of what was committed, by all drivers."""
    return Ledger(history.read, history.written, history.rejected, nulled=history.nulled)


def _shards(history: History) -> tuple[int, int]:
    started = history.last.started if history.last is not None else {}
    done = history.rows[-1][2] if history.rows else 0
    return done, _whole(started, "shards") + history.divided


def _faults(finished: Mapping[str, Any]) -> tuple[tuple[str, str, str, int], ...]:
    found = [
        (
            str(each.get("step", "")),
            str(each.get("kind", "")),
            str(each.get("message", "")),
            _whole(each, "rows"),
        )
        for each in _list(finished, "faults")
        if isinstance(each, dict)
    ]
    return tuple(sorted(found, key=lambda each: -each[3]))


def _table(line: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = line.get(name)
    return found if isinstance(found, dict) else {}


def _list(line: Mapping[str, Any], name: str) -> list[Any]:
    found = line.get(name)
    return found if isinstance(found, list) else []


def _whole(line: Mapping[str, Any], name: str) -> int:
    found = line.get(name, 0)
    return int(found) if isinstance(found, (int, float)) and abs(found) < 2**63 else 0
