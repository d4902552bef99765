"""The parts of a page about how the run went: speed, workers, memory, what went wrong, what ran."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from headrace.annex.report.advice import resume_command
from headrace.annex.report.facts import Facts, History, WorkerSpan
from headrace.annex.report.head import moment, strip
from headrace.annex.report.template import Value, chart, plain, table
from headrace.core.human import clock, count, duration, per_second, percent, plural, size
from headrace.core.terminal import cut
from headrace.observers.pace import WINDOW, done_by
from headrace.observers.run_parts import Driver
from headrace.observers.summary import StageTime, all_parts, stage_times

# ----------------------------------------------------------------
# The data of each chart: plain values, and no more points than can be seen.

POINTS = 300  # of a series
TRACKS = 120  # workers in the timeline
SPANS = 6_000  # in the timeline
GRAINS = 500  # parts of the whole time: a shorter gap is not drawn

Figure = dict[str, Any]


def throughput_figure(history: History) -> Figure | None:
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


def timeline_figure(history: History) -> Figure | None:
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


def memory_figure(history: History) -> Figure | None:
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


def batches_figure(history: History) -> Figure | None:
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


_FEW = 0.5  # seconds: a shorter run has no charts over time
_FEW_POINTS = 12  # fewer are a table, no chart
_LEAST = 0.001  # of the time of a stage: a smaller part is not in the table


def speed(history: History, figures: Value) -> Value | None:
    """Return rows per second over time."""
    figure = throughput_figure(history)
    if figure is None or history.seconds < _FEW:
        return None
    figures["throughput"] = figure
    points = figure["points"]
    again = any(twice for *_, twice in points)
    made = [
        (f"{_at(start)} – {_at(end)}", f"{rate:,.0f}", *((f"{twice:,.0f}",) if again else ()))
        for start, end, rate, twice in points
    ]
    best = per_second(max(rate + twice for *_, rate, twice in points))
    average = history.average(history.at)
    words = f"At best {best}" + (f", {per_second(average)} on average." if average else ".")
    if figure["resumed"]:
        lines = plural(len(figure["resumed"]), "dashed line")
        words += f" {lines}: another driver went on from there. Time between two drivers is left out."
    if again:
        rows = count(sum((end - start) * twice for start, end, _, twice in points))
        words += f" About {rows} rows were read a second time, as the run was ended before they were safe."
    label = f"Bars of rows read per second over {duration(history.seconds)}. {words}"
    titles = ("Time", "Rows per second", *(("Read again",) if again else ()))
    numbers = table("Rows read per second", titles, made)
    return plain(charts=[chart("throughput", "Rows per second over time", words, label, numbers)])


def workers(history: History, figures: Value, *, under_way: bool = False) -> Value | None:
    """Return what stages and workers did, and which stage is the bottleneck; ``under_way``: and what they do now."""
    stages = stage_times(history, history.at)
    timeline = timeline_figure(history) if history.seconds >= _FEW / 5 else None
    if timeline is not None:
        figures["timeline"] = timeline
    if not stages and timeline is None and not history.ready:
        return None
    words = "What the workers of each stage did with their time, start-up included."
    if (slowest := history.bottleneck) is not None:
        share = percent(history.busy(history.at)[slowest])
        words += f" Stage {slowest + 1} is the bottleneck: it was busy {share} of the time."
    return {
        "words": words,
        "stages": [
            {
                "name": f"{i}. {stage.name}",
                "workers": plural(stage.workers, "worker"),
                "time": strip(stage.parts, all_=all_parts(stages), most=12),
            }
            for i, stage in enumerate(stages, 1)
        ],
        "table": _stages_table(stages),
        "now": _workers_now(history) if under_way and history.ready else None,
        "chart": _timeline(history, timeline) if timeline is not None else None,
    }


def _workers_now(history: History) -> Value:
    """Return what each worker does."""
    rows, now = [], history.seconds
    for worker, stage, ready, spans in history.workers_now():
        last = max(ready, spans[-1].end) if spans else ready
        works, since = worker in history.working, max(0.0, now - WINDOW, ready)
        doing = (
            "at work" if works else "waits" if not spans or spans[-1].outcome == "done" else spans[-1].outcome
        )
        busy = sum(each.busy * max(0.0, each.end - max(each.start, since)) for each in spans)
        busy += now - max(last, since) if works else 0.0
        share = min(1.0, busy / max(now - since, 1e-9))
        calls = sum(each.calls for each in spans)
        rows.append(
            (f"{worker}", f"{stage + 1}", doing, duration(max(0.0, now - last)), percent(share), f"{calls:,}")
        )
    head = ("Worker", "Stage", "Doing", "For", "Busy of late", "Calls")
    return table("Workers now", head, rows, words=(0, 1, 2))


def _stages_table(stages: Sequence[StageTime]) -> Value:
    rows = [
        (f"{i}. {stage.name}", part.name, duration(part.seconds), percent(part.share, 1))
        for i, stage in enumerate(stages, 1)
        for part in sorted(stage.parts, key=lambda part: -part.share)
        if part.share >= _LEAST
    ]
    head = ("Stage", "Doing", "Worker time", "Share")
    return table("What the workers of each stage did", head, rows, words=(0, 1))


def _timeline(history: History, timeline: Value) -> Value:
    names, shown = history.stage_names, len(timeline["workers"])
    few = f"{shown} workers out of {timeline['all']:,}"
    all_ = few if shown < timeline["all"] else plural(timeline["all"], "worker")
    words = f"{all_}, a line for each; the paler, the more it waited."
    if len(history.drivers) > 1:
        words += " 2.0 is worker 0 of driver 2."
    label = f"When each worker was at work. {words}"
    made = [
        (name, f"{stage + 1}. {names[stage] if stage < len(names) else ''}", *_track(timeline, stage, name))
        for stage, name, *_ in timeline["workers"]
    ]
    titles = ("Worker", "Stage", "From", "To", "Busy")
    numbers = table("When workers were at work", titles, made, words=(0, 1))
    return chart("timeline", "Workers over time", words, label, numbers)


def _track(timeline: Value, stage: int, name: str) -> tuple[str, str, str]:
    mine = [each for each in timeline["stretches"] if each[0] == stage and each[1] == name]
    if not mine:  # its driver was killed before a first call had ended
        return "", "", percent(0)
    start, end = min(each[2] for each in mine), max(each[3] for each in mine)
    busy = sum((each[3] - each[2]) * each[4] for each in mine) / max(end - start, 1e-9)
    return _at(start), _at(end), percent(min(1.0, busy))


def memory(history: History, figures: Value) -> Value | None:
    """Return what memory was taken, and which batch sizes were found."""
    charts, tables = list[Value](), list[Value]()
    figure = memory_figure(history)
    if figure is not None and history.seconds >= _FEW:
        figures["memory"] = figure
        most = max(sum(point[1:]) for point in figure["points"])
        limit = figure["limit"]
        of_limit = f", {percent(most / limit)} of the {size(limit)} allowed" if limit else ""
        words = f"At most {size(most)}{of_limit}."
        made = [(_at(now), *map(size, taken)) for now, *taken in figure["points"]]
        label = f"The private memory of the run's processes over time. {words}"
        numbers = table("Memory", ("Time", *figure["names"]), made)
        charts.append(chart("memory", "Memory over time", words, label, numbers))
    found = batches_figure(history)
    if found is not None:
        words = "Rows at a time that workers found to be fastest (○), or that are left since more did not fit (×)."
        made = [
            (_at(now), step, what, f"{rows:,}", f"{rate:,}" if rate else "–")
            for now, step, what, rows, rate in found["points"]
        ]
        titles = ("Time", "Step", "What", "Rows", "Rows per second in the step")
        numbers = table("Batch sizes that workers found", titles, made, words=(0, 1, 2))
        if len(made) < _FEW_POINTS:
            tables.append(numbers)
        else:
            figures["batches"] = found
            charts.append(chart("batches", "Batch sizes over time", words, f"Points. {words}", numbers))
    return plain(charts=charts, tables=tables) if charts or tables else None


def trouble(history: History) -> Value | None:
    """Return retries, lost workers and the like."""
    counts = {what: number for what, number in history.counts.items() if number}
    if not counts:
        return None
    listed = ", ".join(f"{what}: {number:,}" for what, number in sorted(counts.items()))
    words = f"{listed[0].upper()}{listed[1:]}. Work that was lost was done again, or will be."
    made = [(_at(now), what, why) for now, what, why in history.incidents]
    whole = table("What happened", ("Time", "What", "Why"), made, words=(0, 1, 2), all_=sum(counts.values()))
    return plain(words, tables=[whole])


def _at(now: float) -> str:
    """Return a moment of the run.

    >>> _at(4.25), _at(75.0), _at(3725.0)
    ('4.25 s', '1:15', '1:02:05')
    """
    return f"{now:.2f} s" if now < 59.995 else clock(round(now))


# ------------------------------------------------------------ what ran


def plan(history: History, facts: Facts) -> Value | None:
    """Return command, inputs, models, versions, options, plan, and every driver."""
    if history.last is None:
        return None
    head = (
        "Driver",
        "Began (UTC)",
        "Took",
        "Ended",
        "Rows before it",
        "Machine",
        "Headrace, Python",
        "System",
    )
    made = [(i, *_driver(driver)) for i, driver in enumerate(history.drivers, 1)]
    caption = "Processes that worked on this run"
    drivers = table(caption, head, made, words=(0, 1, 2, 3, 5, 6, 7))
    if (about := history.described) is None:
        return {"known": False, "drivers": drivers}
    resume = resume_command(history, facts)
    typed = [("Command", about.command), ("To go on", resume if resume != about.command else "")]
    code = [(f"Model of {step}" if step else "Model", digest) for step, digest in about.models]
    versions = [("Headrace", about.version), ("Python", about.python), *about.packages.items()]
    listed = ", ".join(f"{name} {version}" for name, version in versions if version)
    files = f"{plural(about.input_files, 'file')}, {about.source or 'unknown'}"
    return {
        "known": True,
        "typed": [each for each in typed if each[1]],
        "folder": about.folder,
        "inputs": about.inputs,
        "files": files if about.inputs or about.input_files else "",
        "code": code,
        "words": [*([("Versions", listed)] if listed else []), ("Engine", about.engine or "–")],
        "options": list(about.options.items()),
        "plan": about.plan,
        "drivers": drivers,
    }


def machines(history: History) -> Value | None:
    """Return what each machine of a fleet did."""
    if not history.machines:
        return None
    head = "Machine", "Host", "Parts", "Rows", "Written", "Rejected", "Took", "Rows per second"
    made = [
        (
            each.name,
            each.host,
            *(f"{number:,}" for number in (each.shards, each.rows, each.written, each.rejected)),
            duration(each.seconds) if each.seconds else "others did the rest",
            f"{each.speed:,.0f}" if each.seconds else "–",
        )
        for each in history.machines
    ]
    return plain(tables=[table("Machines that worked on this output", head, made, words=(0, 1, 6))])


def _driver(driver: Driver) -> tuple[Any, ...]:
    described, error = driver.described, driver.error
    end = "killed, or at work" if error is None else (cut(error.strip().split("\n")[0], 80) or "complete")
    machine, versions, system = "–", "–, –", "–"
    if described is not None:
        parts = [described.host or "–"]
        parts += [plural(described.cores, "core")] if described.cores > 0 else []
        parts += [f"{size(described.memory_limit)} allowed"] if described.memory_limit > 0 else []
        machine = ", ".join(parts)
        versions = f"{described.version or '–'}, {described.python or '–'}"
        system = described.system or "–"
    before = driver.started.rows_done if driver.started is not None else 0
    return moment(driver.began), duration(driver.seconds), end, f"{before:,}", machine, versions, system
