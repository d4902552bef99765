"""The parts of a page about how the run went: speed, workers, memory, what went wrong, what ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.annex.report import figures as draw
from headrace.annex.report.advice import resume_command
from headrace.annex.report.facts import Facts, History
from headrace.annex.report.head import moment, strip
from headrace.annex.report.values import Value, chart, plain, table
from headrace.core.human import clock, count, duration, per_second, percent, plural, size
from headrace.observers.pace import WINDOW
from headrace.observers.run_parts import Driver
from headrace.observers.time_spent import StageTime, stage_times

_FEW = 0.5  # seconds: a shorter run has no charts over time
_FEW_POINTS = 12  # fewer are a table, no chart
_LEAST = 0.001  # of the time of a stage: a smaller part is not in the table


def speed(history: History, figures: Value) -> Value | None:
    """Return rows per second over time."""
    figure = draw.throughput(history)
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
    words = f"At best {best}, {per_second(history.average(history.at))} on average."
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
    timeline = draw.timeline(history) if history.seconds >= _FEW / 5 else None
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
                "time": strip(stage.parts, most=12),
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
    words = f"Each line is one of {all_}; the paler, the more it waited."
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
    figure = draw.memory(history)
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
    found = draw.batches(history)
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
    code += [("Git commit", about.commit)] if about.commit else []
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


def _driver(driver: Driver) -> tuple[Any, ...]:
    described, error = driver.described, driver.error
    end = "killed, or at work" if error is None else (error.strip().split("\n")[0][:80] or "complete")
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
