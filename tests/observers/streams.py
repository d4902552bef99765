"""Runs that never were, as streams of events: workers that share shards, with what is usual and cannot be planned.

What a stream may have is what ``Stream`` has fields for. What it has not, nobody can foresee: see its text.
"""

from __future__ import annotations

import heapq
import io
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.core.events import Event, RowsRead, RunStarted, ShardCommitted, Worked, WorkerReady
from headrace.core.work import Ledger, Timings
from headrace.observers.pace import LAST_SHARDS
from headrace.observers.progress import Progress
from headrace.observers.run_state import RunState
from headrace.session.event_bus import EventBus
from observers.histories import Time, described

NOISE = 0.3  # standard deviation of a batch's time, as a share of it
NOISE_SECONDS = 0.1  # and in seconds
SWELL = 0.1
LEAST_BATCHES = 30  # that a worker does at least
TWO_STAGES_READY = 0.15  # share of the work by which all workers of two stages are ready


@dataclass(frozen=True)
class Stream:
    """A run of one stage or two, whose workers take shards in order, the next one free the next shard.

    How much of what is usual, as ``drawn`` makes them:

    - 1 to 8 workers, 4 to 60 shards of 0.5 to 60 seconds; where sizes differ, from a quarter to seven quarters.
    - Processes and models start for up to a quarter of the work, and the last worker is ready by then, too; where
      there are two stages, it is 15 %.
    - A batch takes a thirtieth of the work at most, and 0.9 s: a worker tells nothing within one, and what is shown
      may be a second off. Where batches are as long as shards, only the first holds.
    - The time of a batch has a standard deviation of 30 %, but of 0.1 s at most; of 10 %, where all comes together;
      of 2 % and 0.25 s at most, where batches are as long as shards. A machine is 10 % slower and faster by turns.

    What nobody can foresee is not in it, and only that:

    - A rate that changes for good after a third of the run: a worker that joins or is lost later, rows that take
      another time in the rest than before, a machine that is slower from then on. Where there are
      two stages, a worker that is ready shortly before that shows only by what it has made, some blocks later: with
      25 % instead of 15 %, one such run in 150 is off for a second.
    - A run in which workers have said next to nothing by a third of it: here a batch takes a thirtieth of the time at
      most, so that each has done ten.
    - What was made ahead while a model was loaded, and goes in no time: it is no measure of the rest, and a tenth of
      the run here at most. A run of two stages takes ten seconds at least.
    - What chance does to the last batches: a worker says how far it is after each, and nothing in those before tells
      that the last three are long or short all together. With batches of a second and a deviation of 20 %, that is
      more than a second in one run of 130, with 30 % in one of 50; hence the 0.1 s above.
    - The length of rows in bytes, where their number is not known before: it is much the same in the whole input.
    """

    sizes: tuple[int, ...]  # rows of each shard
    workers: int
    pace: float  # rows that a worker does in a second
    batch: float  # seconds that a batch takes, after each of which a worker says how far it is
    noise: float = 0.0  # of a batch's time: standard deviation of its share
    swell: float = 0.0  # by which the machine is slower and faster, in turns of a twentieth of the run
    start: float = 0.0  # until the first worker is ready, as a share of the work: processes, models
    late: float = 0.0  # until the last worker is ready, likewise
    stages: int = 1  # the last one gets what the others make, some blocks ahead
    done: int = 0  # shards of an earlier driver
    known: bool = True  # whether rows are known before
    seed: int = 0
    told: list[tuple[float, Event]] = field(default_factory=list, compare=False, repr=False)

    @property
    def seconds(self) -> float:
        """How long the work takes, about."""
        return sum(self.sizes[self.done :]) / self.pace / self.workers

    def events(self) -> list[tuple[float, Event]]:
        """Return what happens, and when; the last is the last shard's commit."""
        if not self.told:
            times = self._ready()
            found = self._pipeline(times) if self.stages > 1 else self._shards(times)
            self.told.extend(sorted(found, key=lambda each: each[0]))
        return self.told

    def bytes(self, shard: int) -> int:
        """Return the bytes of a shard's input: rows are not all of one length."""
        return round(self.sizes[shard] * (9 + shard % 3))

    def _ready(self) -> list[float]:
        first, last = self.start * self.seconds, self.late * self.seconds
        return [first + (last - first) * i / max(1, self.workers - 1) for i in range(self.workers)]

    def _shards(self, ready: list[float]) -> list[tuple[float, Event]]:
        found: list[tuple[float, Event]] = [(at, WorkerReady(i, 0.1)) for i, at in enumerate(ready)]
        free = [(at, worker) for worker, at in enumerate(ready)]
        heapq.heapify(free)
        dice = random.Random(self.seed)
        for shard in range(self.done, len(self.sizes)):
            began, worker = heapq.heappop(free)
            end = began
            for rows, end in self._batches(shard, began, dice):
                if rows < self.sizes[shard]:
                    of = self.sizes[shard] if self.known else -1
                    size = round(self.bytes(shard) * rows / self.sizes[shard])
                    found.append((end, RowsRead(worker, shard, rows, of=of, size=size)))
            found += self._ended(shard, worker, 0, end, end - began)
            heapq.heappush(free, (end, worker))
        return found

    def _batches(self, shard: int, now: float, dice: random.Random) -> Iterator[tuple[int, float]]:
        """Yield the rows done of a shard, and when."""
        whole = self.sizes[shard]
        number = max(1, round(whole / self.pace / self.batch))
        turn = self.seconds / 20
        for batch in range(number):
            rows = whole * (batch + 1) // number - whole * batch // number
            slow = 1 + self.swell * (1 if int(now / turn) % 2 else -1)
            now += rows / self.pace * slow * max(0.2, dice.gauss(1.0, self.noise))
            yield whole * (batch + 1) // number, now

    def _ended(
        self, shard: int, worker: int, stage: int, at: float, seconds: float
    ) -> list[tuple[float, Event]]:
        rows = self.sizes[shard]
        return [
            (at, Worked(stage, worker, shard, 0, seconds, "done", rows)),
            (at, ShardCommitted(shard, 0, Ledger(rows, rows), 1000, Timings())),
        ]

    def _pipeline(self, ready: list[float]) -> list[tuple[float, Event]]:
        """One stage makes blocks, some ahead; one worker with a model takes them, five times as fast.

        The workers of the earlier stage are ready at once; ``start`` is when the last stage's is, ``late`` when the
        last one of the earlier is.
        """
        model = ready[0]
        makers = [0.0, *(at for at in ready[1:])]
        found: list[tuple[float, Event]] = [(at, WorkerReady(i, 0.1)) for i, at in enumerate(makers)]
        found.append((model, WorkerReady(self.workers, 0.1)))
        dice, free = random.Random(self.seed), [(at, worker) for worker, at in enumerate(makers)]
        heapq.heapify(free)
        taken: deque[float] = deque()
        consumed, ahead = model, max(1, min(8, int(self.seconds / 10 / self.batch * self.workers)))
        for shard in range(self.done, len(self.sizes)):
            began, before, rows, end = 0.0, 0, 0, consumed
            number = max(1, round(self.sizes[shard] / self.pace / self.batch))
            for block in range(number):
                at, worker = heapq.heappop(free)
                if len(taken) >= ahead:
                    at = max(at, taken.popleft())
                rows = self.sizes[shard] * (block + 1) // number
                seconds = (rows - before) / self.pace * max(0.2, dice.gauss(1.0, self.noise))
                heapq.heappush(free, (at + seconds, worker))
                found.append((at + seconds, Worked(0, worker, shard, 0, seconds, "going on")))
                consumed = max(consumed, at + seconds) + (rows - before) / self.pace / self.workers / 5
                taken.append(consumed)
                began, before, end = began or at, rows, consumed
                if rows < self.sizes[shard]:
                    found.append((consumed, RowsRead(self.workers, shard, rows, of=self.sizes[shard])))
            found += self._ended(shard, self.workers, 1, end, end - began)
        return found

    def play(self) -> Iterator[tuple[float, float, float | None]]:
        """Yield the time, the share and the time left at each tick."""
        clock, events = Time(), self.events()
        view, progress = Shown(), Progress(io.StringIO())
        progress._view, progress._in_notebook = view, True
        bus = EventBus([progress], clock=clock)
        names = [
            (f"stage {i}", self.workers if i + 1 < self.stages or i == 0 else 1) for i in range(self.stages)
        ]
        bus.on_event(described(*names, elapsed=0.0))
        rows = sum(self.sizes) if self.known else -1
        sizes = {} if self.known else {i: self.bytes(i) for i in range(len(self.sizes))}
        left = {i: size for i, size in sizes.items() if i >= self.done}
        bus.on_event(
            RunStarted(
                "r",
                "/out",
                len(self.sizes),
                self.done,
                sum(self.sizes[: self.done]),
                rows,
                self.workers,
                last_shards=self.sizes[-LAST_SHARDS:] if self.known else tuple(sizes.values())[-LAST_SHARDS:],
                size=sum(sizes.values()),
                size_done=sum(sizes.values()) - sum(left.values()),
                sizes=left,
            )
        )
        began, every = clock.now, min(1.0, max(0.2, events[-1][0] / 300))
        tick = began + every
        for at, event in events:
            while tick < began + at:
                clock.now, tick = tick, tick + every
                bus.tick()
                if view.drawn:
                    yield clock.now - began, view.share, view.left
            clock.now = began + at
            bus.on_event(event)
        assert bus.state.share == 1.0
        progress.close()


