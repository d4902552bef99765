"""The parts of a page about how the run went: speed, workers, memory, what went wrong, what to try, what ran."""

from __future__ import annotations

import time
from typing import Any

from headrace.core.human import count, duration, percent, plural, size
from headrace.observers.report import figures as draw
from headrace.observers.report.advice import advice, slowest_stage
from headrace.observers.report.facts import Facts
from headrace.observers.report.history import History
from headrace.observers.report.html import Html, chart, pairs, section, table, tag
from headrace.observers.run_state import Driver

Figures = dict[str, Any]
_FEW = 0.5  # seconds: a shorter run has no charts over time


def speed(history: History, figures: Figures) -> Html:
    """Return rows per second over time."""
    figure = draw.throughput(history)
    if figure is None or history.seconds < _FEW:
        return Html("")
    figures["throughput"] = figure
    rates = [rate for *_, rate in figure["points"]]
    made = [(_span(start, end), f"{rate:,.0f}") for start, end, rate in figure["points"]]
    words = f"At best {count(max(rates))} rows/s, {count(history.average(history.at))} rows/s on average."
    if figure["resumed"]:
        words += f" {plural(len(figure['resumed']), 'dashed line')}: another driver went on from there."
    label = f"Bars of rows read per second over {duration(history.seconds)}. {words}"
    numbers = table("Rows read per second", ("Time", "Rows per second"), made)
    return section("speed", "Speed", chart("throughput", "Rows per second over time", words, label, numbers))


def workers(history: History, figures: Figures) -> Html:
    """Return what stages and workers did, and which stage is the bottleneck."""
    body: list[Html] = []
    names, shares, numbers = history.stage_names, history.busy(history.at), history.stage_workers
    slowest = slowest_stage(history)
    work = draw.work(history)
    if work is not None:
        figures["work"] = work
        made = [
            (each["stage"], numbers[i], *(percent(each[key]) for key in _DOING))
            for i, each in enumerate(work["stages"])
        ]
        words = "What the workers of each stage did with their time, start-up included."
        if slowest is not None:
            words += (
                f" Stage {slowest + 1} is the bottleneck: it was busy {percent(shares[slowest])} of the time."
            )
        head = ("Stage", "Workers", *(title for title in _DOING.values()))
        label = f"One bar for each stage. {words} The numbers are in the table below."
        body.append(chart("work", "Where time went", words, label, table("Shares of time", head, made)))
    timeline = draw.timeline(history)
    if timeline is not None and history.seconds >= _FEW / 5:
        figures["timeline"] = timeline
        shown = len(timeline["workers"])
        words = f"Each line is one of {plural(timeline['all'], 'worker')}; the paler, the more it waited."
        if shown < timeline["all"]:
            words = f"Each line is one of {shown} workers out of {timeline['all']:,}; the paler, the more it waited."
        label = f"When each worker was at work. {words}"
        made = [
            (
                f"{name}",
                f"{stage + 1}. {names[stage] if stage < len(names) else ''}",
                *_track(timeline, stage, name),
            )
            for stage, name in timeline["workers"]
        ]
        head = ("Worker", "Stage", "From", "To", "Busy")
        numbers_ = table("When workers were at work", head, made, words=(0, 1))
        body.append(chart("timeline", "Workers over time", words, label, numbers_))
    return section("workers", "Workers and stages", *body) if body else Html("")


_DOING = {
    "read": "Read",
    "steps": "Steps",
    "write": "Write",
    "wait": "Wait",
    "lost": "Lost",
    "other": "Other",
    "idle": "Idle",
}


def _track(timeline: dict[str, Any], stage: int, name: str) -> tuple[str, str, str]:
    mine = [each for each in timeline["stretches"] if each[0] == stage and each[1] == name]
    if not mine:  # its driver was killed before a first call had ended
        return "", "", percent(0)
    start, end = min(each[2] for each in mine), max(each[3] for each in mine)
    busy = sum((each[3] - each[2]) * each[4] for each in mine) / max(end - start, 1e-9)
    return _at(start), _at(end), percent(min(1.0, busy))


