"""What a job would take: a sample of it is run, and what that took, tokens too, is extrapolated, with ranges.

The sample is many small shards from all over the input, few rows at first and twice as many in each round, so that
a slow model is not given too much and a fast one not too little. It is written to a folder of its own for some
seconds; what is under way then is given up.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.answered import Answered
from headrace.core.events import Event, ShardCommitted
from headrace.core.source_ports import Source
from headrace.core.work import Split
from headrace.engines.local import machine
from headrace.errors import PlanError
from headrace.plan.compile import limits_of
from headrace.plan.logical import Plan
from headrace.plan.steps.predict import Predict, ahead_in
from headrace.sources.union import UnionSource

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset

FIRST_ROWS = 64
ROUNDS = 4  # of the last ones, whose slowest and fastest give the range
_COUNTED = 16  # splits whose rows are counted where only reading tells
_COUNT_SECONDS = 3.0
_MOST_SHARDS = 400


@dataclass(frozen=True, slots=True)
class Range:
    """A number, and between which numbers it may lie."""

    low: float
    likely: float
    high: float

    def over(self, amount: Range) -> Range:
        """Return how long an amount takes at these rates."""
        return Range(*(a / r if r else math.inf for a, r in (
            (amount.low, self.high), (amount.likely, self.likely), (amount.high, self.low)
        )))  # fmt: skip

    def times(self, factor: Range) -> Range:
        """Return the product."""
        return Range(self.low * factor.low, self.likely * factor.likely, self.high * factor.high)

    def plus(self, number: float) -> Range:
        """Return the sum with a number that is known."""
        return Range(self.low + number, self.likely + number, self.high + number)

    @property
    def exact(self) -> bool:
        """True if there is no doubt."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the whole job would take.

    ``rows`` to read; ``rate`` rows a second, once all workers are at work; ``startup`` seconds until then;
    ``seconds`` in all; ``size`` bytes of output; ``memory`` bytes, of the sample at its ordinary and at its peak.
    ``sampled`` rows were read for this in ``took`` seconds. ``whole``: the sample was all there is. Of language
    models ``read`` and ``written`` tokens, and what they cost by ``prices=``; None where nothing says so.
    """

    rows: Range
    rate: Range
    startup: float
    seconds: Range
    size: Range
    memory: Range
    sampled: int
    shards: int
    took: float
    whole: bool
    rejected: int = 0
    notes: tuple[str, ...] = ()
    read: Range | None = None
    written: Range | None = None
    spent: Range | None = None


def estimate(dataset: Dataset, seconds: float) -> Estimate:
    """Run a sample of a dataset's plan for about so many seconds; raises what the run would raise."""
    plan, options = dataset._plan, dataset._options
    limits = limits_of(plan.steps)
    plan = replace(plan, steps=tuple(step for step in plan.without_metrics().steps if step.row_limit is None))
    from headrace.session.execution_plan import ExecutionPlan
    from headrace.session.preparing import prepared_for_reading

    plan, paid = _at_once(plan)
    plan, release = prepared_for_reading(plan, options)
    made = sum(each.seconds for each in plan.source.preparations())
    workers = max(stage.workers for stage in ExecutionPlan(plan, options).stages)
    splits, counted = _counted(plan.source)
    if not splits:
        raise PlanError("The input has no rows, so there is nothing that could be estimated.")
    rows = _total(plan.source.splits(), counted)
    if limits:
        rows = Range(*(min(each, *limits) for each in (rows.low, rows.likely, rows.high)))
    pieces = list(sample_splits(splits, workers, int(rows.likely)))
    watch = SampleObserver(seconds, os.getpid())
    observers = (*options.observers, watch)
    sample = type(dataset)(
        replace(plan, source=Sample(plan.source, pieces)),
        options.updated({"shard_rows": 1, "progress": False, "mode": "resume", "observers": observers}),
    )
    _run(sample, watch)
    use = token_use([(each.read, each.answered) for each in watch.commits])
    found = extrapolated(watch, rows, workers, whole=watch.rows >= rows.likely and not limits)
    release()
    if made:
        note = f"the query was answered as a whole for this, in {made:.1f} s"
        found = replace(found, seconds=found.seconds.plus(made), notes=(*found.notes, note))
    if use is None:
        return found
    found = replace(found, **use.of(rows, exact=found.whole))
    if paid.low < 1 and found.spent is not None:
        note = "the sample was asked by requests, and batches cost less: the cost is theirs"
        note += "" if paid.exact else " at least, and that of requests at most"
        found = replace(found, spent=found.spent.times(paid), notes=(*found.notes, note))
    return found


