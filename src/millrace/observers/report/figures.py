"""What is drawn: plain data for each chart, never more points than an eye can tell apart."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any

from millrace.observers.busy import busy_share
from millrace.observers.report.history import History, Stretch, Workers

POINTS = 300  # of a series
TRACKS = 120  # workers in the timeline
STRETCHES = 6_000  # in the timeline
GRAINS = 500  # of a worker's time: shorter gaps are not seen

Figure = dict[str, Any]


def throughput(history: History) -> Figure | None:
    """Return rows per second over time, and how many were read up to then."""
    at = _rising(history)
    if len(at) < 2 or at[-1][1] <= at[0][1]:
        return None
    times, rows = [t for t, _ in at], [n for _, n in at]
    whole = max(history.seconds, times[-1])
    width = _width(whole)
    points = []
    bars = max(1, round(whole / width))  # the last is a little longer or shorter
    for i in range(bars):
        start, end = i * width, whole if i + 1 == bars else (i + 1) * width
        done = _between(times, rows, end) - _between(times, rows, start)
        points.append([_short(start), _short(end), _short(max(0.0, done) / max(end - start, 1e-9))])
    starts = [_short(driver.start) for driver in history.drivers[1:]][:50]
    total = _thinned([[_short(t), n] for t, n in at], POINTS)
    return {"kind": "throughput", "points": points, "total": total, "resumed": starts}


def _rising(history: History) -> list[tuple[float, float]]:
    """Return rows over time, without falling back where a shard or a driver was lost."""
    found: list[tuple[float, float]] = []
    most = 0
    if history.drivers and history.rows:
        found.append((0.0, float(history.rows[0][1])))
        most = history.rows[0][1]
    ready = sorted(now for now, _, _ in history.ready)
    for now, rows, _ in history.rows:
        if rows > most:
            driver = max((d.start for d in history.drivers if d.start <= now), default=0.0)
            first = bisect.bisect_left(ready, driver)  # before somebody is ready, nobody reads
            if first < len(ready) and found and found[-1][0] < ready[first] < now:
                found.append((ready[first], float(most)))
            most = rows
            found.append((now, float(rows)))
    return found


def _width(whole: float) -> float:
    """Return a round width of bars, of which about 60 make the whole.

    >>> _width(130.0), _width(0.5)
    (5.0, 0.01)
    """
    raw = max(whole, 1e-3) / 60
    power = 10.0 ** math.floor(math.log10(raw))
    return min((step * power for step in (1, 2, 5, 10) if step * power >= raw - 1e-12), default=10 * power)


def _between(times: Sequence[float], rows: Sequence[float], now: float) -> float:
    """Return how many rows there were at a moment between two that are known."""
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
    tracks = [
        (stage, name, stretches)
        for stage, workers in sorted(history.stages.items())
        for name, stretches in sorted(workers.tracks.items(), key=lambda each: _order(each[0]))
    ]
    if not tracks or whole <= 0:
        return None
    shown = [tracks[i * len(tracks) // TRACKS] for i in range(TRACKS)] if len(tracks) > TRACKS else tracks
    ready: dict[str, float] = {}
    for now, worker, _ in history.ready:
        ready.setdefault(worker, now)
    gap = whole / GRAINS
    merged = [(stage, name, _merged(stretches, gap)) for stage, name, stretches in shown]
    while sum(len(stretches) for _, _, stretches in merged) > STRETCHES:
        gap *= 2
        merged = [(stage, name, _merged(stretches, gap)) for stage, name, stretches in merged]
    rows = []
    for stage, name, stretches in merged:
        for each in stretches:
            rows.append(
                [stage, name, _short(each.start), _short(each.end), round(each.busy, 2), each.outcome]
            )
    starts = _starts(history)
    up = [
        [stage, name, _short(starts.get(name, 0.0)), _short(ready[name])]
        for stage, name, _ in merged
        if name in ready
    ]
    return {
        "kind": "timeline",
        "stages": stage_names(history),
        "workers": [[stage, name] for stage, name, _ in merged],
        "stretches": rows,
        "starting": up,
        "all": len(tracks),
        "seconds": _short(whole),
    }


def _starts(history: History) -> dict[str, float]:
    """Return, for workers that were there from the start of their driver, when that was; others began later."""
    found: dict[str, float] = {}
    for now, worker, loading in history.ready:
        driver = max((d for d in history.drivers if d.start <= now), key=lambda d: d.start, default=None)
        if driver is None:
            continue
        first = min((at for at, _, _ in history.ready if at >= driver.start), default=now)
        begun = driver.start if now <= driver.start + 3 * (first - driver.start) + 1.0 else now - loading
        found.setdefault(worker, max(driver.start, begun))
    return found


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


def _merged(stretches: Sequence[Stretch], gap: float) -> list[Stretch]:
    """Join neighbours between which nothing could be seen."""
    found: list[Stretch] = []
    for each in sorted(stretches, key=lambda stretch: stretch.start):
        last = found[-1] if found else None
        if last is None or each.start - last.end > gap or "lost" in (last.outcome, each.outcome):
            found.append(Stretch(each.start, each.end, each.busy, each.calls, each.outcome))
            continue
        end = max(last.end, each.end)
        work = last.busy * (last.end - last.start) + each.busy * (each.end - each.start)
        last.busy = min(1.0, work / max(end - last.start, 1e-9))
        last.end, last.calls = end, last.calls + each.calls
        last.outcome = each.outcome if last.outcome == "done" else last.outcome
    return found


def stage_names(history: History) -> list[str]:
    """Return the stages' steps in words, in order; a stage of which nothing is known has a number."""
    told = [str(stage.get("name", "")) for stage in _described(history)]
    most = max([len(told), *(stage + 1 for stage in history.stages if stage < 1000)])
    return [told[i] if i < len(told) and told[i] else f"stage {i + 1}" for i in range(most)]