def memory(history: History, figures: Figures) -> Html:
    """Return what memory was taken, and which batch sizes were found."""
    body: list[Html] = []
    figure = draw.memory(history)
    if figure is not None and history.seconds >= _FEW:
        figures["memory"] = figure
        most = max(sum(point[1:]) for point in figure["points"])
        limit = figure["limit"]
        words = f"At most {size(most)}" + (
            f", {percent(most / limit)} of the {size(limit)} allowed." if limit else "."
        )
        made = [(_at(now), *map(size, taken)) for now, *taken in figure["points"]]
        head = ("Time", *figure["names"])
        label = f"The private memory of the run's processes over time. {words}"
        body.append(chart("memory", "Memory over time", words, label, table("Memory", head, made)))
    found = draw.batches(history)
    if found is not None:
        figures["batches"] = found
        words = "Rows at a time that workers found to be fastest (○), or that are left since more did not fit (×)."
        made = [
            (_at(now), step, what, f"{rows:,}", f"{rate:,}" if rate else "–")
            for now, step, what, rows, rate in found["points"]
        ]
        head = ("Time", "Step", "What", "Rows", "Rows per second in the step")
        numbers = table("Batch sizes", head, made, words=(0, 1, 2))
        body.append(chart("batches", "Batch sizes over time", words, f"Points. {words}", numbers))
    return section("memory", "Memory and batches", *body) if body else Html("")


def trouble(history: History) -> Html:
    """Return retries, lost workers and the like."""
    counts = {what: number for what, number in history.counts.items() if number}
    if not counts:
        return Html("")
    listed = ", ".join(f"{what}: {number:,}" for what, number in sorted(counts.items()))
    words = f"{listed[0].upper()}{listed[1:]}. Work that was lost was done again, or will be."
    made = [(_at(now), what, why) for now, what, why in history.incidents]
    whole = table("What happened", ("Time", "What", "Why"), made, words=(0, 1, 2), all_=sum(counts.values()))
    return section("trouble", "What happened on the way", tag("p", words), whole)


def next_steps(history: History, facts: Facts) -> Html:
    """Return what to try."""
    found = advice(history, facts.ledger)
    if not found:
        if facts.status != "complete":
            return Html("")
        words = "Nothing in the numbers of this run asks for a change."
        return section("next", "What to try next", tag("p", words))
    items = [tag("li", tag("strong", each.title), tag("p", each.why)) for each in found]
    return section("next", "What to try next", tag("ol", *items, class_="advice"))


def what_ran(history: History) -> Html:
    """Return plan, versions, options and drivers."""
    last = history.last
    if last is None:
        return Html("")
    body: list[Html] = []
    if (described := last.described) is not None:
        if described.plan:
            body += [tag("h3", "Plan"), tag("pre", described.plan, tabindex="0", aria_label="The plan")]
        body.append(tag("h3", "Options that differ from the defaults"))
        options = described.options.items()
        body.append(
            pairs((tag("code", name), value) for name, value in options) if options else tag("p", "None.")
        )
    body.append(tag("h3", "Drivers"))
    made = [(str(i), *_driver(driver)) for i, driver in enumerate(history.drivers, 1)]
    head = ("Driver", "Began (UTC)", "Took", "Ended", "Machine", "Headrace, Python", "System")
    body.append(table("Processes that worked on this run", head, made, words=range(len(head))))
    return section("plan", "What ran", *body)


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
    return (
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(max(0.0, min(driver.began, 4e9)))),
        duration(driver.seconds),
        end,
        machine,
        versions,
        system,
    )


def _at(now: float) -> str:
    """Return a moment of the run.

    >>> _at(4.25), _at(75.0), _at(3725.0)
    ('4.25 s', '1:15', '1:02:05')
    """
    if now < 59.995:
        return f"{now:.2f} s"
    minutes, seconds = divmod(round(now), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _span(start: float, end: float) -> str:
    return f"{_at(start)} – {_at(end)}"
