"""How a run is, from its record: while it goes on, and afterwards."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headrace.annex.report.facts import Facts
from headrace.annex.report.writing import facts_in, folder_of
from headrace.core.files import safe_files
from headrace.core.human import clock, duration, per_second, percent, plural, size
from headrace.core.stores.addresses import Options
from headrace.core.work import HOME
from headrace.errors import HeadraceError
from headrace.observers.record import EVENTS
from headrace.observers.record_reader import lines_of, replay
from headrace.observers.run_state import RunState, memory_of
from headrace.observers.summary import all_parts, stage_times, told
from headrace.observers.words import (
    answer_lines,
    begun_text,
    model_data,
    rows_in_all,
)
from headrace.output.names import REPORT
from headrace.output.places.lease import Watch
from headrace.output.places.place import Place, looked_at
from headrace.output.runs import shown_run, unreadable_success

_SILENT = 10.0  # seconds without an event after which `status` says so
_RESUME = "run the same command again to resume it"


class Follower:
    """Reads the record of an output's run as it grows; of one in a store, as much as its driver has uploaded.

    ``opened`` gives the output, if not by its path. ``kind``: of the state that the record is added to. ``watch``:
    of who writes it, if that was begun before.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: Options | None = None,
        *,
        opened: Callable[[], AbstractContextManager[Place]] | None = None,
        kind: type[RunState] = RunState,
        watch: Watch | None = None,
    ) -> None:
        self._looked_at = opened or partial(looked_at, path, options)
        self._kind = kind
        self._watch = watch
        self._run = ""
        self.pause = 0.5  # seconds between two looks
        self.root: Path | None = None  # the output, where its parts can be read
        self._begin()

    def _begin(self) -> None:
        self._state = self._kind()
        self._at = 0
        self._rest = b""

    def poll(self) -> RunStatus:
        """Return how the run is now. Raises ``NothingMatched`` if there is none."""
        with self._looked_at() as output:
            folder = folder_of(output.root)
            if folder.name != self._run:  # another run took its place
                self._run = folder.name
                self._begin()
            self.root = None if output.copied else output.root
            if output.copied:
                self.pause = 5.0  # the record is not uploaded more often
            return self._told(folder, output)

    def _told(self, folder: Path, output: Place) -> RunStatus:
        self._read(folder / EVENTS)
        self._watch = self._watch or Watch(output.sign)
        found = told_by_record(self._state, folder, output, alive=self._watch.wait())
        if found.facts.status == "complete":
            return replace(found, gone=found.gone or _gone(output))
        return found

    def _read(self, record: Path) -> None:
        with contextlib.suppress(OSError):
            if record.lstat().st_size < self._at:  # a further run has begun its own
                self._begin()
        data = safe_files.read(record, self._at)
        self._at += len(data)
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if newline:
            replay(self._state, lines_of(whole))


def told_by_record(state: RunState, folder: Path, output: Place, *, alive: bool) -> RunStatus:
    """Return how the run in ``folder`` is, by its record, ``_SUCCESS``, and whether a driver is at work."""
    known = facts_in(state, folder, output, alive=alive)
    report = f"{HOME}/{folder.name}/{REPORT}"
    return RunStatus(
        state,
        known,
        output.at(report) if output.size_of(report) >= 0 else None,
        _silent(folder / EVENTS) if alive and not output.copied else 0.0,
        "" if alive else unreadable_success(output.root),
    )


def _silent(record: Path) -> float:
    """Return the seconds since a record was last written."""
    with contextlib.suppress(OSError):
        return max(0.0, time.time() - record.lstat().st_mtime)
    return 0.0


