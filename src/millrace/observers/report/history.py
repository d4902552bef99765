"""What a record tells: the drivers of a run one after another, on one time that stands still between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

Line = dict[str, Any]
MOST_INCIDENTS = 500
MOST_STAGES = 1000
_LONGEST = 1e9  # seconds: what is longer was not measured


class Driver(msgspec.Struct):
    """One process that worked on the run: from ``began`` to ``ended`` in seconds since 1970, its time ``start`` on.

    ``error`` None: it has not ended, or was killed.
    """

    described: Line
    began: float
    start: float
    started: Line = {}
    finished: Line = {}
    ended: float = 0.0
    before: tuple[int, int] = (0, 0)  # rows and shards that were done before it

    @property
    def seconds(self) -> float:
        """How long it worked, as far as is known."""
        told = self.finished.get("seconds")
        if isinstance(told, (int, float)) and 0 < told < _LONGEST:
            return float(told)
        return max(0.0, self.ended - self.began)

    @property
    def stages(self) -> list[int]:
        """How many workers each stage had at most."""
        told = self.described.get("stages")
        found = (
            [each.get("workers") for each in told if isinstance(each, dict)] if isinstance(told, list) else []
        )
        return [max(1, workers) if isinstance(workers, int) else 1 for workers in found]

    @property
    def error(self) -> str | None:
        """What it failed with; an empty string if it did not."""
        return str(self.finished.get("error", "")) if self.finished else None

    @property
    def trace(self) -> str:
        """The traceback of the user's code, if that raised the error."""
        return str(self.finished.get("trace", ""))


class Stretch(msgspec.Struct):
    """A worker at work, or getting ready. ``busy``: the share of that time in which it was not waiting."""

    start: float
    end: float
    busy: float = 1.0
    calls: int = 1
    outcome: str = "done"


class Workers(msgspec.Struct):
    """What one stage's workers did in sum, in seconds, and each of them when."""

    seconds: float = 0.0
    read: float = 0.0
    steps: float = 0.0
    write: float = 0.0
    wait: float = 0.0
    lost: float = 0.0  # at attempts that came to nothing
    rows: int = 0
    tracks: dict[str, list[Stretch]] = {}

    @property
    def work(self) -> float:
        """Seconds of anything but waiting."""
        return self.read + self.steps + self.write


class History(msgspec.Struct):
    """All that a record says. Times are seconds of work: those between two drivers are left out."""

    drivers: list[Driver] = []
    rows: list[tuple[float, int, int]] = []  # time, rows read, shards done
    stages: dict[int, Workers] = {}
    ready: list[tuple[float, str, float]] = []  # time, worker, seconds of loading
    memory: list[tuple[float, int, int, list[int]]] = []  # time, driver, blocks, stages
    memory_limit: int = 0
    batches: list[tuple[float, str, str, int, float]] = []  # time, step, what, rows, speed
    incidents: list[tuple[float, str, str]] = []  # time, what, words
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    metrics: Line = {}
    read: int = 0  # in shards that are committed, by all drivers; so are those below
    written: int = 0
    rejected: int = 0
    nulled: int = 0
    bytes: int = 0
    divided: int = 0
    unread: int = 0  # lines that could not be made sense of

    @property
    def last(self) -> Driver | None:
        """The driver that worked on the run last."""
        return self.drivers[-1] if self.drivers else None

    @property
    def seconds(self) -> float:
        """How long drivers worked on it."""
        return sum(driver.seconds for driver in self.drivers)

    @property
    def average(self) -> float:
        """Rows per second: those that were committed, by all the time that drivers worked."""
        before = self.drivers[0].before[0] if self.drivers else 0
        return max(0, self.read - before) / self.seconds if self.seconds > 0 else 0.0

    def capacity(self, stage: int) -> float:
        """The seconds that the workers of a stage had: of each driver as many as it had."""
        return sum(
            driver.seconds * (driver.stages[stage] if stage < len(driver.stages) else 1)
            for driver in self.drivers
        )


def lines_of(data: bytes) -> Iterator[Line | None]:
    """Yield the lines of a record; None for one that is none, such as the last of a driver that was killed."""
    decoder = msgspec.json.Decoder()
    for text in data.split(b"\n"):
        if not text:
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            line = None
        yield line if isinstance(line, dict) else None