def _at_once(plan: Plan) -> tuple[Plan, Range]:
    """Return a plan whose models ask for each batch when it comes; and what is paid of what they cost then.

    What a model does before a run, it does for all rows: a sample must not begin it.
    """
    steps, paid = list(plan.steps), list[tuple[float, float]]()
    for number, _, model, ahead in ahead_in(plan.steps):
        step = steps[number]
        assert isinstance(step, Predict)
        models = [each.calling(ahead.at_once) if each is model else each for each in step.models]
        steps[number] = replace(step, models=tuple(models))
        paid.append(ahead.shares)
    most = max((high for _, high in paid), default=1.0)
    return replace(plan, steps=tuple(steps)), Range(min((low for low, _ in paid), default=1.0), most, most)


# ---------------------------------------------------------------- which rows


class Sample(UnionSource):
    """A source of which only some splits are read, or parts of them: whoever asked for one takes its window."""

    def __init__(self, source: Source, chosen: Sequence[Split]) -> None:
        super().__init__([source], apart=source.apart)
        self._chosen = list(chosen)

    def splits(self) -> list[Split]:
        """Return those that were chosen."""
        return self._chosen

    def splits_in_batches(self, rows: int) -> list[Split]:
        """Return the same: a part of the input is enough."""
        return self._chosen


def spread(count: int) -> list[int]:
    """Return the numbers below ``count`` so that the first few of them are from all over.

    >>> spread(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(1, (count - 1).bit_length())
    order = (int(format(i, f"0{bits}b")[::-1], 2) for i in range(1 << bits))
    return [i for i in order if i < count]


def _counted(source: Source) -> tuple[list[Split], list[Split]]:
    """Return splits with known rows from all over the input, and those of them that were counted just now."""
    splits = list(source.splits())
    order = [splits[i] for i in spread(len(splits))]
    if all(split.rows >= 0 for split in splits):
        return [split for split in order if split.rows], splits
    counted: list[Split] = []
    until = time.monotonic() + _COUNT_SECONDS
    for split in order[:_COUNTED]:
        rows = split.rows
        if rows < 0:
            rows = sum(batch.num_rows for batch in source.read(split, None, 65_536, lambda *_: None))
        counted.append(msgspec.structs.replace(split, rows=rows))
        if time.monotonic() > until:
            break
    source.close()
    return [split for split in counted if split.rows], counted


def _total(splits: Sequence[Split], counted: Sequence[Split]) -> Range:
    """Return how many rows there are to read, by the rows per byte of those that were counted."""
    if len(counted) == len(splits):
        rows = float(sum(split.rows for split in counted))
        return Range(rows, rows, rows)
    size = sum(max(split.bytes, 1) for split in splits)
    rates = [split.rows / max(split.bytes, 1) for split in counted]
    likely = sum(split.rows for split in counted) / sum(max(split.bytes, 1) for split in counted)
    return Range(min(rates) * size, likely * size, max(rates) * size)


def sample_splits(splits: Sequence[Split], workers: int, total: int) -> Iterator[Split]:
    """Cut windows of splits: a few rows for each worker, then twice as many, and so on; no row twice."""
    used = [0] * len(splits)
    at = made = 0
    rows = FIRST_ROWS
    most = max(FIRST_ROWS, total // (4 * workers))
    while made < _MOST_SHARDS and any(done < split.rows for done, split in zip(used, splits, strict=True)):
        for _ in range(workers):
            left = rows
            for _ in range(len(splits)):
                split, done = splits[at], used[at]
                take = min(left, split.rows - done)
                if take > 0:
                    yield msgspec.structs.replace(split, low=split.low + done, high=split.low + done + take)
                    used[at] += take
                    left -= take
                    made += 1
                at = (at + 1) % len(splits)
                if left < rows / 2:  # the rest would be crumbs
                    break
        rows = min(2 * rows, most)


# ---------------------------------------------------------------- the run


@dataclass(frozen=True, slots=True)
class Commit:
    """A shard that was done: when, how many rows were read for it, its bytes, and what models answered."""

    time: float
    read: int
    size: int
    answered: Answered | None = None


@dataclass(slots=True)
class SampleObserver:
    """What is seen of the sample's run; it is interrupted when its time is over."""

    budget: float
    process: int
    begun: float = 0.0
    ended: float = 0.0
    commits: list[Commit] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    rejected: int = 0
    stopped: bool = False

    @property
    def rows(self) -> int:
        return sum(commit.read for commit in self.commits)

    def on_event(self, event: Event) -> None:
        """Note when shards are done."""
        if isinstance(event, ShardCommitted):
            ledger = event.ledger
            self.commits.append(Commit(time.monotonic(), ledger.read, event.bytes, ledger.answered))
            self.rejected += ledger.rejected

    def tick(self) -> None:
        """Look at the clock and at the memory; called about five times a second."""
        import psutil

        with contextlib.suppress(OSError, psutil.Error):
            workers = psutil.Process(self.process).children(recursive=True)
            self.memory.append(machine.memory_of([self.process, *(worker.pid for worker in workers)]))

    def close(self) -> None:
        """The run is over."""

    def over(self) -> bool:
        """Say whether the time is over: counted from the first shard that was done."""
        return bool(self.commits) and time.monotonic() > self.commits[0].time + self.budget


