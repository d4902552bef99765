"""The state of a run: one fold of its events, live or read back from the record. No stream, no clock.

Progress, Prometheus, the summary, ``status`` and the report all read their figures here. Live, the event bus adds
each event to one state; afterwards, or from another process, the record's lines are added to a state of the same
kind (see ``record_reader``). Both have the same figures.
"""

from __future__ import annotations

from typing import NoReturn

import msgspec

from headrace.core.asked import RequirementsAsked, RunAsked
from headrace.core.events import (
    BatchesAtWork,
    BatchShrunk,
    BatchSized,
    CallRetried,
    Event,
    InputMade,
    MachinesWorked,
    MemoryTaken,
    MetricsCounted,
    ModelAsked,
    PoolResized,
    PoolWaits,
    RowsBegun,
    RowsRead,
    RunDescribed,
    RunFinished,
    RunStarted,
    ShardCommitted,
    ShardDivided,
    ShardRetried,
    ShardsAdded,
    Worked,
    WorkerLost,
    WorkerReady,
    WorkerRetired,
)
from headrace.observers.pace import (
    LATE,
    WINDOW,
    is_near_the_end,
)
from headrace.observers.run_figures import RunFigures
from headrace.observers.run_parts import (
    LONGEST,
    TIMES,
    BegunRows,
    CommitSum,
    Driver,
    OpenShards,
    ProgressSample,
    StageState,
    UnderWay,
    Unlisted,
    WorkSum,
    added,
)

Folded = Event | WorkSum | CommitSum | ProgressSample | Unlisted
"""What a state is made of: events, or what the record keeps of them."""

_Incident = (
    ShardRetried
    | ShardDivided
    | ShardsAdded
    | WorkerLost
    | WorkerRetired
    | CallRetried
    | BatchShrunk
    | BatchSized
    | PoolResized
    | PoolWaits
    | Unlisted
)

RETRIED_CALLS, RETRIED_SHARDS = "call tried again", "shard tried again"
_BEGUN = 0.1  # of the share: what the stages before the last have done, however far they are ahead
_NEARLY = 0.999  # of the rows that there likely are: whether they are all is known in the end
LOST, RETIRED, DIVIDED, DIVIDED_EARLY = (
    "worker lost",
    "worker retired",
    "shard divided",
    "shard divided early",
)
READ_AGAIN = "driver whose rows were read again"
ASKED = "asked on the way"


