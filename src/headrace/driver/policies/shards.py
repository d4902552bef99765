"""Shards: what is checked before one is committed, the rests that attempts leave, and further shards that come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headrace.core.asked import RunAsked
from headrace.core.events import RowsRead, WorkerReady
from headrace.core.messages import LeaveRest, MoreShards, RestLeft, RunInterrupted
from headrace.core.work import Done, Failed, Faults, Ledger, OnError, Outcome, Remainder, Task
from headrace.driver.policy import NEVER, Action, AddShards, Decision, DivideShard, Policy, RunView, Tell
from headrace.driver.shards import split_off
from headrace.errors import TooManyErrors
from headrace.plan.accounts import Accounts

INTERVAL = 0.05  # seconds between two times of asking
WORTH = 0.25  # seconds of work that have to be left, so that dividing them is worth a part and a commit
HELPER = 1.0  # seconds of work that have to be left, so that starting another worker is worth it


def _divided(view: RunView, shard: int, rest: Remainder) -> DivideShard | None:
    """Return what makes a shard of a rest; None if nothing is left."""
    parts = split_off(
        view.scheduler.shard_of(shard), rest, view.scheduler.count, view.scheduler.family(shard)
    )
    return DivideShard(parts, early=True) if len(parts) > 1 else None


class EarlyCommit(Policy):
    """Lets an attempt end after ``seconds`` of work; the rest of its shard becomes a shard of its own."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def before_submit(self, task: Task) -> Task:
        """Say after how long an attempt may end."""
        return msgspec.structs.replace(task, every=self._seconds)

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Divide a shard of which an attempt left the rest."""
        if not isinstance(outcome, Done) or outcome.rest is None or not view.scheduler.is_current(outcome):
            return outcome
        return _divided(view, outcome.shard, outcome.rest) or outcome


class _Progress(msgspec.Struct):
    """A worker has done ``rows`` of the ``of`` rows of a shard at ``now``, and ``first`` of them at ``since``.

    ``late``: the seconds of a row from one message to the next.
    """

    shard: int
    since: float
    first: int
    now: float
    rows: int
    of: int
    late: float = 0.0

    def note(self, rows: int, of: int, now: float) -> None:
        """It has done more."""
        if rows > self.rows:
            self.late, self.now = (now - self.now) / (rows - self.rows), now
        self.rows, self.of = rows, of

    def seconds_left(self, now: float) -> float:
        """Estimate how long it takes yet; as long as it took so far, where nobody knows how many rows there are.

        Where rows have become slower, those that are left are, too.
        """
        elapsed, done = now - self.since, self.rows - self.first
        return (
            max(elapsed / done, self.late) * (self.of - self.rows) if done > 0 and self.of >= 0 else elapsed
        )


class WorkSharing(Policy):
    """Asks the attempts with most work left for a part of it, where workers are idle and no shard waits.

    An attempt that is asked keeps one half, or a smaller share if it is asked for several. It decides by the speed
    that it measures whether there is enough left, and answers at once, while it goes on. So it may be asked again and
    again: the halves are as uneven as what is in them.

    ``most``: how many workers the pool may have. Where it has fewer, the rests that an attempt leaves wait for
    further workers, and the pool grows.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._progress: dict[int, _Progress] = {}  # by worker
        self._ready: set[int] = set()  # workers that have their models
        self._loading = 0.0  # the longest that a worker took for that
        self._left: list[RestLeft] = []
        self._next = 0.0  # when to ask again
        self._asks = False
        self._unheard = 0  # how often those with most work left were asked, and none left any

    def before_submit(self, task: Task) -> Task:
        """Let an attempt be asked."""
        return msgspec.structs.replace(task, shared=True)

    def on_message(self, message: Any, now: float) -> None:
        """Note how far workers are, and what they leave."""
        if isinstance(message, RowsRead):
            known = self._progress.get(message.worker)
            if known is not None and known.shard == message.shard and known.rows <= message.rows:
                known.note(message.rows, message.of, now)
            else:
                rows, of = message.rows, message.of
                self._progress[message.worker] = _Progress(message.shard, now, rows, now, rows, of)
        elif isinstance(message, RestLeft):
            self._left.append(message)
            self._unheard, self._next = 0, now  # others may wait
        elif isinstance(message, WorkerReady):
            self._ready.add(message.worker)
            self._loading = max(self._loading, message.seconds)
        elif isinstance(message, RunAsked):
            self._most = message.workers or self._most

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Make shards of what was left."""
        left, self._left = self._left, []
        current = set(view.scheduler.at_work.values()) if left else set()
        for each in left:
            if (each.shard, each.attempt) not in current:
                continue  # it has ended, which said the same; or was lost, and the shard is whole
            divided = _divided(view, each.shard, each.rest)
            if divided is not None:
                yield divided

    def after_schedule(self, view: RunView) -> Iterable[Action]:
        """Ask for work, where somebody has none."""
        last = view.stages - 1
        if view.now < self._next or view.holds:
            return
        self._asks = False
        if view.scheduler.tasks_waiting(last) or view.scheduler.blocks.attempts_waiting:
            return
        loads, open_workers = view.loads(last), view.scheduler.open_workers(last)
        idle = {worker for worker, calls in loads.items() if not calls and worker not in open_workers}
        helpers = len(idle) or self._most - len(loads)
        at_work = view.scheduler.at_work
        if helpers < 1 or not at_work:
            return
        self._next, self._asks = view.now + INTERVAL, True
        worth = (WORTH if idle else HELPER) + (0.0 if idle & self._ready else self._loading)
        busiest = sorted(
            at_work, key=lambda worker: -self._seconds_left(worker, at_work[worker][0], view.now)
        )
        start = self._unheard * helpers % len(busiest)
        self._unheard += 1
        asked = (busiest[start:] + busiest[:start])[:helpers]
        shares = 1 + -(-helpers // len(asked))
        for worker in asked:
            yield Tell(last, worker, LeaveRest(worth, shares), *at_work[worker])

    def _seconds_left(self, worker: int, shard: int, now: float) -> float:
        """Estimate how long a worker is at a shard yet. Of one that has said nothing it may be long."""
        known = self._progress.get(worker)
        return known.seconds_left(now) if known is not None and known.shard == shard else NEVER

    def next_wakeup(self, now: float) -> float:
        """Return when to ask again."""
        return self._next if self._asks else NEVER


# ---------------------------------------------------------------- further shards


class Growth(Policy):
    """Takes in the shards that messages bring, and has ``want`` called when fewer wait than there are workers.

    ``want`` returns at once; a ``MoreShards`` answers it, sooner or later. After one without shards, nobody is asked.
    """

    def __init__(self, want: Callable[[], None]) -> None:
        self._want = want
        self._came: list[MoreShards] = []
        self._asked = self._over = False

    def on_message(self, message: Any, now: float) -> None:
        """Note what came, and that the run is to end."""
        if isinstance(message, MoreShards):
            self._came.append(message)
        elif isinstance(message, RunInterrupted):
            self._over = True

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Take in what came."""
        came, self._came = self._came, []
        for each in came:
            self._asked, self._over = False, self._over or not each.shards
            yield AddShards(each.shards)

    def after_schedule(self, view: RunView) -> Iterable[Action]:
        """Ask for more."""
        last = view.stages - 1
        if (
            not self._asked
            and not self._over
            and view.scheduler.tasks_waiting(last) < max(1, len(view.loads(last)))
        ):
            self._asked = True
            self._want()
        return ()