@contextlib.contextmanager
def _interruptible(number: signal.Signals) -> Iterator[None]:
    """Have a signal end the sample's run at once, even if the program was started to ignore it, as by ``nohup``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, _end)
    try:
        yield
    finally:
        signal.signal(number, before)


def _end(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _run(sample: Dataset, watch: SampleObserver) -> None:
    """Write the sample to a folder that is gone afterwards."""
    ended = threading.Event()
    main = threading.main_thread().ident or 0

    def guard() -> None:
        while not ended.wait(0.05):
            if watch.over() and not watch.stopped:
                watch.stopped = True
                signal.pthread_kill(main, signal.SIGINT)  # as Ctrl-C does: what is committed is kept
                return

    guarding = threading.Thread(target=guard, daemon=True)
    watch.begun = time.monotonic()
    with _interruptible(signal.SIGINT), tempfile.TemporaryDirectory(prefix="headrace-estimate-") as folder:
        guarding.start()
        try:
            try:
                sample.write_parquet(os.path.join(folder, "sample"))
            finally:
                watch.ended = time.monotonic()
                ended.set()
                guarding.join()
                time.sleep(0)  # a signal that came in the last moment is raised here
        except KeyboardInterrupt:
            if not watch.stopped:
                raise


# ---------------------------------------------------------------- what follows


def extrapolated(watch: SampleObserver, rows: Range, workers: int, *, whole: bool) -> Estimate:
    """Return what follows for so many rows from what was seen of a sample."""
    commits = watch.commits
    notes: list[str] = []
    rounds = list(_rounds(commits, workers))
    rates = [count / span for count, span in rounds[-ROUNDS:] if span > 0]
    if rates:
        spans = rounds[-ROUNDS:]
        likely = sum(count for count, _ in spans) / sum(span for _, span in spans)
        rate = Range(min(rates), likely, max(rates))
        startup = max(0.0, commits[0].time - watch.begun - commits[0].read * workers / likely)
    else:
        span = max(watch.ended - watch.begun, 1e-9)
        rate = Range(watch.rows / span / 2, watch.rows / span, watch.rows / span * 2)
        startup = 0.0
        notes.append("the sample was too short to separate start-up from speed")
    if len(rates) == 1:
        rate = Range(rate.likely / 1.5, rate.likely, rate.likely * 1.5)
        notes.append(
            "each worker did one part only, so the range is a guess: half as much in both directions"
        )
    sizes = [each.size / each.read for each in commits[-ROUNDS * workers :] if each.read]
    per_row = Range(min(sizes), sum(sizes) / len(sizes), max(sizes)) if sizes else Range(0, 0, 0)
    used = sorted(watch.memory) or [machine.private_memory(watch.process)]
    spread_of = Range(used[len(used) // 4], used[len(used) // 2], used[-1])
    if watch.rejected:
        notes.append(f"{watch.rejected:,} rows of the sample failed and were set aside")
    return Estimate(
        rows,
        rate,
        startup,
        rate.over(rows).plus(startup),
        per_row.times(rows),
        spread_of,
        watch.rows,
        len(commits),
        watch.ended - watch.begun,
        whole,
        watch.rejected,
        tuple(notes),
    )


def _rounds(commits: Sequence[Commit], workers: int) -> Iterator[tuple[int, float]]:
    """Yield rows and seconds of rounds in which every worker did a shard or more, after the first round.

    Shards are noted in groups, so a round is no shorter than an eighth of all the time that is looked at.
    """
    if len(commits) <= workers:
        return
    since = commits[workers - 1].time
    least = max(1e-3, (commits[-1].time - since) / (2 * ROUNDS))
    rows = shards = 0
    for commit in commits[workers:]:
        rows, shards = rows + commit.read, shards + 1
        if shards % workers == 0 and commit.time - since >= least:
            yield rows, commit.time - since
            since, rows, shards = commit.time, 0, 0


# ---------------------------------------------------------------- tokens, and what they cost

ERRORS = 2.0
"""So many standard errors of the mean are the range on each side: 95 of 100 lie within."""


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of some rows, and how far the mean of all may be from it."""

    value: float
    doubt: float


