"""Reads a record's lines back into the state of the run. Lines that cannot be understood are counted and left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, get_origin

import msgspec

from headrace.core.answered import answered_from
from headrace.core.asked import RequirementsAsked, RunAsked
from headrace.core.events import (
    BatchesAtWork,
    BatchShrunk,
    BatchSized,
    CallRetried,
    InputMade,
    MachinesWorked,
    MemoryTaken,
    MetricsCounted,
    ModelAsked,
    PoolResized,
    PoolWaits,
    RunDescribed,
    RunFinished,
    RunStarted,
    ShardDivided,
    ShardRetried,
    ShardsAdded,
    StageDescribed,
    WorkerLost,
    WorkerReady,
    WorkerRetired,
)
from headrace.core.table_changes import position_text
from headrace.core.work import Fault, Faults, Ledger, Timings
from headrace.observers.run_parts import CommitSum, ProgressSample, Unlisted, WorkSum
from headrace.observers.run_state import Folded, RunState

Line = dict[str, Any]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)

KINDS: dict[str, type[Any]] = {
    "described": RunDescribed,
    "input made": InputMade,
    "machines": MachinesWorked,
    "started": RunStarted,
    "worker ready": WorkerReady,
    "worked": WorkSum,
    "committed": CommitSum,
    "progress": ProgressSample,
    "asked": ModelAsked,
    "batches": BatchesAtWork,
    "memory": MemoryTaken,
    "batch shrunk": BatchShrunk,
    "batch sized": BatchSized,
    "call retried": CallRetried,
    "shard retried": ShardRetried,
    "worker lost": WorkerLost,
    "worker retired": WorkerRetired,
    "shard divided": ShardDivided,
    "shards added": ShardsAdded,
    "pool resized": PoolResized,
    "pool waits": PoolWaits,
    "run asked": RunAsked,
    "more": Unlisted,
    "metrics": MetricsCounted,
    "requirements": RequirementsAsked,
    "finished": RunFinished,
}
"""What each line is, by its ``event``."""

_LENIENT = (MetricsCounted, RequirementsAsked, WorkerRetired)


def lines_of(data: bytes) -> Iterator[Line | None]:
    """Yield the lines of a record; None for one that is damaged, such as the last of a driver that was killed."""
    decoder = msgspec.json.Decoder()
    for text in data.split(b"\n"):
        if not text:
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            line = None
        yield line if isinstance(line, dict) else None


def replay(state: RunState, lines: Iterable[Line | None]) -> None:
    """Add the lines of a record to a state.

    >>> state = RunState()
    >>> lines = [{"at": 5.0, "event": "described"}, {"at": 7.0, "event": "committed", "shards": 1, "read": 9}]
    >>> replay(state, lines)
    >>> state.seconds, state.read, state.shards_done
    (2.0, 9, 1)
    """
    for line in lines:
        try:
            if line is None:
                raise ValueError("no line")
            event, at = event_of(line), float(line["at"])
            if event is not None:
                state.add(event, at)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            state.unread += 1


def event_of(line: Line) -> Folded | None:
    """Return what a line says; None for an event that this version does not know.

    Of a driver's first and last lines every field that makes sense is used. Raises ``ValueError`` for another line
    with a field that makes none.
    """
    kind = KINDS.get(str(line["event"]))
    if kind is None:
        return None
    if kind is RunDescribed:
        return _described(line)
    if kind is RunFinished:
        return _finished(line)
    if kind is RunStarted:
        return lenient(RunStarted, line, rows=whole(line, "rows", -1))
    event: Folded = lenient(kind, line) if kind in _LENIENT else msgspec.convert(line, kind)
    return event


def _described(line: Line) -> RunDescribed:
    stages = (stage for stage in listed(line, "stages") if isinstance(stage, dict))
    return lenient(RunDescribed, line, stages=tuple(lenient(StageDescribed, stage) for stage in stages))


def _finished(line: Line) -> RunFinished:
    faults = [
        (Fault(*(str(each.get(name, "")) for name in ("step", "kind", "message"))), whole(each, "rows"))
        for each in listed(line, "faults")
        if isinstance(each, dict)
    ]
    retried = tuple(
        (str(each.get("step", "")), str(each.get("kind", "")), whole(each, "calls"))
        for each in listed(line, "retried")
        if isinstance(each, dict)
    )
    timings = lenient(Timings, table(line, "timings"))
    ledger = ledger_of(table(line, "ledger"))
    return lenient(
        RunFinished, line, ledger=ledger, timings=timings, faults=Faults(tuple(faults)), retried=retried
    )


_fields = cache(msgspec.structs.fields)


def prepare() -> None:
    """Find out what the fields of events are, before they are needed."""
    for kind in (RunDescribed, StageDescribed, RunStarted, RunFinished, Timings, MetricsCounted):
        _fields(kind)
    for other in (WorkSum, CommitSum, ProgressSample, MemoryTaken, WorkerReady):
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.convert({}, other)


def lenient(kind: type[_Struct], line: Mapping[str, Any], **known: Any) -> _Struct:
    """Return a struct with those fields of a line that make sense; nothing is read of those that are ``known``."""
    values = dict(known)
    for field in _fields(kind):
        if field.name in known:
            continue
        try:
            values[field.name] = msgspec.convert(line[field.name], field.type)
        except (KeyError, msgspec.ValidationError):
            if field.required:
                values[field.name] = (get_origin(field.type) or field.type)()  # "", 0, an empty dict
    return kind(**values)


# ------------------------------------------------------------ JSON of unknown origin


def ledger_of(ledger: Mapping[str, Any]) -> Ledger:
    """Return the ledger that the record, or ``_SUCCESS``, has as an object with a list ``steps``."""
    steps = [step for step in listed(ledger, "steps") if isinstance(step, dict)]
    return Ledger(
        whole(ledger, "read"),
        whole(ledger, "written"),
        whole(ledger, "rejected"),
        tuple((whole(step, "rows_in"), whole(step, "rows_out")) for step in steps),
        tuple(whole(step, "rejected") for step in steps),
        whole(ledger, "nulled"),
        tuple(whole(step, "dropped") for step in steps),
        tuple(whole(step, "added") for step in steps),
        tuple(whole(step, "unused") for step in steps),
        answered=answered_from(table(ledger, "answered")),
        gathered=whole(ledger, "gathered"),
    )


def table(line: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is an object; empty if it is none."""
    found = line.get(name)
    return found if isinstance(found, dict) else {}