def _gone(output: Place) -> str:
    """Say what is gone of the output that ``_SUCCESS`` speaks of; "" if nothing is, or nobody can tell."""
    from headrace.output.verification import gone

    try:
        run = shown_run(output.root)
        return "" if run is None else gone(output, run)
    except HeadraceError:
        return ""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How a run is at one moment; ``report`` is where its page is, once it has ended.

    ``silent``: the seconds since its driver's last event. If that is long ago, it computes one big batch, or hangs.
    ``gone``: what is not there any more of an output that was complete.
    """

    state: RunState
    facts: Facts
    report: Path | str | None
    silent: float = 0.0
    gone: str = ""

    @property
    def ended(self) -> bool:
        """True if no driver is at work."""
        return self.facts.status != "under way"

    @property
    def rows(self) -> int:
        """Rows read; while the run goes on, including those of shards that are not committed yet."""
        return self.facts.ledger.read if self.ended else self.state.rows

    @property
    def failed(self) -> int:
        """Rows that were rejected, or got a null for a result; counted like ``rows``."""
        ledger = self.facts.ledger
        return ledger.rejected + ledger.nulled if self.ended else self.state.failed

    @property
    def rows_expected(self) -> int | None:
        """Rows of the input, if that is known."""
        return self.state.rows_expected

    @property
    def rows_per_second(self) -> float:
        """In the last half minute, while the run goes on; else over all of it."""
        return self.state.average(self.now) if self.ended else self.state.speed(self.now)

    @property
    def seconds(self) -> float:
        """How long drivers worked on the run."""
        return self.state.seconds if self.ended else self.state.elapsed(self.now)

    @property
    def seconds_left(self) -> float | None:
        """How long it will take, as far as one can tell."""
        return None if self.ended else self.state.time_left(self.now)

    @property
    def now(self) -> float:
        """The time, in seconds since 1970."""
        return self.state.at + self.silent

    def busy(self) -> list[float]:
        """Return how busy each stage's workers are: a share of the last half minute, once it has ended of all."""
        return self.state.busy(self.now) if self.ended else self.state.busy_lately(self.now)

    def spent(self) -> list[tuple[str, float]]:
        """Return what the workers did, and the share of their time, the most first; as the report has it."""
        parts = all_parts(stage_times(self.state, self.now))
        return [(part.name, round(part.share, 4)) for part in parts]

    def data(self) -> dict[str, Any]:
        """Return everything as plain values."""
        ledger, state = self.facts.ledger, self.state
        left = self.seconds_left
        stages = zip(state.stage_names, state.stage_workers, self.busy(), strict=True)
        memory = (
            None if state.memory is None else {"taken": memory_of(state.memory), "limit": state.memory_limit}
        )
        return {
            "output": self.facts.output,
            "run": self.facts.run,
            "number": self.facts.number,
            "status": "damaged" if self.gone else self.facts.status,
            "error": self.facts.error,
            "required": msgspec.to_builtins(self.facts.required),
            "rows_read": self.rows,
            "rows_in_all": self.rows_expected,
            "rows_half_done": 0 if self.ended else max(0, max(self.state.begun, default=0) - self.rows),
            "rows_written": ledger.written,
            "rows_rejected": ledger.rejected,
            "rows_nulled": ledger.nulled,
            "rows_per_second": round(self.rows_per_second, 1),
            "shards_done": self.facts.shards[0],
            "shards": self.facts.shards[1],
            "bytes": self.facts.bytes,
            "seconds": round(self.seconds, 3),
            "seconds_left": None if left is None else round(left, 1),
            "seconds_silent": round(self.silent if self.silent >= _SILENT else 0.0, 1),
            "drivers": len(state.drivers),
            "stages": [
                {"name": name, "workers": workers, "busy": round(share, 3)} for name, workers, share in stages
            ],
            "spent": dict(self.spent()),
            "memory": memory,
            "language_model": model_data(state, self.now, ledger.answered, ended=self.ended),
            "batches": msgspec.to_builtins(list(state.batches_sent.values())),
            "machines": msgspec.to_builtins(state.machines),
            "incidents": dict(state.counts),
            "runs": [msgspec.to_builtins(run) for run in self.facts.runs],
            "report": str(self.report) if self.report else None,
            "gone": self.gone,
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return the same in words: names and values."""
        state, known = self.state, self.facts
        found = [("status", self._status())]
        if known.required is not None:
            found.append(("required", str(known.required)))
        if known.number > 1:
            runs = f"`headrace runs {shlex.quote(known.output)}` shows all"
            found.append(("run", f"number {known.number:,} of this output: {runs}"))
        rows = f"{self.rows:,}"
        if (whole := rows_in_all(state)) and not self.ended:
            share = math.floor(100 * (state.share or 0.0) + 1e-9) / 100
            rows += f" of {whole} ({percent(share)})"
        left = self.seconds_left
        half = [] if self.ended else [begun_text(state)]
        speed = [per_second(self.rows_per_second)] if self.rows_per_second > 0 else []
        speed += [f"{clock(left)} left"] if left is not None else []
        found.append(("rows", ", ".join(filter(None, [f"{rows} read", *half, *speed]))))
        found += [("batches", str(each)) for each in state.batches_sent.values()]
        found += answer_lines(state, self.now, known.ledger.answered, ended=self.ended)
        done, shards = known.shards
        written = f"{plural(known.ledger.written, 'row')} and {size(known.bytes)} written"
        found.append(("parts", f"{done:,} of {shards:,} are finished, {written}"))
        if self.failed:
            found.append(
                ("failed", f"{plural(self.failed, 'row')}, {percent(self.failed / max(self.rows, 1), 2)}")
            )
        names = [] if state.machines else state.stage_names  # the work was done by others
        for i, (name, workers, share) in enumerate(
            zip(names, state.stage_workers, self.busy(), strict=False), 1
        ):
            words = f"{name}: {plural(workers, 'worker')}, {percent(share)} busy"
            found.append((f"stage {i}" if len(names) > 1 else "workers", words))
        if spent := told(self.spent()):
            found.append(("time", spent))
        if state.memory is not None and not self.ended:
            limit = f" of {size(state.memory_limit)}" if state.memory_limit else ""
            found.append(("memory", size(memory_of(state.memory)) + limit))
        incidents = [
            f"{what.replace('shard', 'part')}: {number:,}"
            for what, number in sorted(state.counts.items())
            if what != "pool resized"  # which is usual
        ]
        if incidents:
            found.append(("trouble", ", ".join(incidents)))
        found += [("machine", str(each)) for each in state.machines]
        if self.ended and self.report:
            found.append(("report", str(self.report)))
        return found

    def _status(self) -> str:
        spent = duration(self.seconds)
        status, error = self.facts.status, self.facts.error.strip().split("\n")[0]
        if self.gone:
            return f"damaged: it was complete after {spent}, and now {self.gone}"
        if status == "complete":
            return f"complete, after {spent}"
        if status == "under way":
            quiet = f"; no event for {duration(self.silent)}" if self.silent >= _SILENT else ""
            return f"under way, for {spent}{quiet}"
        if status == "unpublished":
            return (
                f"complete after {spent}, and not published: `headrace publish` does that all the same, `headrace "
                "discard` drops it"
            )
        if status == "discarded":
            return "discarded: a requirement was not met, and somebody dropped its rows"
        if status == "failed":
            return f"failed after {spent}: {error}"
        if status == "interrupted":
            return f"interrupted after {spent}; {_RESUME}"
        return f"stopped: its driver process died after {spent}, and no other is running; {_RESUME}"
