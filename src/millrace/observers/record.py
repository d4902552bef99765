"""The record of a run: its events as JSON lines, in a file that a reader can follow.

Each line is one object with ``at``, seconds since 1970, and ``event``; docs/report.md lists what else is in it. Where
there is much to tell, lines become sums over some time: the file of a run of a million shards is a few megabytes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from millrace.core import regular
from millrace.core.events import (
    BatchShrunk,
    BatchSized,
    CallRetried,
    Event,
    MemoryTaken,
    MetricsCounted,
    PoolResized,
    PoolWaits,
    RowsRead,
    RunDescribed,
    RunFinished,
    RunStarted,
    ShardCommitted,
    ShardDivided,
    ShardRetried,
    Worked,
    WorkerLost,
    WorkerReady,
    WorkerRetired,
)
from millrace.observers.folds import Commits, Memory, Span
from millrace.observers.summary import steps_of
from millrace.observers.tally import Tally

FORMAT = 1
FLUSH = 0.5  # seconds between two writes
SAMPLE = 1.0  # seconds between two samples of rows and memory, at first
FOLD_AFTER = 4_000  # lines, until those of a kind that is frequent become sums; then over twice the time
MOST = 500  # lines of each other kind; more of them are only counted

WORDS = 1_000  # characters of the message of a fault
LONG = 20_000  # of the error that ended a run

_NAMES: dict[type, str] = {
    RunDescribed: "described",
    RunStarted: "started",
    WorkerReady: "worker ready",
    BatchShrunk: "batch shrunk",
    BatchSized: "batch sized",
    CallRetried: "call retried",
    ShardRetried: "shard retried",
    WorkerLost: "worker lost",
    WorkerRetired: "worker retired",
    ShardDivided: "shard divided",
    PoolResized: "pool resized",
    PoolWaits: "pool waits",
    MetricsCounted: "metrics",
    RunFinished: "finished",
}
_ONCE = (RunDescribed, RunStarted, MetricsCounted, RunFinished)


class Record:
    """Appends what happens to a file that only its owner may read. A file that cannot be written raises ``OSError``.

    Parameters
    ----------
    path
        The file; what is in it stays.
    now, clock
        Seconds since 1970, and seconds that only ever grow.
    ours
        Whether the place is ours, where nothing but a regular file has any business. Elsewhere a link is followed,
        and a pipe is written to as long as somebody reads it: the run waits for nobody.
    """

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        ours: bool = True,
    ) -> None:
        self._path = path
        self._now = now
        self._clock = clock
        self._ours = ours
        self._fd = -1
        self._lines: list[bytes] = []
        self._flushed = self._sampled = self._folded = clock()
        self._tally: Tally | None = None
        self._told = (-1, -1)  # rows and shards of the last sample
        self._every = 0.0  # seconds that a sum is over
        self._frequent = 0  # lines since that was set
        self._ready: dict[int, float] = {}  # when a worker could begin
        self._spans: dict[tuple[int, int], Span] = {}
        self._commits = Commits()
        self._memory = Memory()
        self._counts: Counter[str] = Counter()
        self._more: Counter[str] = Counter()
        self._steps: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    # ------------------------------------------------------------ the port

    def on_event(self, event: Event) -> None:
        """Take a note; it is in the file half a second later."""
        if self._tally is not None:
            self._tally.add(event)
        if isinstance(event, Worked):
            key = event.stage, event.worker
            self._spans.setdefault(key, Span()).add(event, self._now(), self._ready.get(event.worker, 0.0))
        elif isinstance(event, ShardCommitted):
            self._commits.add(event)
        elif isinstance(event, MemoryTaken):
            self._memory.add(event)
        elif not isinstance(event, RowsRead):
            if isinstance(event, WorkerReady):
                self._ready[event.worker] = self._now()
            self._tell(event)
        if not self._every:
            self._tell_sums()

    def tick(self) -> None:
        """Write, if it is time."""
        clock = self._clock()
        if clock - self._sampled >= max(SAMPLE, self._every):
            self._sample()
            self._sampled = clock
        if self._every and clock - self._folded >= self._every:
            self._tell_sums()
            self._folded = clock
        if clock - self._flushed >= FLUSH:
            self._write()
            self._flushed = clock

    def close(self) -> None:
        """Write the rest. Another event opens the file again."""
        self._sample()
        self._tell_sums()
        self._write()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # ------------------------------------------------------------ lines

    def _tell(self, event: Event) -> None:
        name = _NAMES[type(event)]
        if isinstance(event, RunStarted):
            self._tally = Tally(event, self._clock())
        if isinstance(event, RunDescribed):
            self._steps = event.steps
        self._counts[name] += 1
        if self._counts[name] > MOST and not isinstance(event, _ONCE):
            self._more[name] += 1
            return
        if isinstance(event, RunFinished):
            self._sample()
            self._tell_sums()
        self._line(name, _fields(event, self._steps))
        if isinstance(event, RunStarted):  # so that who looks sees that it has begun
            self._write()
        if isinstance(event, RunFinished):
            self.close()

    def _tell_sums(self) -> None:
        """Tell what workers did and what was committed since the last time."""
        for (stage, worker), span in self._spans.items():
            self._line("worked", {"stage": stage, "worker": worker, **span.told()})
        if self._commits.shards:
            self._line("committed", self._commits.told())
        self._frequent += len(self._spans) + bool(self._commits.shards)
        self._spans.clear()
        self._commits = Commits()
        if self._frequent > FOLD_AFTER:
            self._frequent = 0
            self._every = max(1.0, 2 * self._every)
            self._folded = self._clock()

    def _sample(self) -> None:
        """Tell how far the run is, if it is further, what memory it took, and what was not told one by one."""
        if self._tally is not None:
            now = self._tally.rows, self._tally.shards
            if now != self._told:
                self._told = now
                self._line("progress", {"rows": now[0], "shards": now[1], "failed": self._tally.failing})
                self._frequent += 1
        if self._memory.limit:
            self._line("memory", self._memory.told())
            self._frequent += 1
            self._memory = Memory()
        for name, number in self._more.items():
            self._line("more", {"of": name, "count": number})
            self._frequent += 1
        self._more.clear()

    def _line(self, event: str, fields: dict[str, Any]) -> None:
        line = {"at": round(self._now(), 3), "event": event, **fields}
        try:
            self._lines.append(msgspec.json.encode(line, enc_hook=str))
        except UnicodeEncodeError:  # a path that is no text
            import json

            text = json.dumps(msgspec.to_builtins(line, enc_hook=str), ensure_ascii=False)
            self._lines.append(text.encode("utf-8", "replace"))

    def _write(self) -> None:
        if not self._lines:
            return
        if self._fd < 0:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            if self._ours:
                self._fd = regular.opened(self._path, flags)
            else:
                self._fd = os.open(self._path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                self._lines.insert(0, b"")  # the driver before was killed in the middle of a line
        data = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        while data:
            data = data[os.write(self._fd, data) :]


def _fields(event: Event, steps: tuple[str, ...]) -> dict[str, Any]:
    """Return what a line says of an event, all by name."""
    fields = msgspec.structs.asdict(event)
    if isinstance(event, RunDescribed):
        price = {"amount": event.price[0], "currency": event.price[1]} if event.price is not None else None
        return {"format": FORMAT, **fields, "price": price}
    if isinstance(event, RunFinished):
        ledger = event.ledger
        each = steps_of(ledger, steps)
        whole = {name: getattr(ledger, name) for name in ("read", "written", "rejected", "nulled")}
        timings = {name: round(seconds, 4) for name, seconds in msgspec.structs.asdict(event.timings).items()}
        faults = [
            {"step": fault.step, "kind": fault.kind, "message": fault.message[:WORDS], "rows": rows}
            for fault, rows in event.faults.counts
        ]
        retried = [{"step": step, "kind": kind, "calls": calls} for step, kind, calls in event.retried]
        more = {
            "timings": timings,
            "faults": faults,
            "retried": retried,
            "error": event.error[:LONG],
            "trace": event.trace[:LONG],
        }
        return {**fields, "ledger": {**whole, "steps": each}, **more}
    if isinstance(event, WorkerReady):
        return {**fields, "seconds": round(event.seconds, 4)}
    return fields
