"""The record of a run: its events as JSON lines, in a file that a reader can follow while it grows.

Each line is one object with ``at``, seconds since 1970, and ``event``; docs/report.md lists the other fields.
Frequent events are summed over some time, so that the file of a run of a million shards is a few megabytes.
``record_reader`` reads the lines back.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.arguments import known_arguments
from headrace.core.asked import RequirementsAsked
from headrace.core.events import (
    Event,
    MemoryTaken,
    MetricsCounted,
    ModelAsked,
    RowsBegun,
    RowsRead,
    RunDescribed,
    RunFinished,
    RunStarted,
    ShardCommitted,
    ShardDivided,
    ShardsAdded,
    Worked,
    WorkerReady,
)
from headrace.core.files import safe_files
from headrace.core.work import Faults
from headrace.errors import ArgumentError
from headrace.observers.pace import SAMPLE
from headrace.observers.record_reader import KINDS
from headrace.observers.run_parts import CommitSum, ProgressSample, WorkSum
from headrace.observers.run_state import DIVIDED_EARLY, RunState, memory_of
from headrace.observers.summary import ledger_data

EVENTS = "events.jsonl"
"""The file with the record, in the folder of a run."""

FORMAT = 1
FLUSH = 0.5  # seconds between two writes
SUM_AFTER = 4_000  # lines, until frequent events become sums over a second; then over twice the time
SAMPLE_AT_MOST = 5.0  # seconds between two lines that say how far the run is
MOST = 500  # lines of each other kind; more of them are only counted

FAULT_CHARS = 1_000  # of the message of a fault
ERROR_CHARS = 20_000  # of the error that ended a run

NAMES = {kind: name for name, kind in KINDS.items()}
_ALWAYS = (RunDescribed, RunStarted, ShardsAdded, MetricsCounted, RequirementsAsked, RunFinished)


class Record:
    """Appends what happens to a file that only its owner may read. A file that cannot be written raises ``OSError``.

    Parameters
    ----------
    path
        The file; what is in it stays.
    ours
        Whether the folder is ours, so that only a regular file may be there. Elsewhere a link is followed, and a pipe
        is written to while it has a reader: the run never waits.
    """

    def __init__(self, path: Path, *, ours: bool = True) -> None:
        self._path = path
        self._ours = ours
        self._state = RunState()
        self._fd = -1
        self._lines: list[bytes] = []
        self._flushed = self._sampled = self._summed = self._noted = 0.0
        self._sample = ProgressSample(0, 0)  # the last that has a line
        self._sum_seconds = 0.0  # over which frequent events are summed; 0: each has a line
        self._frequent = 0  # lines since that was set
        self._work: dict[tuple[int, int], WorkSum] = {}  # by stage and worker
        self._commits: CommitSum | None = None
        self._memory: MemoryTaken | None = None
        self._asked: dict[str, ModelAsked] = {}  # by session, the last
        self._counts: Counter[str] = Counter()
        self._unlisted: Counter[str] = Counter()
        self._steps: tuple[str, ...] = ()
        self._told: set[tuple[str, str]] = set()  # kinds of faults that have a message

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def excuse(self, error: Exception) -> str:
        """Say that the file cannot be written, as where a disk is full."""
        if not isinstance(error, OSError | ValueError):
            return ""
        reason = getattr(error, "strerror", None) or error
        return f"The record {self._path} cannot be written, and is left out: {reason}."

    # ------------------------------------------------------------ the port

    def attach(self, state: RunState) -> None:
        """Read times and samples from ``state``, which has each event before this observer gets it."""
        self._state = state
        self._flushed = self._sampled = self._summed = self._noted = state.at

    def on_event(self, event: Event) -> None:
        """Add an event; it is in the file half a second later."""
        if isinstance(event, Worked):
            ready = self._state.ready.get(event.worker, 0.0)
            self._add_work(WorkSum.of(event, self._state.at, ready))
        elif isinstance(event, ShardCommitted):
            if self._commits is None:
                self._commits = CommitSum.of(event)
            else:
                self._commits.add(CommitSum.of(event))
        elif isinstance(event, MemoryTaken):
            if self._memory is None or memory_of(event) > memory_of(self._memory):
                self._memory = event
        elif isinstance(event, ModelAsked):
            self._asked[event.session] = event
        elif not isinstance(event, RowsRead | RowsBegun):
            if isinstance(event, WorkerReady):
                self._add_sample()
            self._add_line(event)
        if not self._sum_seconds:
            self._add_sums()

    def tick(self) -> None:
        """Write, if it is time."""
        now = self._state.at
        if now - self._sampled >= min(self._sum_seconds, SAMPLE_AT_MOST):
            self._add_sample()
        if now - self._noted >= max(SAMPLE, self._sum_seconds):
            self._add_maxima()
            self._noted = now
        if now - self._summed >= self._sum_seconds > 0:
            self._add_sums()
            self._summed = now
        if now - self._flushed >= FLUSH:
            self._write()
            self._flushed = now

    def close(self) -> None:
        """Write the rest. Another event opens the file again."""
        self._add_sample()
        self._add_maxima()
        self._add_sums()
        self._write()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # ------------------------------------------------------------ lines

    def _add_line(self, event: Event) -> None:
        name = NAMES[type(event)]
        if isinstance(event, RunDescribed):
            self._steps = event.steps
        kind = DIVIDED_EARLY if isinstance(event, ShardDivided) and event.early else name
        self._counts[kind] += 1
        if self._counts[kind] > MOST and not isinstance(event, _ALWAYS):
            self._unlisted[kind] += 1
            return
        if isinstance(event, RunFinished):
            self._add_sample()
            self._add_maxima()
            self._add_sums()
        self._line(name, _fields(event, self._steps))
        if isinstance(event, RunStarted):
            self._sample = self._state.sample  # which this line says
            self._write()  # so that `status` sees that it has begun
        if isinstance(event, RunFinished):
            self.close()

    def _add_work(self, work: WorkSum) -> None:
        key = work.stage, work.worker
        if key in self._work:
            self._work[key].add(work)
        else:
            self._work[key] = work

    def _add_sums(self) -> None:
        """Add what workers did and what was committed since the last time."""
        for work in self._work.values():
            self._line("worked", _plain(work, work.calls))
        for asked in self._asked.values():
            self._line("asked", msgspec.structs.asdict(asked))
        if self._commits is not None:
            self._commits.faults = self._new_words(self._commits.faults)
            self._line("committed", _plain(self._commits, self._commits.shards))
        self._frequent += len(self._work) + len(self._asked) + (self._commits is not None)
        self._asked.clear()
        self._work.clear()
        self._commits = None
        if self._frequent > SUM_AFTER:
            self._frequent = 0
            self._sum_seconds = max(1.0, 2 * self._sum_seconds)
            self._summed = self._state.at

    def _new_words(self, faults: Faults) -> Faults:
        """Return faults with messages only where the record has none of that kind yet."""
        told = []
        for fault, rows in faults.counts:
            known = (fault.step, fault.kind) in self._told
            words = "" if known else fault.message[:FAULT_CHARS]
            told.append((msgspec.structs.replace(fault, message=words), rows))
            self._told.add((fault.step, fault.kind))
        return Faults(tuple(told))

    def _add_sample(self) -> None:
        """Add how far the run is, if that has changed."""
        if self._state.sample != self._sample:
            self._sample = self._state.sample
            self._line("progress", msgspec.structs.asdict(self._sample), self._state.sampled_at)
            self._frequent += 1
            self._sampled = self._state.at

    def _add_maxima(self) -> None:
        """Add the most memory that was taken, and how many events have no lines of their own."""
        if self._memory is not None:
            self._line("memory", msgspec.structs.asdict(self._memory))
            self._frequent += 1
            self._memory = None
        for kind, number in self._unlisted.items():
            self._line("more", {"of": kind, "count": number})
            self._frequent += 1
        self._unlisted.clear()

    def _line(self, event: str, fields: dict[str, Any], at: float | None = None) -> None:
        line = {"at": self._state.at if at is None else at, "event": event, **fields}
        try:
            self._lines.append(msgspec.json.encode(line, enc_hook=str))
        except UnicodeEncodeError:  # a path that is not valid UTF-8
            import json

            text = json.dumps(msgspec.to_builtins(line, enc_hook=str), ensure_ascii=False)
            self._lines.append(text.encode("utf-8", "replace"))

    def _write(self) -> None:
        if not self._lines:
            return
        if self._fd < 0:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            if self._ours:
                self._fd = safe_files.opened(self._path, flags)
            else:
                self._fd = os.open(self._path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                self._lines.insert(0, b"")  # the driver before was killed in the middle of a line
        data = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        while data:
            data = data[os.write(self._fd, data) :]


def _plain(sums: WorkSum | CommitSum, number: int) -> dict[str, Any]:
    """Return the fields of a line; ``shard`` and ``attempt`` are there if it is a single one."""
    fields = msgspec.to_builtins(sums)
    if number > 1:
        del fields["shard"], fields["attempt"]
    fields["each"] = [round(seconds, 4) for seconds in sums.each] if isinstance(sums, WorkSum) else None
    if isinstance(sums, CommitSum) and not sums.faults.counts:
        del fields["faults"]
    plain = {name: round(value, 4) if isinstance(value, float) else value for name, value in fields.items()}
    return {name: value for name, value in plain.items() if name not in ("each", "answered") or value}


def _fields(event: Event, steps: tuple[str, ...]) -> dict[str, Any]:
    """Return what a line says of an event, all by name."""
    fields = msgspec.structs.asdict(event)
    if isinstance(event, RunDescribed):
        return {"format": FORMAT, **fields}
    if isinstance(event, RunFinished):
        times = msgspec.structs.asdict(event.timings)
        return {
            **fields,
            "ledger": ledger_data(event.ledger, steps),
            "timings": {name: round(took, 4) for name, took in times.items() if name != "each"},
            "faults": [
                {"step": fault.step, "kind": fault.kind, "message": fault.message[:FAULT_CHARS], "rows": rows}
                for fault, rows in event.faults.counts
            ],
            "retried": [{"step": step, "kind": kind, "calls": calls} for step, kind, calls in event.retried],
            "error": event.error[:ERROR_CHARS],
            "trace": event.trace[:ERROR_CHARS],
        }
    if isinstance(event, WorkerReady):
        return {**fields, "seconds": round(event.seconds, 4)}
    fields.pop("sizes", None)  # what they tell is in the samples
    return fields


class Log(Record):
    """Appends the events of a run as JSON lines to a file, for many runs if you like.

    Each driver's first line has the run's name, ``run``. The lines are those of ``OUT/_headrace/<run>/events.jsonl``,
    which every run has; docs/report.md lists them. They are written twice a second and never synced. A file that
    cannot be written is left out, with a warning; the run goes on. A pipe is written to while it has a reader.

    Parameters
    ----------
    path
        The file; what is in it stays.

    Raises
    ------
    ArgumentError
        It is no path.

    Examples
    --------
    >>> import pathlib, tempfile, headrace as hr
    >>> folder = tempfile.mkdtemp()
    >>> data = hr.range(3).with_options(observers=[hr.observers.Log(f"{folder}/runs.jsonl")], engine="inline")
    >>> data.with_options(progress=False).write_csv(f"{folder}/out").rows
    3
    >>> pathlib.Path(folder, "runs.jsonl").read_text()[:50]  # doctest: +ELLIPSIS
    '{"at":...,"event":"described",...
    """

    @known_arguments
    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not (isinstance(path, (str, os.PathLike)) and os.fspath(path)):
            raise ArgumentError(f"Log({path!r}): it takes the path of a file.")
        super().__init__(Path(path), ours=False)

    def attach(self, state: RunState) -> None:
        """Begin with another run, whose times and samples are read from ``state``."""
        self.close()
        super().__init__(self.path, ours=False)
        super().attach(state)
