"""The data of each chart: plain values, and no more points than can be seen."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from headrace.annex.report.facts import History, WorkerSpan
from headrace.observers.pace import done_by

POINTS = 300  # of a series
TRACKS = 120  # workers in the timeline
SPANS = 6_000  # in the timeline
GRAINS = 500  # parts of the whole time: a shorter gap is not drawn

Figure = dict[str, Any]


def throughput(history: History) -> Figure | None:
    """Return rows per second over time: those read for the first time, and those that an earlier driver had read."""
    points = _rising(history)
    if len(points) < 2 or points[-1][2] <= points[0][2]:
        return None
    whole = max(history.seconds, points[-1][0])
    width = _width(whole)
    number = max(1, round(whole / width))  # the last is a little longer or shorter
    ends = [*(i * width for i in range(number)), whole]
    bars = []
    for start, end in pairwise(ends):
        seconds = max(end - start, 1e-9)
        (new, done), (new_before, done_before) = done_by(points, end), done_by(points, start)
        new, done = max(0.0, new - new_before) / seconds, max(0.0, done - done_before) / seconds
        bars.append([_short(start), _short(end), _short(new), _short(max(0.0, done - new))])
    starts = [_short(driver.start) for driver in history.drivers[1:]][:50]
    waits = [
        [_short(driver.start), _short(driver.start + driver.first_ready)]
        for driver in history.drivers[:50]
        if driver.first_ready is not None and driver.first_ready > whole / GRAINS
    ]
    return {"kind": "throughput", "points": bars, "resumed": starts, "starting": waits}


def _rising(history: History) -> list[tuple[float, int, int]]:
    """Return over time how many rows were read for the first time, and how many in all, some of them twice."""
    found: list[tuple[float, int, int]] = []
    most = again = 0
    before: int | None = None
    ready = sorted(ready for _, ready in history.starts.values())
    starts = [each.start for each in history.drivers]
    for now, rows, _ in history.progress:
        if before is None:
            most = before = rows
            found.append((0.0, rows, rows))
        if rows < before:  # another driver begins, with what is committed
            before = rows
            found.append((now, most, most + again))
        if rows <= before:
            continue
        begun = starts[max(0, bisect.bisect_left(starts, now) - 1)] if starts else 0.0
        i = bisect.bisect_left(ready, begun)  # before the first worker is ready, no row is read
        if i < len(ready) and found[-1][0] < ready[i] < now:
            found.append((ready[i], most, most + again))
        again += max(0, min(rows, most) - before)
        most, before = max(most, rows), rows
        found.append((now, most, most + again))
    return found


def _width(whole: float) -> float:
    """Return a round width of bars, so that there are about 60.

    >>> _width(130.0), _width(0.5)
    (5.0, 0.01)
    """
    raw = max(whole, 1e-3) / 60
    power = 10.0 ** math.floor(math.log10(raw))
    return min((step * power for step in (1, 2, 5, 10) if step * power >= raw - 1e-12), default=10 * power)


def timeline(history: History) -> Figure | None:
    """Return when each worker was at work, on what stage, and when it was lost."""
    whole = history.seconds
    several = len(history.drivers) > 1

    def shown_as(name: str) -> str:
        return name if several else name.partition(".")[2]

    tracks = [
        (stage, name, spans)
        for stage, workers in sorted(history.tracks.items())
        for name, spans in sorted(workers.items(), key=lambda each: _order(each[0]))
    ]
    if not tracks or whole <= 0:
        return None
    shown = [tracks[i * len(tracks) // TRACKS] for i in range(TRACKS)] if len(tracks) > TRACKS else tracks
    gap = whole / GRAINS
    merged = [(stage, name, _merged(spans, gap)) for stage, name, spans in shown]
    while sum(len(spans) for _, _, spans in merged) > SPANS:
        gap *= 2
        merged = [(stage, name, _merged(spans, gap)) for stage, name, spans in merged]
    rows = [
        [stage, shown_as(name), _short(each.start), _short(each.end), round(each.busy, 2), each.outcome]
        for stage, name, spans in merged
        for each in spans
    ]
    up = [
        [stage, shown_as(name), *map(_short, history.starts[name])]
        for stage, name, _ in merged
        if name in history.starts
    ]
    return {
        "kind": "timeline",
        "stages": history.stage_names,
        "workers": [[stage, shown_as(name), *_lifetime(history, name)] for stage, name, _ in merged],
        "stretches": rows,
        "starting": up,
        "all": len(tracks),
        "seconds": _short(whole),
    }


def _lifetime(history: History, name: str) -> tuple[float, float]:
    """Return from when to when a worker's driver was at work."""
    driver = history.drivers[min(int(name.partition(".")[0]), len(history.drivers)) - 1]
    return _short(driver.start), _short(driver.start + driver.seconds)


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


def _merged(spans: Sequence[WorkerSpan], gap: float) -> list[WorkerSpan]:
    """Join neighbours whose gap is too short to be seen."""
    found: list[WorkerSpan] = []
    for each in sorted(spans, key=lambda span: span.start):
        last = found[-1] if found else None
        if last is None or each.start - last.end > gap or "lost" in (last.outcome, each.outcome):
            found.append(WorkerSpan(each.start, each.end, each.busy, each.calls, each.outcome))
            continue
        end = max(last.end, each.end)
        work = last.busy * (last.end - last.start) + each.busy * (each.end - each.start)
        last.busy = min(1.0, work / max(end - last.start, 1e-9))
        last.end, last.calls = end, last.calls + each.calls
        last.outcome = each.outcome if last.outcome == "done" else last.outcome
    return found


def memory(history: History) -> Figure | None:
    """Return the memory of the run's processes over time, in bytes."""
    if len(history.memory_series) < 2:
        return None
    names = history.stage_names
    step = -(-len(history.memory_series) // POINTS)
    points = []
    for i in range(0, len(history.memory_series), step):
        now, driver, blocks, stages = max(
            history.memory_series[i : i + step], key=lambda each: sum(each[1:3]) + sum(each[3])
        )
        points.append([_short(now), driver, blocks, *stages[: len(names)]])
    wide = max(map(len, points))
    names = [names[i] if i < len(names) else f"stage {i + 1}" for i in range(wide - 3)]
    return {
        "kind": "memory",
        "names": ["driver", "blocks between stages", *(f"{i}. {name}" for i, name in enumerate(names, 1))],
        "points": [point + [0] * (wide - len(point)) for point in points],
        "limit": history.memory_limit,
    }


def batches(history: History) -> Figure | None:
    """Return which batch sizes were found, step by step, over time."""
    if not history.batches:
        return None
    found = [[_short(t), step, what, rows, round(speed)] for t, step, what, rows, speed in history.batches]
    return {"kind": "batches", "points": _thinned(found, POINTS), "seconds": _short(history.seconds)}


def _thinned(points: list[Any], most: int) -> list[Any]:
    """Return so many of the points, evenly, the first and the last among them."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def _short(number: float) -> float:
    """Round to four decimals, large numbers to one."""
    return round(number, 4 if abs(number) < 100 else 1)
