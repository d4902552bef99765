"""Finds the rows that end their workers, and calls that take too long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headrace.core.asked import RunAsked
from headrace.core.events import WorkerRetired
from headrace.core.messages import CallEnded, CallStarted
from headrace.core.source_ports import Location, row_range
from headrace.core.work import ErrorReport, Fault, PoisonRows, Reject, Shard, Split, Suspect, Task
from headrace.driver.policy import (
    Action,
    EndWorker,
    Policy,
    RunView,
    Verdict,
    WorkerDeath,
)
from headrace.errors import NeverReady, NodeLost

UNWATCHED = 2  # deaths before a shard's calls are watched: its rows may have nothing to do with them
PARTS = 32  # into which a batch is cut that a worker died over


class PoisonRowDetector(Policy):
    """Narrows down the rows over which workers die, or hang for more than ``timeout`` seconds.

    A shard that has ended two workers is watched: its next worker reports each call. The batch that it dies over is
    cut in 32 the next time, and so on, until a single row is found; that is skipped from then on. A batch of 65,536
    rows takes four deaths.
    """

    def __init__(
        self,
        timeout: float | None = None,
        *,
        raises: bool = True,
        locate: Callable[[Split, int], Location] = lambda split, row: Location("the input", row),
    ) -> None:
        """``raises``: a poison row ends the run; ``locate`` says where a row stands."""
        self._timeout = timeout
        self._raises = raises
        self._locate = locate
        # By worker, and its calls:
        self._calls: dict[int, dict[int, tuple[CallStarted, float]]] = defaultdict(dict)
        self._overdue: dict[int, CallStarted] = {}  # by worker
        self._last_calls: dict[int, list[CallStarted]] = {}  # by dead worker
        self._deaths: dict[int, int] = defaultdict(int)  # by shard
        self._suspects: dict[int, list[Suspect]] = defaultdict(list)
        self._skip: dict[int, list[Reject]] = defaultdict(list)

    def on_message(self, message: Any, now: float) -> None:
        """Note which calls begin and end."""
        if isinstance(message, CallStarted):
            self._calls[message.worker][message.call] = message, now
        elif isinstance(message, CallEnded):
            self._calls[message.worker].pop(message.call, None)
        elif isinstance(message, RunAsked) and message.on_error is not None:
            self._raises = message.on_error == "raise"
        elif isinstance(message, WorkerRetired):  # not because of its calls
            self._calls.pop(message.worker, None)

    def before_submit(self, task: Task) -> Task:
        """Add the rows to skip, and those that may end the worker."""
        return msgspec.structs.replace(task, poison_rows=self.poison_rows(task.shard.index))

    def poison_rows(self, shard: int) -> PoisonRows:
        """Return what the next worker at a shard should know."""
        watched = self._timeout is not None or self._deaths[shard] >= UNWATCHED
        return PoisonRows(watched, tuple(self._suspects[shard]), tuple(self._skip[shard]))

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """End the workers whose call takes too long."""
        return () if self._timeout is None else self.overdue(view.now)

    def overdue(self, now: float) -> list[EndWorker]:
        """Return the workers to end because a call takes too long, each once."""
        if self._timeout is None:
            return []
        found = []
        for worker, calls in self._calls.items():
            for calling, since in calls.values():
                if now - since > self._timeout and worker not in self._overdue:
                    self._overdue[worker] = calling
                    reason = (
                        f"{calling.step} worked on one batch for more than batch_timeout={self._timeout:g} s"
                    )
                    found.append(EndWorker(worker, reason))
        return found

    def on_death(self, death: WorkerDeath) -> Verdict:
        """Charge the shard, unless its worker was at another shard, or its rows are being narrowed down.

        If nobody knows which shard the worker was at, it is the first one reported. A worker that could not work yet,
        or whose machine is gone, died of no shard.
        """
        if isinstance(death.error, (NeverReady, NodeLost)):
            return Verdict(charged=False)
        shard, worker, reason = death.shard, death.worker, str(death.error)
        first = worker not in self._last_calls
        if first:
            self._last_calls[worker] = [calling for calling, _ in self._calls.pop(worker, {}).values()]
        calls = [calling for calling in self._last_calls[worker] if calling.shard == shard]
        if not calls and not (first if death.at_work is None else death.at_work):
            return Verdict(charged=False)
        overdue = self._overdue.get(worker)
        self._deaths[shard] += 1
        if overdue in calls:
            calls = [overdue]
        elif self._deaths[shard] <= UNWATCHED or not calls:
            return Verdict(charged=True)
        kind = "WorkerDied" if overdue is None else "BatchTimeout"
        for calling in calls:
            poison_rows = self._narrow(calling, kind, reason, alone=len(calls) == 1)
            if poison_rows and self._raises:
                return Verdict(error=self._report(poison_rows[0], reason))
            known = {(each.split, each.row, each.last) for each in self._skip[shard]}
            # A worker that dies is asked about for each of its calls, and all of them say what it was at.
            self._skip[shard] += [
                each for each in poison_rows if (each.split, each.row, each.last) not in known
            ]
        return Verdict(charged=False)

    def location(self, shard: Shard) -> str:
        """Say where the only row of a shard stands; an empty string if it has more."""
        return str(self._locate(*_only(shard))) if shard.rows == 1 else ""

    def skip_only_row(self, shard: Shard, kind: str, reason: str) -> bool:
        """Reject the only row of a shard; False if poison rows end the run, or the shard has more rows."""
        if self._raises or shard.rows != 1:
            return False
        split, row = _only(shard)
        self._skip[shard.index].append(Reject(split, row, row, Fault("a worker", kind, reason), count=1))
        return True

    def _report(self, reject: Reject, reason: str) -> ErrorReport:
        place = row_range(self._locate(reject.split, reject.row), self._locate(reject.split, reject.last))
        return ErrorReport(
            "StepError",
            f"{reject.fault.step} cannot process {place}: its worker ended each time, the last time because: "
            f"{reason}. Fix the function or the input; or set such rows aside (on_error='reject').",
        )

    def _narrow(self, calling: CallStarted, kind: str, reason: str, *, alone: bool) -> list[Reject]:
        """Suspect a call's rows; return those of a call that was over a single row, and alone."""
        suspects = self._suspects[calling.shard]
        if calling.count <= 1 and alone:
            fault = Fault(calling.step, kind, reason)
            return [
                Reject(split, first, last, fault, count=last - first + 1)
                for split, first, last in calling.rows
            ]
        size = max(1, calling.count // PARTS)
        for split, first, last in calling.rows:
            suspects[:] = [each for each in suspects if not _within(each, split, first, last, size)]
            suspects.append(Suspect(split, first, last, size))
        return []


def _only(shard: Shard) -> tuple[Split, int]:
    split = next(split for split in shard.splits if split.length)
    return split, split.low


def _within(suspect: Suspect, split: Any, first: int, last: int, size: int) -> bool:
    return suspect.split == split and first <= suspect.first and suspect.last <= last and suspect.size >= size