def listed(line: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that is a list; empty if it is none."""
    found = line.get(name)
    return found if isinstance(found, list) else []


def whole(line: Mapping[str, Any], name: str, otherwise: int = 0) -> int:
    """Return a field that is a number, as an integer; ``otherwise`` if it is none."""
    found = line.get(name)
    return int(found) if isinstance(found, (int, float)) and abs(found) < 2**63 else otherwise


# ----------------------------------------------------------------
# The runs of one output, as ``_SUCCESS`` names them.


class OutputRun(msgspec.Struct, frozen=True):
    """One run: when it was, what it took in, and what is there of it now."""

    name: str = ""
    began: str = ""
    ended: str = ""
    seconds: float = 0.0
    input_files: int = 0
    input_files_again: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    code: tuple[str, ...] = ()
    input: str = ""  # up to which version it was read, if it has any


def runs_in(success: Mapping[str, Any]) -> tuple[OutputRun, ...]:
    """Return the runs that ``_SUCCESS`` names; what is no run is left out.

    >>> [(run.name, run.rows) for run in runs_in({"runs": [{"run": "k3f9a2xq", "rows": 4}, 7]})]
    [('k3f9a2xq', 4)]
    """
    return tuple(
        lenient(OutputRun, {**each, "name": each.get("run"), "input": position_text(each.get("input"))})
        for each in listed(success, "runs")
        if isinstance(each, dict)
    )
