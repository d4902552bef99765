"""The parts of a page about how the run went: speed, workers, memory, what went wrong, what else to try."""

from __future__ import annotations

from typing import Any

from headrace.core.human import count, duration, per_second, percent, plural, size
from headrace.observers.report import bars, head
from headrace.observers.report import figures as draw
from headrace.observers.report.facts import Facts
from headrace.observers.report.history import History
from headrace.observers.report.html import Html, chart, section, table, tag
from headrace.observers.run_parts import bottleneck
from headrace.observers.time_spent import StageTime, stage_times

Figures = dict[str, Any]
_FEW = 0.5  # seconds: a shorter run has no charts over time
_FEW_POINTS = 12  # fewer are a table, no chart


def speed(history: History, figures: Figures) -> Html:
    """Return rows per second over time."""
    figure = draw.throughput(history)
    if figure is None or history.seconds < _FEW:
        return Html("")
    figures["throughput"] = figure
    again = any(each for *_, each in figure["points"])
    rates = [rate + twice for *_, rate, twice in figure["points"]]
    made = [
        (_span(start, end), f"{rate:,.0f}", *((f"{twice:,.0f}",) if again else ()))
        for start, end, rate, twice in figure["points"]
    ]
    words = f"At best {per_second(max(rates))}, {per_second(history.average(history.at))} on average."
    if figure["resumed"]:
        lines = plural(len(figure["resumed"]), "dashed line")
        words += f" {lines}: another driver went on from there. Time between two drivers is left out."
    if again:
        rows = sum((end - start) * twice for start, end, _, twice in figure["points"])
        words += (
            f" About {count(rows)} rows were read a second time, as the driver before had not committed them."
        )
    label = f"Bars of rows read per second over {duration(history.seconds)}. {words}"
    titles = ("Time", "Rows per second", *(("Read again",) if again else ()))
    numbers = table("Rows read per second", titles, made)
    return section("speed", "Speed", chart("throughput", "Rows per second over time", words, label, numbers))


def workers(history: History, figures: Figures) -> Html:
    """Return what stages and workers did, and which stage is the bottleneck."""
    body: list[Html] = []
    stages = stage_times(history, history.at)
    if stages:
        body.append(_stages(history, stages))
    timeline = draw.timeline(history)
    if timeline is not None and history.seconds >= _FEW / 5:
        figures["timeline"] = timeline
        body.append(_timeline(history, timeline))
    return section("workers", "Workers and stages", *body) if body else Html("")


def _stages(history: History, stages: list[StageTime]) -> Html:
    words = "What the workers of each stage did with their time, start-up included."
    slowest = bottleneck(history.busy(history.at))
    if slowest is not None:
        share = percent(history.busy(history.at)[slowest])
        words += f" Stage {slowest + 1} is the bottleneck: it was busy {share} of the time."
    inside: list[Html] = []
    for i, stage in enumerate(stages, 1):
        title = tag("h4", f"{i}. {stage.name} ", tag("span", plural(stage.workers, "worker"), class_="note"))
        inside += [title, bars.strip(stage.parts, most=12)]
    numbers = tag("details", tag("summary", "The numbers of “Where time went”"), bars.stages_table(stages))
    about = tag("figcaption", tag("h3", "Where time went"), tag("p", words))
    return tag("figure", about, *inside, numbers, class_="chart")


def _timeline(history: History, timeline: dict[str, Any]) -> Html:
    names, shown = history.stage_names, len(timeline["workers"])
    words = f"Each line is one of {plural(timeline['all'], 'worker')}; the paler, the more it waited."
    if shown < timeline["all"]:
        words = (
            f"Each line is one of {shown} workers out of {timeline['all']:,}; the paler, the more it waited."
        )
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
        titles = ("Time", *figure["names"])
        label = f"The private memory of the run's processes over time. {words}"
        body.append(chart("memory", "Memory over time", words, label, table("Memory", titles, made)))
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
            body.append(numbers)
        else:
            figures["batches"] = found
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
    """Return what else to try, beyond what the head has room for."""
    found = head.more_advice(history, facts)
    return section("more", "What else to try", head.listed(found)) if found else Html("")


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
