"""The data of each chart: plain values, and no more points than can be seen."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any

from headrace.observers.report.history import History, WorkerSpan

POINTS = 300  # of a series
TRACKS = 120  # workers in the timeline
SPANS = 6_000  # in the timeline
GRAINS = 500  # parts of the whole time: a shorter gap is not drawn

Figure = dict[str, Any]


def throughput(history: History) -> Figure | None:
    """Return rows per second over time: those read for the first time, and those that an earlier driver had read."""
    first, whole_work = _rising(history)
    if len(whole_work) < 2 or whole_work[-1][1] <= whole_work[0][1]:
        return None
    whole = max(history.seconds, whole_work[-1][0])
    times, new_rows, all_rows = [t for t, _ in first], [n for _, n in first], [n for _, n in whole_work]
    width = _width(whole)
    points = []
    bars = max(1, round(whole / width))  # the last is a little longer or shorter
    for i in range(bars):
        start, end = i * width, whole if i + 1 == bars else (i + 1) * width
        seconds = max(end - start, 1e-9)
        new, done = (
            max(0.0, _between(times, series, end) - _between(times, series, start)) / seconds
            for series in (new_rows, all_rows)
        )
        points.append([_short(start), _short(end), _short(new), _short(max(0.0, done - new))])
    starts = [_short(driver.start) for driver in history.drivers[1:]][:50]
    waits = [
        [_short(driver.start), _short(driver.start + driver.first_ready)]
        for driver in history.drivers[:50]
        if driver.first_ready is not None and driver.first_ready > whole / GRAINS
    ]
    return {"kind": "throughput", "points": points, "resumed": starts, "starting": waits}


Series = list[tuple[float, float]]


def _rising(history: History) -> tuple[Series, Series]:
    """Return over time how many rows were read for the first time, and how many in all, some of them twice."""
    first: Series = []
    every: Series = []
    most = again = 0
    before: int | None = None
    ready = sorted(now for now, _, _ in history.ready_times)
    starts = [each.start for each in history.drivers]
    for now, rows, _ in history.progress:
        if before is None:
            most = before = rows
            first.append((0.0, float(rows)))
            every.append((0.0, float(rows)))
        if rows < before:  # another driver begins, with what is committed
            before = rows
            first.append((now, float(most)))
            every.append((now, float(most + again)))
        if rows <= before:
            continue
        begun = starts[max(0, bisect.bisect_left(starts, now) - 1)] if starts else 0.0
        i = bisect.bisect_left(ready, begun)  # before the first worker is ready, no row is read
        if i < len(ready) and first[-1][0] < ready[i] < now:
            first.append((ready[i], float(most)))
            every.append((ready[i], float(most + again)))
        again += max(0, min(rows, most) - before)
        most, before = max(most, rows), rows
        first.append((now, float(most)))
        every.append((now, float(most + again)))
    return first, every


def _width(whole: float) -> float:
    """Return a round width of bars, so that there are about 60.

    >>> _width(130.0), _width(0.5)
    (5.0, 0.01)
    """
    raw = max(whole, 1e-3) / 60
    power = 10.0 ** math.floor(math.log10(raw))
    return min((step * power for step in (1, 2, 5, 10) if step * power >= raw - 1e-12), default=10 * power)


def _between(times: Sequence[float], rows: Sequence[float], now: float) -> float:
    """Return the rows at a time between two samples."""
    i = bisect.bisect_right(times, now)
    if i == 0:
        return rows[0]
    if i == len(times):
        return rows[-1]
    share = (now - times[i - 1]) / max(times[i] - times[i - 1], 1e-9)
    return rows[i - 1] + share * (rows[i] - rows[i - 1])


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
    ready: dict[str, float] = {}
    for now, worker, _ in history.ready_times:
        ready.setdefault(worker, now)
    gap = whole / GRAINS
    merged = [(stage, name, _merged(spans, gap)) for stage, name, spans in shown]
    while sum(len(spans) for _, _, spans in merged) > SPANS:
        gap *= 2
        merged = [(stage, name, _merged(spans, gap)) for stage, name, spans in merged]
    rows = []
    for stage, name, spans in merged:
        for each in spans:
            rows.append(
                [
                    stage,
                    shown_as(name),
                    _short(each.start),
                    _short(each.end),
                    round(each.busy, 2),
                    each.outcome,
                ]
            )
    starts = _starts(history)
    up = [
        [stage, shown_as(name), _short(starts.get(name, 0.0)), _short(ready[name])]
        for stage, name, _ in merged
        if name in ready
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


def _starts(history: History) -> dict[str, float]:
    """Return, for workers that were there from the start of their driver, when that was; others began later."""
    found: dict[str, float] = {}
    for now, worker, loading in history.ready_times:
        driver = max((d for d in history.drivers if d.start <= now), key=lambda d: d.start, default=None)
        if driver is None:
            continue
        first = min((at for at, _, _ in history.ready_times if at >= driver.start), default=now)
        begun = driver.start if now <= driver.start + 3 * (first - driver.start) + 1.0 else now - loading
        found.setdefault(worker, max(driver.start, begun))
    return found


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