def _described(history: History) -> list[Figure]:
    told = history.last.described.get("stages") if history.last else None
    return [stage for stage in told if isinstance(stage, dict)] if isinstance(told, list) else []


def stage_workers(history: History) -> list[int]:
    """Return how many workers each stage had at most."""
    names = stage_names(history)
    told = [stage.get("workers") for stage in _described(history)]
    most = [workers if isinstance(workers, int) else 1 for workers in told]
    return [most[i] if i < len(most) else 1 for i in range(len(names))]


def busy(history: History) -> list[float]:
    """Return, for each stage, the share of its workers' time in which they worked rather than waited."""
    stages = [history.stages.get(i, Workers()) for i in range(len(stage_names(history)))]
    return [busy_share(stage.seconds, stage.wait, history.capacity(i)) for i, stage in enumerate(stages)]


def work(history: History) -> Figure | None:
    """Return what each stage's workers did: shares of their time, adding up to one."""
    names, whole = stage_names(history), history.seconds
    rows = []
    for i, name in enumerate(names):
        stage = history.stages.get(i)
        if stage is None or whole <= 0:
            continue
        there = max(stage.seconds, 1e-9)
        told = stage.work + stage.wait
        scale = min(1.0, there / told) if told > 0 else 0.0  # lanes work at the same time
        capacity = max(history.capacity(i), there)
        parts = {key: scale * getattr(stage, key) / capacity for key in ("read", "steps", "write", "wait")}
        parts["lost"] = min(stage.lost, there - scale * told) / capacity
        parts["other"] = max(0.0, (there - scale * told) / capacity - parts["lost"])
        parts["idle"] = max(0.0, 1.0 - there / capacity)
        rows.append({"stage": f"{i + 1}. {name}", **{key: round(value, 4) for key, value in parts.items()}})
    return {"kind": "work", "stages": rows} if rows else None


def memory(history: History) -> Figure | None:
    """Return the memory of the run's processes over time, in bytes."""
    if len(history.memory) < 2:
        return None
    names = stage_names(history)
    step = -(-len(history.memory) // POINTS)
    points = []
    for i in range(0, len(history.memory), step):
        now, driver, blocks, stages = max(
            history.memory[i : i + step], key=lambda each: sum(each[1:3]) + sum(each[3])
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
    """Return four digits behind the point, fewer for what is big."""
    return round(number, 4 if abs(number) < 100 else 1)
