"""Asks what the processes of a run take, ends a worker before the kernel does, and says what comes of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace.core.events import RowsRead
from millrace.core.ports import Pool
from millrace.core.work import ErrorReport, Squeeze
from millrace.run.pressure import End, Pressure, Sample

CALM = 0.2  # seconds between two looks
ALERT = 0.05  # where more than half of the limit is taken


@dataclass(frozen=True, slots=True)
class TooBig:
    """A shard that does not fit; the worker got through ``rows`` of its rows, as far as is known."""

    shard: int
    rows: int
    reason: str


class Relief:
    """Keeps a run within the limit of ``pressure``; without one it only looks on."""

    def __init__(self, pressure: Pressure | None = None, driver: Callable[[], int] = lambda: 0) -> None:
        """``driver`` returns the private memory of this process."""
        self._pressure = pressure
        self._driver = driver
        self._due = 0.0
        self.sample: Sample | None = None  # of the last look, if it was one
        self._ended: dict[int, End] = {}
        self._told: set[int] = set()  # of those, whose shard was seen to
        self._rows: dict[int, tuple[int, int]] = {}  # shard and rows that a worker was at
        self._too_big: dict[int, TooBig] = {}

    @property
    def limit(self) -> int:
        """Bytes that the run may take; 0 if nobody said."""
        return self._pressure.limit if self._pressure is not None else 0

    @property
    def paused(self) -> bool:
        """True while nothing is to be made ahead of its time."""
        return self._pressure is not None and self._pressure.paused

    @property
    def ahead(self) -> bool:
        """True if attempts may be begun behind others."""
        return self._pressure is None or not (self._pressure.paused or self._pressure.tight)

    @property
    def patience(self) -> float:
        """Seconds until the next look."""
        near = self._pressure is not None and self._pressure.total > self._pressure.limit / 2
        return ALERT if near else CALM

    def look(
        self, pools: Sequence[Pool], blocks: int, now: float, holders: Callable[[], set[int]] = set
    ) -> End | ErrorReport | None:
        """Return who has to go now, if anybody, or why there is no going on.

        ``holders`` have something under way, be it at rest.
        """
        pressure, self.sample = self._pressure, None
        if pressure is None or (now < self._due and not pressure.tight):
            return None
        stages = [pool.memory() for pool in pools]
        idle: set[int] = set()
        if pressure.tight:
            idle = {worker for pool in pools for worker, calls in pool.loads().items() if not calls}
            idle -= holders()
        self.sample = Sample(self._driver(), blocks, stages)
        end = pressure.judge(self.sample, idle)
        if pressure.squeeze is not None:
            stage, worker = pressure.squeeze
            pools[stage].feed(worker, -1, -1, Squeeze())
        self._due = now + self.patience
        if pressure.hopeless:
            return _hopeless(pressure.hopeless)
        if end is not None:
            self._ended[end.worker] = end
        return end

    def live(self, loads: dict[int, int]) -> dict[int, int]:
        """Leave out the workers that are about to end."""
        return self._pressure.live(loads) if self._pressure is not None else loads

    def hear(self, message: object) -> None:
        """Take a note of how far a worker is."""
        if isinstance(message, RowsRead):
            self._rows[message.worker] = message.shard, message.rows

    def worked(self, worker: int) -> None:
        """A worker has completed an attempt, or a piece."""
        if self._pressure is not None:
            self._pressure.worked(worker)

    def ended(self, worker: int) -> bool:
        """Say whether a worker was ended here."""
        return worker in self._ended

    def lost(
        self, shard: int, worker: int, *, rows: int | None = None, loading: str = ""
    ) -> ErrorReport | None:
        """A worker that was ended here had to do with a shard: remember that if it does not fit.

        Its calls fail in order, so the first was at work, if it told nothing else. ``loading``: how it ended, if it
        could not work yet.
        """
        end = self._ended[worker]
        at, told = self._rows.get(worker, (shard, 0))
        if worker in self._told or not (end.fresh and end.alone) or at != shard:
            return None
        self._told.add(worker)
        if loading:
            return _does_not_load(loading)
        self._too_big[shard] = TooBig(shard, told if rows is None else rows, end.reason)
        return None

    def is_too_big(self, shard: int) -> bool:
        """Say whether a shard does not fit."""
        return shard in self._too_big

    def too_big(self, shard: int) -> TooBig | None:
        """Return what is known of a shard that does not fit, once."""
        found = self._too_big.pop(shard, None)
        if found is not None and self._pressure is not None:
            self._pressure.progress()
            self._pressure.tight = True
        return found


def _hopeless(why: str) -> ErrorReport:
    return ErrorReport(
        "OutOfMemory",
        f"Memory does not suffice: {why}. Committed shards are kept.",
    )


def _does_not_load(loading: str) -> ErrorReport:
    return ErrorReport(
        "OutOfMemory",
        f"A worker alone does not fit into memory: {loading}. Use a smaller model or dtype, raise "
        "memory_limit=, or run on a machine with more. Committed shards are kept.",
    )
