"""How a run is, from its record: while it goes on, and afterwards."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.core import regular
from millrace.observers.human import count, countdown, duration, percent, plural, size
from millrace.observers.pace import Pace
from millrace.observers.report import figures
from millrace.observers.report.facts import Facts, facts
from millrace.observers.report.history import History, Reader, lines_of
from millrace.outputs.lock import holder
from millrace.outputs.reporting import REPORT, committed_in, folder_of, success_of
from millrace.watchers import EVENTS

_WINDOW = 30.0  # seconds over which speed is measured
_SILENT = 10.0  # seconds without a word that are worth one
_GO_ON = "run the same command again to go on"


class Follower:
    """Reads the record of an output's run as it grows.

    Raises ``NothingMatched`` if there is no run in the folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._begin(folder_of(root))

    def _begin(self, folder: Path) -> None:
        self._folder = folder
        self._reader = Reader()
        self._at = 0
        self._rest = b""

    def look(self) -> State:
        """Return how the run is now."""
        folder = folder_of(self._root)
        if folder != self._folder:  # another run took its place
            self._begin(folder)
        success = success_of(self._root, folder.name)
        alive = holder(self._root) is not None
        self._read()
        found = self._reader.found
        complete = success is not None and not (alive and found.last is not None and not found.last.finished)
        committed = committed_in(folder) if not complete and not alive else None
        known = facts(
            found,
            output=str(self._root),
            success=success if complete else None,
            alive=alive,
            committed=committed,
        )
        return State(found, known, folder / REPORT, self._silent() if alive else 0.0)

    def _silent(self) -> float:
        with contextlib.suppress(OSError):
            silent = time.time() - (self._folder / EVENTS).lstat().st_mtime
            return silent if silent >= _SILENT else 0.0
        return 0.0

    def _read(self) -> None:
        data = regular.read(self._folder / EVENTS, self._at)
        self._at += len(data)
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if newline:
            self._reader.feed(lines_of(whole))


