"""The figures of a run, from what its events were added up to: how far it is, how fast, who is busy. No clock."""

from __future__ import annotations

from collections import Counter

from headrace.core.asked import RequirementsAsked, RunAsked
from headrace.core.events import (
    Batches,
    BatchesAtWork,
    Ceiling,
    MachineWork,
    MemoryTaken,
    MetricsCounted,
    RunDescribed,
    RunStarted,
)
from headrace.core.work import Faults
from headrace.observers.pace import (
    WINDOW,
    ModelUse,
    Pace,
    Unit,
    sized,
    time_of_the_last,
)
from headrace.observers.run_parts import (
    BegunRows,
    Driver,
    OpenShards,
    ProgressSample,
    StageState,
    bottleneck,
    busy_share,
)


class RunFigures:
    """What a state holds, and the figures that follow from it; ``RunState`` adds the events."""

    def __init__(self) -> None:
        self.at = 0.0  # of the last event or tick
        self.drivers: list[Driver] = []
        self.rows = (
            0  # read, including those of shards that are not committed yet; of several stages, by the last
        )
        self.begun: tuple[int, ...] = ()  # rows that went through each stage before the last
        self.read = self.written = self.rejected = self.nulled = self.bytes = 0  # in committed shards
        self.shards_done = self.shards = 0
        self.stages: dict[int, StageState] = {}
        self.ready: dict[int, float] = {}  # worker → when it was ready, of the present driver
        self.memory: MemoryTaken | None = None
        self.memory_peak = 0
        self.metrics: MetricsCounted | None = None
        self.doing = ""  # before the run has begun
        self.doing_since: float | None = None
        self.batches_sent: dict[str, BatchesAtWork] = {}  # by step, before the run has begun
        self.machines: tuple[MachineWork, ...] = ()  # of a fleet, before the run of the last one
        self.required: RequirementsAsked | None = None
        self.asked = RunAsked()  # by who watches
        self.faults = Faults()  # in committed shards
        self.counts: Counter[str] = Counter()  # incidents
        self.retried: Counter[tuple[str, str]] = Counter()  # (step, error) → calls
        self.models = ModelUse()
        self.unread = 0  # lines of a record that could not be read
        self.sample = ProgressSample(0, 0)
        self.sampled_at = 0.0
        self._pace = Pace()
        self._open, self._earlier = OpenShards(), BegunRows()
        self._working: tuple[int, ...] = ()  # in the midst of a shard, as the last sample of a record has it
        self._read_back: ProgressSample | None = None  # the last sample of a record
        self._share = self._share_before = 0.0
        self._size = self._size_done = 0  # bytes of the input, where they tell how many rows there are
        self._left: dict[int, int] = {}  # shard that is not committed → those of its input
        self._ceilings: dict[str, int] = {}
        self._sizes: dict[str, dict[int, int]] = {}
        self._last: dict[int, tuple[int, float, bool]] = {}  # worker → (stage, end, lost) of its last call
        # Worker → seconds (starting, loading), not yet counted.
        self._starts: dict[int, tuple[float, float]] = {}

    # ------------------------------------------------------------ how far

    @property
    def at_work(self) -> bool:
        """True if the last driver goes on, and has a worker that is ready, or rows that it has read."""
        driver = self.last
        if driver is None or driver.started is None or driver.finished is not None:
            return False
        return bool(self.ready) or self.rows > driver.started.rows_done

    @property
    def last(self) -> Driver | None:
        """The driver that worked on the run last."""
        return self.drivers[-1] if self.drivers else None

    @property
    def described(self) -> RunDescribed | None:
        """What the last driver said of the run when it began."""
        return self.last.described if self.last is not None else None

    @property
    def started(self) -> RunStarted | None:
        """What the last driver had to do, and what was done before it."""
        return self.last.started if self.last is not None else None

    @property
    def rows_expected(self) -> int | None:
        """Rows of the input; None if it is not known before they are read."""
        started = self.started
        return started.rows if started is not None and started.rows >= 0 else None

    @property
    def failed(self) -> int:
        """Rows that were rejected, or got a null for a result, including those of shards not committed yet."""
        return self.rejected + self.nulled + self._open.failed

    @property
    def share(self) -> float | None:
        """How much of the run is done, from 0 to 1; None if there is nothing to do."""
        total = self.rows_expected if self._by_rows else self.shards
        return self._share if total else None

    @property
    def _by_rows(self) -> bool:
        return self.rows_expected is not None

    @property
    def memory_limit(self) -> int:
        """Bytes that the run's processes may take; 0 if that is not known."""
        return self.memory.limit if self.memory is not None else 0

    @property
    def _alike(self) -> int:
        """How many workers are ready, if all of them do the same."""
        return len(self.ready) if len(self.stage_names) < 2 else 0

    # ------------------------------------------------------------ how fast

    def speed(self, now: float) -> float:
        """Return the rows read per second in the last half minute."""
        return self._pace.rate(now, "rows")

    def time_left(self, now: float) -> float | None:
        """Return the seconds that the rest will take; None while nothing was done at all."""
        total, sample = self._rows_in_all, self.sample
        if self.asked.paused:
            return None
        workers = max(0, self._alike - sample.idle)
        unit: Unit = "rows" if total is not None else "shards"
        changed = 0.0 if workers else max((at for at in self.ready.values() if at <= now), default=0.0)
        rate, waited = self._pace.long_rate(now, unit, changed)
        of_one = self._pace.rate_of_one(now, unit) if workers else 0.0
        rate = of_one * workers or rate
        begun = self._begun_rate(now) if rate <= 0 and total is not None else 0.0
        if begun > 0 and total is not None:
            return max(0.0, total - min(self.begun)) / begun
        if rate <= 0:
            return None
        shards = max(0, self.shards - sample.shards)
        left = max(0.0, total - sample.rows) if total is not None else shards
        if total is not None and of_one and sample.last:
            planned = self.started.last_shards if self.started is not None else ()
            if self._size:
                planned = tuple(round(each * total / self._size) for each in planned)
            under_way, waiting = sized(sample.last, shards, left, planned)
            return time_of_the_last(under_way, waiting, workers=workers, rate=of_one, now=now)
        return max(0.0, left / rate - waited)

    def _begun_rate(self, now: float) -> float:
        """Return the rows a second of the stages before the last, while the last one waits for a first block."""
        waits = len(self.ready) >= sum(self.stage_workers) and not any(
            stage.seconds for stage in self.stages.values()
        )
        return self._pace.long_rate(now, "begun")[0] if self.begun and waits else 0.0

    @property
    def cost_expected(self) -> float | None:
        """What the answers of language models will have cost in the end; None where that is not known."""
        total = self.rows_expected if self._by_rows else self.shards
        return self.models.expected_cost(self.share, self._share_before) if total else None

    @property
    def _rows_in_all(self) -> float | None:
        """Rows of the input, or how many they will be if the rest is as what was committed; None before that."""
        if self._by_rows:
            return self.rows_expected
        if self._size or self.sample.likely:
            return self.sample.likely or None
        return self.shards * self.read / self.shards_done if self.shards_done else None

    @property
    def seconds(self) -> float:
        """How long drivers worked on the run, up to the last event."""
        return sum(driver.seconds for driver in self.drivers)

    def elapsed(self, now: float) -> float:
        """Return how long drivers have worked on the run, if the present one is still at work."""
        return sum(self._seconds_of(driver, now) for driver in self.drivers)

    def _seconds_of(self, driver: Driver, now: float) -> float:
        at_work = driver is self.last and driver.finished is None
        return max(driver.seconds, now - driver.began) if at_work else driver.seconds

    def average(self, now: float) -> float:
        """Return the committed rows per second of all drivers, or of the machines of a fleet."""
        started = self.drivers[0].started if self.drivers and not self.machines else None
        before = started.rows_done if started is not None else 0
        elapsed = self.elapsed(now)
        return max(0, self.read - before) / elapsed if elapsed > 0 else 0.0

    # ------------------------------------------------------------ stages and workers

    @property
    def stage_names(self) -> list[str]:
        """The steps of each stage in words; a stage of which nothing is known has a number."""
        names = [stage.name for stage in self.described.stages] if self.described is not None else []
        number = max([len(names), *(stage + 1 for stage in self.stages)])
        return [names[i] if i < len(names) and names[i] else f"stage {i + 1}" for i in range(number)]

    @property
    def stage_workers(self) -> list[int]:
        """How many workers each stage has at most."""
        workers = self.last.workers if self.last is not None else []
        return [workers[i] if i < len(workers) else 1 for i in range(len(self.stage_names))]

    def capacity(self, stage: int, now: float) -> float:
        """Return the seconds that the workers of a stage had, over all drivers."""
        return sum(
            max(0.0, self._seconds_of(driver, now) - driver.making)
            * (driver.workers[stage] if stage < len(driver.workers) else 1)
            for driver in self.drivers
        )

    def busy(self, now: float) -> list[float]:
        """Return, for each stage, the share of its workers' time in which they worked and did not wait."""
        stages = [self.stages.get(i, StageState()) for i in range(len(self.stage_names))]
        return [
            busy_share(stage.seconds, stage.wait, self.capacity(i, now)) for i, stage in enumerate(stages)
        ]

    @property
    def bottleneck(self) -> int | None:
        """The stage that kept the others waiting, if one did."""
        return bottleneck(self.busy(self.at))

    @property
    def lost(self) -> float:
        """The seconds of work, of all workers, whose result was not used."""
        return sum(stage.lost for stage in self.stages.values())

    @property
    def working(self) -> tuple[int, ...]:
        """The workers of the last stage that are in the midst of a shard, as far as they said so."""
        return self._open.workers() or self._working

    def under_way(self, now: float) -> list[tuple[float, float]]:
        """Return from when to when workers of the last stage have been at what has not ended yet."""
        if not self.at_work:
            return []
        begun = [max(self.ready.get(each, now), self._last.get(each, (0, 0.0))[1]) for each in self.working]
        return [(since, now) for since in begun if since < now]

    def busy_lately(self, now: float) -> list[float]:
        """Return the same for the last half minute, with what is under way in the last stage."""
        began = self.drivers[-1].began if self.drivers else now
        since = max(began, now - WINDOW)
        shares = []
        for i, workers in enumerate(self.stage_workers):
            seconds = 0.0
            for start, end, busy in self.stages[i].recent if i in self.stages else ():
                inside = max(0.0, min(end, now) - max(start, since))
                seconds += busy * inside / max(end - start, 1e-9)
            if i + 1 == len(self.stage_workers):
                under_way = self.under_way(now)
                worked = sum(end - start for start, end in under_way)
                lately = sum(end - max(start, since) for start, end in under_way if end > since)
                seconds += lately * max(0.0, 1.0 - self.sample.waited / max(worked, 1e-9))
            elif i < len(self.sample.at_work):
                seconds += self.sample.at_work[i]
            shares.append(min(1.0, seconds / max(workers * (now - since), 1e-9)))
        return shares

    # ------------------------------------------------------------ for the end of a run

    def ceilings(self) -> tuple[Ceiling, ...]:
        """Return the steps for which memory sufficed only for so many rows at a time."""
        return tuple(Ceiling(step, rows) for step, rows in self._ceilings.items())

    def batch_sizes(self) -> tuple[Batches, ...]:
        """Return the batch sizes that workers found best, by step; each worker's last one counts."""
        return tuple(
            Batches(step, min(rows.values()), max(rows.values())) for step, rows in self._sizes.items()
        )