@dataclass(frozen=True, slots=True)
class TokenUse:
    """What a row uses: tokens in and out, and what it costs; ``cost`` None: nobody said what tokens cost."""

    read: Mean
    written: Mean
    cost: Mean | None

    def of(self, rows: Range, *, exact: bool) -> dict[str, Any]:
        """Return what so many rows use; ``exact``: the sample was all of them."""

        def times(mean: Mean) -> Range:
            doubt = 0.0 if exact else mean.doubt
            return Range(max(0.0, mean.value - doubt), mean.value, mean.value + doubt).times(rows)

        spent = None if self.cost is None else times(self.cost)
        return {"read": times(self.read), "written": times(self.written), "spent": spent}


def token_use(parts: Sequence[tuple[int, Answered | None]]) -> TokenUse | None:
    """Return what a row that is read uses, by the rows and the answers of parts of a sample; None without any."""
    known = [(rows, answered) for rows, answered in parts if answered is not None and rows]
    if not known:
        return None
    read = mean_of([(rows, each.prompt_tokens) for rows, each in known])
    written = mean_of([(rows, each.completion_tokens) for rows, each in known])
    priced = any(each.cost for _, each in known)
    return TokenUse(read, written, mean_of([(rows, each.cost) for rows, each in known]) if priced else None)


def mean_of(parts: Sequence[tuple[int, float]]) -> Mean:
    """Return the amount for a row, by rows and amount of each part, and how far that of all rows may be from it.

    It is the estimate of a ratio, from parts that are drawn as a whole. Of one part nothing is known but the mean.

    >>> mean_of([(2, 4.0), (3, 6.0), (1, 2.0)]), mean_of([(2, 4.0)])
    (Mean(value=2.0, doubt=0.0), Mean(value=2.0, doubt=2.0))
    """
    rows = sum(count for count, _ in parts)
    mean = math.fsum(amount for _, amount in parts) / rows
    if len(parts) < 2:
        return Mean(mean, mean)
    squares = math.fsum((amount - mean * count) ** 2 for count, amount in parts)
    return Mean(mean, ERRORS * math.sqrt(squares * len(parts) / (len(parts) - 1)) / rows)