def history(lines: Iterable[Line | None]) -> History:
    """Read a record. What cannot be made sense of is passed over.

    >>> lines = [{"at": 5.0, "event": "described"}, {"at": 7.0, "event": "committed", "shards": 1, "read": 9}]
    >>> found = history(lines)
    >>> found.seconds, found.rows
    (2.0, [(2.0, 9, 1)])
    """
    reader = Reader()
    reader.feed(lines)
    return reader.found


class Reader:
    """Reads a record line by line, as it grows; ``found`` is what it told so far."""

    def __init__(self) -> None:
        self.found = History()
        self._most = 0  # rows that the driver has told of
        self._shards = 0

    def feed(self, lines: Iterable[Line | None]) -> None:
        """Take more lines."""
        for line in lines:
            try:
                if line is None:
                    raise ValueError("no line")
                self._take(line)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError):
                self.found.unread += 1

    def _take(self, line: Line) -> None:
        at, event = float(line["at"]), line["event"]
        found = self.found
        if event == "described" or not found.drivers:
            self._begin(line if event == "described" else {}, at)
        driver = found.drivers[-1]
        driver.ended = max(driver.ended, at)
        now = driver.start + max(0.0, at - driver.began)
        method = getattr(self, f"_{str(event).replace(' ', '_')}", None)
        if method is not None:
            method(line, now, driver)

    def _begin(self, line: Line, at: float) -> None:
        self._end_tracks()
        start = self.found.seconds
        began = at - max(0.0, float(line.get("elapsed", 0.0)))
        self.found.drivers.append(Driver(line, began, start, ended=at))

    def _started(self, line: Line, now: float, driver: Driver) -> None:
        found = self.found
        driver.started = line
        read, shards = int(line["rows_done"]), int(line["shards_done"])
        again = self._most - read
        if again > 0:
            self._incident(
                now, "rows read again", f"{again:,} rows were read by a driver that did not commit them"
            )
        driver.before = read, shards
        found.read, found.divided = read, 0
        self._most, self._shards = read, shards
        for name in ("written", "rejected", "nulled", "bytes"):
            setattr(found, name, int(line.get(f"{name}_done", 0)))
        found.rows.append((now, read, shards))

    def _progress(self, line: Line, now: float, driver: Driver) -> None:
        self._reached(now, int(line["rows"]), int(line["shards"]))

    def _reached(self, now: float, rows: int, shards: int) -> None:
        """Rows of shards under way are among those of the line before: a commit takes none of them back."""
        self._most = max(self._most, rows)
        self.found.rows.append((now, self._most, shards))

    def _end_tracks(self) -> None:
        """What workers were at when their driver died, or gave up, is told by no line: they were at it until then."""
        found, driver = self.found, self.found.last
        if driver is None or (driver.finished and not driver.error):
            return
        end = driver.start + driver.seconds
        for now, name, _ in found.ready:
            if now < driver.start:
                continue
            at = [stage for stage in found.stages.values() if name in stage.tracks]
            if not at and len(driver.stages) == 1:
                at = [found.stages.setdefault(0, Workers())]
            for stage in at:
                track = stage.tracks.setdefault(name, [])
                begun = max((each.end for each in track), default=now)
                if end > begun and not (track and track[-1].outcome == "lost"):
                    track.append(Stretch(begun, end, outcome="lost"))
                    stage.seconds += end - begun
                    stage.lost += end - begun

    def _committed(self, line: Line, now: float, driver: Driver) -> None:
        found = self.found
        found.read += int(line["read"])
        self._shards += int(line["shards"])
        self._reached(now, found.read, self._shards)
        found.written += int(line.get("written", 0))
        found.rejected += int(line.get("rejected", 0))
        found.nulled += int(line.get("nulled", 0))
        found.bytes += int(line.get("bytes", 0))

    def _worker_ready(self, line: Line, now: float, driver: Driver) -> None:
        self.found.ready.append((now, self._name(line["worker"]), float(line["seconds"])))

    def _name(self, worker: Any) -> str:
        """Workers of each driver have numbers of their own."""
        drivers = len(self.found.drivers)
        return f"{int(worker)}" if drivers == 1 else f"{drivers}.{int(worker)}"

    def _worked(self, line: Line, now: float, driver: Driver) -> None:
        number = int(line["stage"])
        if not 0 <= number < MOST_STAGES:
            raise ValueError("no stage")
        stage = self.found.stages.setdefault(number, Workers())
        start, end = (max(0.0, float(line[key]) - driver.began) + driver.start for key in ("from", "to"))
        seconds = float(line["seconds"])
        stage.seconds += seconds
        for name in ("read", "steps", "write", "wait"):
            setattr(stage, name, getattr(stage, name) + float(line.get(name, 0.0)))
        stage.lost += float(line.get("lost", 0.0))
        stage.rows += int(line.get("rows", 0))
        outcomes = line.get("outcomes", {})
        bad = next((each for each in ("lost", "failed") if outcomes.get(each)), "done")
        wait = float(line.get("wait", 0.0)) / max(seconds, 1e-9)
        busy = min(1.0, seconds / max(end - start, 1e-9)) * (1.0 - min(1.0, wait))
        stretch = Stretch(start, max(start, end), busy, int(line.get("calls", 1)), bad)
        stage.tracks.setdefault(self._name(line["worker"]), []).append(stretch)

    def _memory(self, line: Line, now: float, driver: Driver) -> None:
        stages = [int(each) for each in line["stages"]]
        self.found.memory.append((now, int(line["driver"]), int(line["blocks"]), stages))
        self.found.memory_limit = int(line["limit"])

    def _batch_sized(self, line: Line, now: float, driver: Driver) -> None:
        speed = float(line["rows_per_second"])
        self.found.batches.append((now, str(line["step"]), "found best", int(line["rows"]), speed))

    def _batch_shrunk(self, line: Line, now: float, driver: Driver) -> None:
        self.found.batches.append((now, str(line["step"]), "did not fit before", int(line["now"]), 0.0))
        words = (
            f"{line['step']}: {int(line['before']):,} rows did not fit, {int(line['now']):,} at a time since"
        )
        self._incident(now, "batch shrunk", words)

    def _call_retried(self, line: Line, now: float, driver: Driver) -> None:
        self._incident(now, "call tried again", f"{line['step']}: {line['error']}")

    def _shard_retried(self, line: Line, now: float, driver: Driver) -> None:
        self._incident(now, "shard tried again", f"shard {line['shard']}: {line['reason']}")

    def _worker_lost(self, line: Line, now: float, driver: Driver) -> None:
        self._incident(now, "worker lost", f"worker {line['worker']}: {line['reason']}")

    def _worker_retired(self, line: Line, now: float, driver: Driver) -> None:
        self._incident(now, "worker retired", f"worker {line['worker']}: {line['reason']}")

    def _shard_divided(self, line: Line, now: float, driver: Driver) -> None:
        self.found.divided += int(line["parts"]) - 1
        if not line.get("early"):  # which is no incident, and may happen every half minute
            self._incident(now, "shard divided", f"shard {line['shard']} is {line['parts']} shards now")

    def _pool_resized(self, line: Line, now: float, driver: Driver) -> None:
        self._incident(now, "pool resized", f"stage {int(line['stage']) + 1}: {line['workers']} workers")

    def _pool_waits(self, line: Line, now: float, driver: Driver) -> None:
        here = f"{line['here']} of {line['wanted']} workers ({line['each']})"
        self._incident(now, "pool waits", f"{line['pool']}: {here} after {float(line['seconds']):.0f} s")

    def _more(self, line: Line, now: float, driver: Driver) -> None:
        name = str(line["of"]).replace("call retried", "call tried again")
        self.found.counts[name.replace("shard retried", "shard tried again")] += int(line["count"])

    def _metrics(self, line: Line, now: float, driver: Driver) -> None:
        self.found.metrics = line

    def _finished(self, line: Line, now: float, driver: Driver) -> None:
        driver.finished = line
        if driver.error:
            self._end_tracks()

    def _incident(self, now: float, what: str, words: str) -> None:
        self.found.counts[what] += 1
        if len(self.found.incidents) < MOST_INCIDENTS:
            self.found.incidents.append((now, what, " ".join(words.split())[:300]))