class RunState(RunFigures):
    """How a run is, as of the last event. A resumed run starts from what was committed before.

    ``rows`` and ``share`` never decrease while a driver is at work: rows that are read again, after a worker was
    lost, count once they are beyond the most so far. All times are seconds since 1970.

    >>> state = RunState()
    >>> state.add(RunStarted("r", "out", 12, 3, 250_000, 1_000_000, 2), at=100.0)
    >>> state.add(RowsRead(worker=0, shard=3, rows=250_000), at=104.0)
    >>> state.tick(at=105.0)
    >>> state.rows, state.speed(105.0), state.time_left(105.0), state.share
    (500000, 50000.0, 10.0, 0.5)
    """

    # ------------------------------------------------------------ the fold

    def add(self, event: Folded, at: float) -> None:
        """Add an event that happened at ``at``."""
        if isinstance(event, RequirementsAsked):  # a decision may come days after the run
            self.required = event
            return
        at = round(at, 3)  # as the record has it
        self.at = max(self.at, at)
        if isinstance(event, RunDescribed):
            self._begin(event, at)
        elif not self.drivers:
            self._begin(None, at)
        self.drivers[-1].ended = max(self.drivers[-1].ended, at)
        match event:
            case RunStarted():
                self._start(event, at)
            case RowsRead():
                if event.of < 0 and event.size and event.shard in self._left:
                    likely = round(event.rows * self._left[event.shard] / event.size)
                    event = msgspec.structs.replace(event, of=likely)
                self._open.put(event, at)
                self._reach(0)
            case RowsBegun():
                self._earlier.put(event, at)
                self._reach(0)
            case ShardCommitted():
                self._open.forget(event.shard)
                self._earlier.forget(event.shard)
                self._size_done += self._left.pop(event.shard, 0)
                self._commit(CommitSum.of(event))
            case CommitSum():
                self._open.failed = max(0, self._open.failed - event.rejected - event.nulled)
                self._commit(event)
            case ProgressSample():
                self.shards = event.planned or self.shards
                self.shards_done = max(self.shards_done, event.shards)
                self._open.failed = max(0, event.failed - self.rejected - self.nulled)
                self._working, self._read_back = event.working, event
                self._reach(event.rows, event.begun)
                self._take_sample(at)
            case WorkerReady():
                self._worker_ready(event, at)
            case Worked():
                self._open.news(event.worker, at)
                self._earlier.news.pop(event.worker, None)
                self._work(WorkSum.of(event, at, self.ready.get(event.worker, 0.0)))
            case WorkSum():
                self._work(event)
            case ModelAsked():
                self.models.add(event, at, min(self.ready.values(), default=at))
            case BatchesAtWork():
                self.batches_sent[event.step] = event
            case MemoryTaken():
                self.memory = event
                self.memory_peak = max(self.memory_peak, memory_of(event))
            case MachinesWorked():
                self.machines = event.machines
            case MetricsCounted():
                self.metrics = event
            case RunAsked():
                self.asked = event
                self._count(ASKED, str(event))
            case RunFinished():
                self._finish(event, at)
            case InputMade():
                driver = self.drivers[-1]  # which may have found what an earlier one made
                elapsed = driver.described.elapsed if driver.described is not None else 0.0
                driver.making = min(driver.making + event.seconds, elapsed)
            case RunDescribed():
                pass  # it has begun above; what it reads is told by its plan
            case _:
                self._incident(event)

    def tick(self, at: float) -> None:
        """Note that it is ``at`` now, and take a sample if one is due."""
        at = round(at, 3)
        self.at = max(self.at, at)
        if self._pace.begun and self._pace.due(at, self.sampled_at):
            self._sample_if_new(at)

    def _begin(self, event: RunDescribed | None, at: float) -> None:
        self._lose_unfinished()
        start = self.seconds
        elapsed = event.elapsed if event is not None and 0 <= event.elapsed < LONGEST else 0.0
        self.drivers.append(Driver(at - elapsed, start, at, event))
        self.ready, self._last, self._starts = {}, {}, {}

    def _start(self, event: RunStarted, at: float) -> None:
        driver = self.drivers[-1]
        driver.started = event
        self.required, self.asked = None, RunAsked()
        self.batches_sent.clear()
        if self.rows > event.rows_done:
            words = f"{self.rows - event.rows_done:,} rows were read by a driver that did not commit them"
            self._count(READ_AGAIN, words)
        self.rows = self.read = event.rows_done
        self.written, self.rejected, self.nulled = event.written_done, event.rejected_done, event.nulled_done
        self.bytes, self.faults = event.bytes_done, event.faults_done
        self.models.begin(event.answered_done)
        self.shards, self.shards_done = event.shards, event.shards_done
        self._open, self._earlier, self.begun = OpenShards(), BegunRows(), ()
        self._working, self._read_back = (), None
        self._size, self._size_done, self._left = event.size, event.size_done, dict(event.sizes)
        self._share = 0.0
        self._reach(0)
        self._count_from_here(at)
        self._share_before = self._share

    def _worker_ready(self, event: WorkerReady, at: float) -> None:
        if self._pace.begun:
            self._sample_if_new(at)  # so that who reads the record knows, too, whether a row was read before
        driver = self.drivers[-1]
        self.ready[event.worker] = at
        self._open.begin(event.worker, at)
        driver.loading = max(driver.loading, event.seconds)
        since = self._pace.since
        if driver.first_ready is None:
            driver.first_ready = max(0.0, at - driver.began - driver.making)
        if self._pace.begun and (self.rows, self.shards_done) == (since["rows"], since["shards"]):
            self._count_from_here(at)  # no row was read before
        took = max(0.0, at - driver.began - driver.making)
        # It was started later, when another was lost, or more were needed.
        if took > 3 * driver.first_ready + 1.0:
            took = min(took, event.seconds)
        self._start_of_worker(event, at, took)
        self._starts[event.worker] = max(0.0, took - event.seconds), min(took, event.seconds)
        if len(driver.workers) == 1:
            self._count_start(event.worker, self.stages.setdefault(0, StageState()))

    def _start_of_worker(self, event: WorkerReady, at: float, took: float) -> None:
        """Note that a worker that is ready at ``at`` took so many seconds to start; for those who draw it."""

    def _count_start(self, worker: int, stage: StageState) -> None:
        """Count how long a worker took to start, once it is known whose it is."""
        starting, loading = self._starts.pop(worker, (0.0, 0.0))
        stage.starting += starting
        stage.loading += loading

    def _commit(self, done: CommitSum) -> None:
        self.shards_done += done.shards
        for name in ("read", "written", "rejected", "nulled", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(done, name))
        self.models.commit(done.answered)
        self.faults += done.faults
        self._reach(0)

    def _reach(self, rows: int, begun: tuple[int, ...] = ()) -> None:
        self.rows = max(self.rows, rows, self.read + self._open.rows)
        if (earlier := len(self.stage_names) - 1) > 0:
            before = (*self.begun, *[0] * earlier)
            more = begun or [self.read + self._earlier.through(stage) for stage in range(earlier)]
            self.begun = tuple(max(self.rows, *each) for each in zip(before, more, strict=False))
        if not self._size or self.shards_done >= self.shards:
            done, total = (
                (self._rows_that_count, self.rows_expected)
                if self._by_rows
                else (self.shards_done, self.shards)
            )
            if total:
                most = 1.0 if self.shards_done >= self.shards else _NEARLY
                self._share = max(self._share, min(most, done / total))

    @property
    def _rows_that_count(self) -> float:
        """Rows as they count for the share: those that only the earlier stages are through with count a little."""
        if not self.begun:
            return self.rows
        return self.rows + _BEGUN * (sum(self.begun) / len(self.begun) - self.rows)

    def _work(self, work: WorkSum) -> None:
        stage = self.stages.setdefault(work.stage, StageState())
        for name in ("seconds", "rows", *TIMES, "lost"):
            setattr(stage, name, getattr(stage, name) + getattr(work, name))
        stage.each = added(stage.each, work.each)
        self._count_start(work.worker, stage)
        stage.recent.append((work.began, work.ended, work.busy * (work.ended - work.began)))
        while stage.recent[0][1] < self.at - WINDOW - LATE:
            stage.recent.popleft()
            if not stage.recent:
                break
        self._last[work.worker] = work.stage, work.ended, "lost" in work.outcomes or "failed" in work.outcomes

    def _lose_unfinished(self) -> None:
        """Count what workers were doing when their driver was killed, or gave up, as lost; no event says it.

        Once all shards are committed, they have nothing to do.
        """
        driver = self.drivers[-1] if self.drivers else None
        if driver is None or (driver.finished is not None and not driver.error):
            return
        if self.shards_done >= self.shards > 0:
            return
        end = driver.began + driver.seconds
        for worker, ready in self.ready.items():
            stage, since, lost = self._last.get(worker, (0, ready, False))
            known = worker in self._last or len(driver.workers) == 1
            if known and not lost and end > since:
                self._work(WorkSum(stage, worker, since, end, end - since, 1, {"lost": 1}, lost=end - since))

    def _finish(self, event: RunFinished, at: float) -> None:
        if self._pace.begun:
            self._sample_if_new(at)
        self.drivers[-1].finished = event
        if event.error:
            self._lose_unfinished()

    def _incident(self, event: _Incident) -> None:
        match event:
            case ShardRetried():
                self._open.forget(event.shard)
                self._earlier.forget(event.shard)
                self._count(RETRIED_SHARDS, f"shard {event.shard}: {event.reason}")
            case ShardDivided():
                self.shards += max(0, event.parts - 1)
                if self._size:
                    self._left |= event.sizes
                if not event.early:  # early ones are usual, and no incident
                    self._count(DIVIDED, f"shard {event.shard} is {event.parts} shards now")
            case ShardsAdded():
                self._add_shards(event)
            case WorkerLost():
                self._open.forget_worker(event.worker)
                self._count(LOST, f"worker {event.worker}: {event.reason}")
            case WorkerRetired():
                self._count(RETIRED, f"worker {event.worker}: {event.reason}")
            case CallRetried():
                self.retried[event.step, event.error] += 1
                self._count(RETRIED_CALLS, f"{event.step}: {event.error}")
            case BatchShrunk():
                self._ceilings[event.step] = min(event.now, self._ceilings.get(event.step, event.now))
                words = f"{event.step}: {event.before:,} rows did not fit, {event.now:,} at a time since"
                self._count("batch shrunk", words)
            case BatchSized():
                self._sizes.setdefault(event.step, {})[event.worker] = event.rows
            case PoolResized():
                self._count("pool resized", f"stage {event.stage + 1}: {event.workers} workers")
            case PoolWaits():
                here = f"{event.here} of {event.wanted} workers ({event.each})"
                self._count("pool waits", f"{event.pool}: {here} after {event.seconds:.0f} s")
            case Unlisted():
                kinds = {"call retried": RETRIED_CALLS, "shard retried": RETRIED_SHARDS}
                if event.of not in (DIVIDED_EARLY, "worker ready", "batch sized"):
                    self.counts[kinds.get(event.of, event.of)] += event.count
            case _:
                _has_no_case(event)

    def _add_shards(self, event: ShardsAdded) -> None:
        started = self.drivers[-1].started
        if started is not None:
            rows = started.rows + event.rows if min(started.rows, event.rows) >= 0 else -1
            self.drivers[-1].started = msgspec.structs.replace(started, rows=rows)
        self.shards += event.shards
        self._size += sum(event.sizes.values()) if self._size else 0
        self._left |= event.sizes if self._size else {}

    def _count(self, what: str, words: str) -> None:
        """Count an incident; ``words`` say what happened, for those who list them."""
        self.counts[what] += 1

    # ------------------------------------------------------------ samples

    def _count_from_here(self, at: float) -> None:
        self._pace.restart(at, self.rows, self.shards_done, min(self.begun, default=0))
        self._take_sample(at)

    def _sample_if_new(self, at: float) -> None:
        if self.sample != self._present():
            self._take_sample(at)

    def _take_sample(self, at: float) -> None:
        self.sample, self.sampled_at = self._present(), at
        begun = min(self.begun, default=0)
        self._pace.note(at, self.rows, self.shards_done, self.sample.worked, begun=begun)
        if self.sample.likely:
            self._share = max(self._share, min(_NEARLY, self._rows_that_count / self.sample.likely))

    def _present(self) -> ProgressSample:
        return ProgressSample(
            *(self.rows, self.shards_done, self.shards, self.failed, self.working),
            *self._near_the_end(),
            self._likely(),
            self.begun,
            *self._at_work(),
        )

    def _likely(self) -> int:
        """Return how many rows there are, if all of the input is like what was read of it; 0 where nothing tells."""
        if self._read_back is not None:
            return self._read_back.likely
        rows, size = self._earlier.sized() if self.begun else self._open.sized()
        rows, size = rows + self.read, size + self._size_done
        if self._size and size:
            return max(self.rows, *self.begun, round(rows / size * self._size))
        first = self.started.likely if self.started is not None else 0
        return max(self.rows, first) if first else 0

    def _at_work(self) -> tuple[tuple[float, ...], float]:
        """Return how long earlier stages have worked in calls that go on, and how long the last has waited."""
        if self._read_back is not None:
            return self._read_back.at_work, self._read_back.waited
        found = [0.0] * len(self.begun)
        for worker, (stage, at) in self._earlier.news.items():
            since = max(self.ready.get(worker, at), self._last.get(worker, (0, 0.0))[1])
            found[stage] += max(0.0, at - since)
        return tuple(round(seconds, 3) for seconds in found), self._open.waited

    def _near_the_end(self) -> tuple[float, int, tuple[UnderWay, ...]]:
        """Return how long workers have worked, how many are idle, and what they are at if few shards are left."""
        known, ready = self._read_back, self._alike
        if known is not None:
            return known.worked, known.idle, known.last
        if not ready:
            return 0.0, 0, ()
        left, idle = self.shards - self.shards_done, self._open.idle(self.at)
        near = self._open.worked > 0 and is_near_the_end(left, ready - idle)
        last = self._open.each(left, self.at) if near else ()
        return round(self._open.worked, 3), idle, last


def _has_no_case(event: NoReturn) -> NoReturn:
    """Fail for an event that the state does not know; the type checker finds it first."""
    raise AssertionError(f"RunState has no case for {event!r}")


def memory_of(event: MemoryTaken) -> int:
    """Return the bytes of all processes and blocks."""
    return event.driver + event.blocks + sum(event.stages)