# ---------------------------------------------------------------- before a shard is committed

SAMPLE = 1_000  # rows that have to be read before a share of them is judged
KINDS = 5  # of errors that a message names


class ErrorBudget(Policy):
    """Counts the rows that failed, in finished and open shards; raises ``TooManyErrors`` if they are too many.

    >>> from headrace.core.work import Fault, Timings
    >>> budget = ErrorBudget(2)
    >>> faults = Faults(((Fault("map(parse)", "ValueError", "no number: 'x'"), 3),))
    >>> budget.count(Done(0, 0, (), Ledger(100, 97, 3), Timings(), faults=faults))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    headrace.errors.TooManyErrors: 3 of the 100 rows read so far failed, more than max_errors=2 allows: ...
    """

    def __init__(
        self, most: float | None = None, ledger: Ledger | None = None, faults: Faults | None = None
    ) -> None:
        """``ledger`` and ``faults`` are those of earlier drivers of the run."""
        self._most = most
        self._read = ledger.read if ledger is not None else 0
        self._faults = faults or Faults()
        self._on_error: OnError | None = None  # as it was asked for since
        self._open: dict[int, tuple[int, Faults]] = {}  # by shard: rows read so far, and how many failed

    def on_message(self, message: Any, now: float) -> None:
        """Count the rows of an open shard that failed so far."""
        if isinstance(message, RunAsked):
            self._most = message.max_errors or self._most
            self._on_error = message.on_error or self._on_error
        elif isinstance(message, RowsRead) and message.faults.counts:
            self._open[message.shard] = message.rows, message.faults
            self.check()

    def before_submit(self, task: Task) -> Task:
        """Say what becomes of rows that fail, if that is not as it was."""
        return msgspec.structs.replace(task, on_error=self._on_error) if self._on_error else task

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Count the rows of an attempt before it is committed."""
        self.count(outcome)
        return outcome

    def count(self, outcome: Outcome) -> None:
        """Count the rows of an attempt that has ended."""
        self._open.pop(outcome.shard, None)
        if isinstance(outcome, Done):
            self._read += outcome.ledger.read
            self._faults += outcome.faults
            self.check()

    def check(self) -> None:
        """Raise ``TooManyErrors`` if more rows have failed than may."""
        if self._most is None:
            return
        read = self._read + sum(rows for rows, _ in self._open.values())
        faults = sum((each for _, each in self._open.values()), self._faults)
        share = 0 < self._most < 1
        most = self._most * read if share else self._most
        if faults.total > most and not (share and read < SAMPLE):
            raise TooManyErrors(
                f"{faults.total:,} of the {read:,} rows read so far failed, more than max_errors={self._most:g} "
                f"allows: {format_faults(faults)}. Finished work is kept: fix the cause, or allow more and run again."
            )


class LedgerCheck(Policy):
    """Compares the ledger of each finished attempt with what ``accounts`` expects of its shard."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Turn an outcome with a wrong ledger into an error that ends the run."""
        if not isinstance(outcome, Done) or not view.scheduler.is_current(outcome):
            return outcome
        shard = view.scheduler.shard_of(outcome.shard)
        if outcome.rest is not None:
            shard = split_off(shard, outcome.rest, view.scheduler.count)[0]
        wrong = self._accounts.check(shard, outcome)
        return outcome if wrong is None else Failed(outcome.shard, outcome.attempt, wrong)


def format_faults(faults: Faults) -> str:
    """Return how many rows failed with which error, the most frequent first."""
    counts = sorted(faults.counts, key=lambda each: -each[1])
    parts = [
        f"{count:,} in {fault.step} with {fault.kind}"
        + (f', such as "{fault.message}"' if fault.message else "")
        for fault, count in counts[:KINDS]
    ]
    rest = sum(count for _, count in counts[KINDS:])
    return "; ".join([*parts, f"{rest:,} others"] if rest else parts)
