"""Which rows end their workers, found out by what was at hand each time. Pure: no I/O, no thread, no clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from millrace.core.work import Called, Calling, Caution, ErrorReport, Fault, Reject, Shard, Split, Suspect
from millrace.run.guard import stretch

PLAIN = 2  # deaths of a shard's workers before its calls are watched: some have nothing to do with its rows
PARTS = 32  # into which a batch is cut that a worker died over


class Suspicion:
    """Narrows down the rows over which workers die, or hang for more than ``timeout`` seconds.

    A shard that has ended two workers is watched: its next worker tells of each call. The batch that it dies over is
    cut in 32 the next time, and so on, until the row is found that does it alone; that is skipped from then on. A
    batch of 65,536 rows takes four deaths.
    """

    def __init__(
        self,
        timeout: float | None = None,
        *,
        raises: bool = True,
        locate: Callable[[Split, int], str] = lambda split, row: f"row {row}",
    ) -> None:
        """``raises``: a guilty row ends the run; ``locate`` says where a row stands."""
        self._timeout = timeout
        self._raises = raises
        self._locate = locate
        self._calls: dict[int, dict[int, tuple[Calling, float]]] = defaultdict(dict)
        self._late: dict[int, Calling] = {}
        self._last: dict[int, list[Calling]] = {}  # what dead workers were at
        self._deaths: dict[int, int] = defaultdict(int)
        self._suspects: dict[int, list[Suspect]] = defaultdict(list)
        self._skip: dict[int, list[Reject]] = defaultdict(list)

    def hear(self, note: Any, now: float) -> bool:
        """Take a note if it is of a call; say whether it is."""
        if isinstance(note, Calling):
            self._calls[note.worker][note.call] = note, now
        elif isinstance(note, Called):
            self._calls[note.worker].pop(note.call, None)
        else:
            return False
        return True

    def caution(self, shard: int) -> Caution:
        """Return what the next worker at a shard should know."""
        watched = self._timeout is not None or self._deaths[shard] >= PLAIN
        return Caution(watched, tuple(self._suspects[shard]), tuple(self._skip[shard]))

    def overdue(self, now: float) -> list[tuple[int, str]]:
        """Return the workers whose call takes too long, each with a reason to end it."""
        if self._timeout is None:
            return []
        found = []
        for worker, calls in self._calls.items():
            for calling, since in calls.values():
                if now - since > self._timeout and worker not in self._late:
                    self._late[worker] = calling
                    reason = f"{calling.step} was at a batch for more than batch_timeout={self._timeout:g} s"
                    found.append((worker, reason))
        return found

    def forget(self, worker: int) -> None:
        """A worker was ended for reasons of its own: none of its calls is to blame."""
        self._calls.pop(worker, None)

    def died(
        self, shard: int, worker: int, reason: str, *, at_work: bool | None = None
    ) -> ErrorReport | bool:
        """A worker has ended that had to do with a shard: say whether the shard is to blame, or which error it is.

        It is not to blame if its worker was at another, or if its rows are being narrowed down. ``at_work``: whether
        it was at this one; without it, the first shard that is told of is the one.
        """
        first = worker not in self._last
        if first:
            self._last[worker] = [calling for calling, _ in self._calls.pop(worker, {}).values()]
        calls = [calling for calling in self._last[worker] if calling.shard == shard]
        if not calls and not (first if at_work is None else at_work):
            return False
        late = self._late.get(worker)
        self._deaths[shard] += 1
        if late in calls:
            calls = [late]
        elif self._deaths[shard] <= PLAIN or not calls:
            return True
        kind = "WorkerDied" if late is None else "BatchTimeout"
        for calling in calls:
            guilty = self._narrow(calling, kind, reason, alone=len(calls) == 1)
            if guilty and self._raises:
                return self._report(guilty[0], reason)
            self._skip[shard] += guilty
        return False

    def place(self, shard: Shard) -> str:
        """Say where the only row of a shard stands; nothing, if it has more."""
        return self._locate(*_only(shard)) if shard.rows == 1 else ""

    def condemn(self, shard: Shard, kind: str, reason: str) -> bool:
        """Have the only row of a shard skipped, as one that fails; False if that ends the run, or there are more."""
        if self._raises or shard.rows != 1:
            return False
        split, row = _only(shard)
        self._skip[shard.index].append(Reject(split, row, row, Fault("a worker", kind, reason), count=1))
        return True

    def _report(self, guilty: Reject, reason: str) -> ErrorReport:
        place = stretch(self._locate(guilty.split, guilty.row), self._locate(guilty.split, guilty.last))
        return ErrorReport(
            "StepError",
            f"{guilty.fault.step} cannot do {place}: each time its worker ended over it, the last time so: {reason}. "
            "Mend the function or the input; or have such rows set aside (on_error='reject').",
        )

    def _narrow(self, calling: Calling, kind: str, reason: str, *, alone: bool) -> list[Reject]:
        """Suspect a call's rows; one that was alone is guilty."""
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