@dataclass(frozen=True, slots=True)
class State:
    """How a run is at one moment; ``report`` is where its page is, once it has ended.

    ``silent``: the seconds since its driver's last word, if that is long ago: it computes one big batch, or hangs.
    """

    history: History
    facts: Facts
    report: Path
    silent: float = 0.0

    @property
    def ended(self) -> bool:
        """True if nobody is at work."""
        return self.facts.status != "under way"

    @property
    def rows(self) -> int:
        """Rows read; while the run goes on, those of shards under way among them."""
        if self.ended:
            return self.facts.ledger.read
        return self.history.rows[-1][1] if self.history.rows else 0

    @property
    def rows_in_all(self) -> int | None:
        """Rows of the input, if that is known."""
        last = self.history.last
        rows = last.started.get("rows", -1) if last is not None else -1
        return rows if isinstance(rows, int) and rows >= 0 else None

    @property
    def rows_per_second(self) -> float:
        """Of late, while it goes on; else over all of it."""
        return self.history.average if self.ended else self._pace()[0]

    @property
    def seconds_left(self) -> float | None:
        """How long it will take, as far as one can tell."""
        return None if self.ended else self._pace()[1]

    def _pace(self) -> tuple[float, float | None]:
        """Follow the last driver as who stands beside it does."""
        last = self.history.last
        if last is None:
            return 0.0, None
        rows, shards = last.before
        pace = Pace(last.start, rows=rows, shards=shards)
        for at, rows, shards in self.history.rows:
            if at >= last.start:
                pace.look(at, rows=rows, shards=shards)
        speed = pace.look(self.history.seconds + self.silent, rows=rows, shards=shards)
        whole = self.rows_in_all
        left = self.facts.shards[1] - shards if whole is None else whole - rows
        return speed, pace.left(left, by_rows=whole is not None)

    def busy(self) -> list[float]:
        """Return how busy each stage's workers are of late: a share of their time."""
        if self.ended:
            return figures.busy(self.history)
        now = self.history.seconds + self.silent
        since = max(self.history.last.start if self.history.last is not None else 0.0, now - _WINDOW)
        shares = []
        for stage, workers in enumerate(figures.stage_workers(self.history)):
            tracks = self.history.stages[stage].tracks.values() if stage in self.history.stages else ()
            work = sum(
                each.busy * max(0.0, min(each.end, now) - max(each.start, since))
                for track in tracks
                for each in track[-1000:]
            )
            shares.append(min(1.0, work / max(workers * (now - since), 1e-9)))
        return shares

    def data(self) -> dict[str, Any]:
        """Return everything as plain values."""
        ledger, history = self.facts.ledger, self.history
        left = self.seconds_left
        memory = history.memory[-1] if history.memory else None
        stages = zip(figures.stage_names(history), figures.stage_workers(history), self.busy(), strict=True)
        return {
            "output": self.facts.output,
            "run": self.facts.run,
            "status": self.facts.status,
            "error": self.facts.error,
            "rows_read": self.rows,
            "rows_in_all": self.rows_in_all,
            "rows_written": ledger.written,
            "rows_rejected": ledger.rejected,
            "rows_nulled": ledger.nulled,
            "rows_per_second": round(self.rows_per_second, 1),
            "shards_done": self.facts.shards[0],
            "shards": self.facts.shards[1],
            "bytes": self.facts.bytes,
            "seconds": round(history.seconds, 3),
            "seconds_left": None if left is None else round(left, 1),
            "seconds_silent": round(self.silent, 1),
            "drivers": len(history.drivers),
            "stages": [
                {"name": name, "workers": workers, "busy": round(share, 3)} for name, workers, share in stages
            ],
            "memory": None if memory is None else {"taken": _taken(memory), "limit": history.memory_limit},
            "incidents": dict(history.counts),
            "report": str(self.report) if self.report.exists() else None,
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return the same in words: names, and what belongs to them."""
        history, known = self.history, self.facts
        found = [("status", self._status())]
        whole = self.rows_in_all
        rows = count(self.rows)
        if whole is not None and not self.ended:
            share = min(1.0, self.rows / max(whole, 1))
            rows += f" of {count(whole)} ({percent(math.floor(100 * share) / 100)})"
        left = self.seconds_left
        speed = [f"{count(self.rows_per_second)} rows/s"] if self.rows_per_second > 0 else []
        speed += [f"ETA {countdown(left)}"] if left is not None else []
        found.append(("rows", ", ".join([f"{rows} read", *speed])))
        done, shards = known.shards
        written = [
            f"{done:,} of {shards:,}",
            f"{count(known.ledger.written)} rows and {size(known.bytes)} written",
        ]
        found.append(("shards", ", ".join(written)))
        failed = known.ledger.rejected + known.ledger.nulled
        if failed:
            found.append(
                ("failed", f"{plural(failed, 'row')}, {percent(failed / max(known.ledger.read, 1), 2)}")
            )
        names = figures.stage_names(history)
        for i, (name, workers, share) in enumerate(
            zip(names, figures.stage_workers(history), self.busy(), strict=True), 1
        ):
            words = f"{name}: {plural(workers, 'worker')}, {percent(share)} busy"
            found.append((f"stage {i}" if len(names) > 1 else "workers", words))
        if history.memory and not self.ended:
            taken = _taken(history.memory[-1])
            limit = f" of {size(history.memory_limit)}" if history.memory_limit else ""
            found.append(("memory", size(taken) + limit))
        if history.counts:
            found.append(
                ("trouble", ", ".join(f"{what}: {n:,}" for what, n in sorted(history.counts.items())))
            )
        if self.ended and self.report.exists():
            found.append(("report", str(self.report)))
        return found

    def _status(self) -> str:
        spent = duration(self.history.seconds)
        status, error = self.facts.status, self.facts.error.strip().split("\n")[0]
        if status == "complete":
            return f"complete, after {spent}"
        if status == "under way":
            quiet = f"; its driver said nothing for {duration(self.silent)}" if self.silent else ""
            return f"under way, for {duration(self.history.seconds + self.silent)}{quiet}"
        if status == "failed":
            return f"failed after {spent}: {error}"
        if status == "interrupted":
            return f"interrupted after {spent}; {_GO_ON}"
        return f"stopped: its driver ended without a word after {spent}, and none is at work; {_GO_ON}"


def _taken(sample: tuple[float, int, int, list[int]]) -> int:
    return sample[1] + sample[2] + sum(sample[3])