KINDS = (
    "steady",
    "model",
    "late",
    "sizes",
    "noise",
    "swell",
    "stages",
    "unknown",
    "resumed",
    "batches",
    "all",
)


def drawn(dice: random.Random) -> Stream:
    """Return some run: which ones there are, and how much of what they have, is said at ``Stream``."""
    kind, workers = dice.choice(KINDS), dice.randint(1, 8)
    shards = dice.randint(4 * workers if kind == "unknown" else 4, 60)
    seconds, pace = dice.choice([0.5, 2.0, 5.0, 20.0, 60.0]), dice.choice([50, 1_000, 100_000])
    rows = round(seconds * pace)
    found: dict[str, Any] = {"sizes": (rows,) * shards, "batch": dice.choice([0.1, 0.5, 0.9])}
    match kind:
        case "model":
            found["start"] = found["late"] = dice.uniform(0, 0.25)
        case "late":
            found |= {"start": dice.uniform(0, 0.125), "late": dice.uniform(0, 0.25)}
        case "noise":
            found["noise"] = NOISE  # below, of long batches less
        case "swell":
            found["swell"] = SWELL
        case "stages":
            found |= {"stages": 2, "start": dice.uniform(0, TWO_STAGES_READY)}
            found["late"] = dice.uniform(0, TWO_STAGES_READY)
            found["sizes"] = (max(rows, 10 * pace * workers // shards + 1),) * shards
        case "unknown":
            found |= {"known": False, "done": dice.randint(0, shards // 4)}
        case "resumed":
            found["done"] = dice.randint(0, shards // 2)
        case "batches":
            found["batch"] = seconds
        case "all":
            found |= {"noise": NOISE / 3, "swell": SWELL, "done": dice.randint(0, shards // 4)}
            found |= {"start": dice.uniform(0, 0.125), "late": dice.uniform(0, 0.25)}
    if kind in ("sizes", "all", "unknown"):
        found["sizes"] = tuple(round(dice.uniform(0.25, 1.75) * rows) for _ in range(shards))
    work = sum(found["sizes"][found.get("done", 0) :]) / pace / workers
    found["batch"] = min(found["batch"], work / LEAST_BATCHES)
    if kind == "noise":
        found["noise"] = min(NOISE, NOISE_SECONDS / found["batch"])
    if kind == "batches":
        found["noise"] = min(0.02, 0.25 / found["batch"])
    return Stream(workers=workers, pace=pace, seed=dice.randint(0, 2**32), **found)


class Shown:
    """A view that remembers."""

    def __init__(self) -> None:
        self.share, self.drawn = 0.0, False
        self.left: float | None = None

    def draw(self, state: RunState, now: float, left: float | None) -> None:
        self.drawn = True
        self.share, self.left = state.share or 0.0, left

    def say(self, line: str) -> None:
        raise AssertionError(line)

    def close(self) -> None:
        pass
