"""Two runs side by side: how they ended, how fast they were, what took the time, what differs in what ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.human import count, duration, per_second, percent, size
from headrace.observers.report import bars
from headrace.observers.report.facts import Facts
from headrace.observers.report.history import History
from headrace.observers.report.html import Html, join, section, table, tag
from headrace.observers.report.metrics import is_number, number
from headrace.observers.report.verdict import slow_part, verdict
from headrace.observers.time_spent import Part, all_parts, stage_times

Run = tuple[History, Facts]
_NAMES = ("First run", "Second run")


def comparison(first: Run, second: Run) -> list[Html]:
    """Return the parts of a page about two runs."""
    runs = (first, second)
    cards = [_card(name, *run) for name, run in zip(_NAMES, runs, strict=True)]
    header = tag(
        "header", tag("h1", sentence(first, second)), tag("div", *cards, class_="answers"), class_="head"
    )
    parts = [
        header,
        section("numbers", "Numbers", table("Of the runs", ("What", *_NAMES, "Change"), _numbers(runs))),
    ]
    time = _times(runs)
    if time:
        head = ("Doing", *_NAMES, "Change")
        parts.append(section("time", "Worker time", table("What the workers did, in all", head, time)))
    metrics = _metrics(runs)
    if metrics:
        parts.append(
            section(
                "metrics", "Metrics", table("The metrics of both", ("Metric", *_NAMES, "Change"), metrics)
            )
        )
    differing = _differing(runs)
    words = tag("p", "Command, inputs, models, versions and options are the same.")
    listed = (
        table("What is not the same", ("What", *_NAMES), differing, words=(0, 1, 2)) if differing else words
    )
    return [*parts, section("plan", "What ran", listed)]


def sentence(first: Run, second: Run) -> str:
    """Return which of two runs was faster, and by how much."""
    rates = [history.average(history.at) for history, _ in (first, second)]
    if min(rates) <= 0:
        return "Two runs; the speed of one of them is not known."
    different = _different(first, second)
    if different:
        speeds = " and ".join(per_second(rate) for rate in rates)
        return (
            f"The two runs did different work ({different} differ), so their speeds do not compare: {speeds}."
        )
    by = max(rates) / min(rates)
    if by < 1.02:
        return f"Both runs were as fast: {count(rates[0])} and {per_second(rates[1])}."
    which = "second" if rates[1] > rates[0] else "first"
    return f"The {which} run was {by:.3g} times as fast: {per_second(max(rates))}, not {count(min(rates))}."


def _different(*runs: Run) -> str:
    """Return what makes the work of two runs different; empty if it is the same, or not known."""
    described = [history.last.described if history.last is not None else None for history, _ in runs]
    one, two = described
    if one is None or two is None:
        return ""
    pairs = {"the steps": (one.steps, two.steps), "the inputs": (one.inputs, two.inputs)}
    return " and ".join(name for name, (a, b) in pairs.items() if a != b)


def _card(name: str, history: History, facts: Facts) -> Html:
    parts = all_parts(stage_times(history, history.at))
    return tag(
        "section",
        tag("h2", name),
        tag("p", tag("code", facts.output), f" · run {facts.run}", class_="about"),
        tag("p", verdict(history, facts), " ", slow_part(history)),
        bars.strip(parts) if parts else "",
    )


def _numbers(runs: tuple[Run, Run]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []

    def add(name: str, values: list[float], words: Any) -> None:
        if any(values):
            rows.append((name, *(words(value) for value in values), change(*values)))

    add("Time", [history.seconds for history, _ in runs], duration)
    add("Rows per second", [history.average(history.at) for history, _ in runs], count)
    add("Rows read", [float(facts.ledger.read) for _, facts in runs], lambda rows: f"{rows:,.0f}")
    add("Rows written", [float(facts.ledger.written) for _, facts in runs], lambda rows: f"{rows:,.0f}")
    add("Rows rejected", [float(facts.ledger.rejected) for _, facts in runs], lambda rows: f"{rows:,.0f}")
    add("Output", [float(facts.bytes) for _, facts in runs], size)
    add("Memory at most", [float(history.memory_peak) for history, _ in runs], size)
    add("Workers", [float(sum(history.stage_workers)) for history, _ in runs], lambda n: f"{n:,.0f}")
    add("Work done twice or lost", [_lost(history) for history, _ in runs], duration)
    return rows


def _lost(history: History) -> float:
    return sum(stage.lost for stage in history.stages.values())


def _times(runs: tuple[Run, Run]) -> list[tuple[str, ...]]:
    found: list[dict[str, Part]] = []
    for history, _ in runs:
        found.append({part.name: part for part in all_parts(stage_times(history, history.at))})
    names = sorted(
        dict.fromkeys([*found[0], *found[1]]), key=lambda name: -max(_seconds(each, name) for each in found)
    )
    rows = []
    for name in names:
        seconds = [_seconds(each, name) for each in found]
        if max(seconds) >= 0.01:
            rows.append((name, *(duration(each) for each in seconds), change(*seconds)))
    return rows


def _seconds(parts: Mapping[str, Part], name: str) -> float:
    return parts[name].seconds if name in parts else 0.0


def _metrics(runs: tuple[Run, Run]) -> list[tuple[str, ...]]:
    flat = [_flat(facts.metrics) for _, facts in runs]
    rows = []
    for name in dict.fromkeys([*flat[0], *flat[1]]):
        values = [each.get(name) for each in flat]
        numbers = [value.get("value") if isinstance(value, Mapping) else value for value in values]
        known = [float(value) for value in numbers if isinstance(value, (int, float))]
        moved = f"{known[1] - known[0]:+.3g}" if len(known) == 2 else "–"
        shown = (number(each) if name in there else "–" for each, there in zip(values, flat, strict=True))
        rows.append((name, *shown, moved))
    return rows


def _flat(metrics: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if is_number(value):
            found[f"{before}{name}"] = value
        elif isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}: ")
    return found


def _differing(runs: tuple[Run, Run]) -> list[tuple[str, ...]]:
    described = [history.last.described if history.last is not None else None for history, _ in runs]
    tables: list[dict[str, str]] = []
    for each in described:
        if each is None:
            tables.append({})
            continue
        known = {
            "command": each.command,
            "input": ", ".join(each.inputs),
            "commit": each.commit,
            "engine": each.engine,
        }
        known |= {
            "Headrace": each.version,
            "Python": each.python,
            "cores": str(each.cores),
            "plan": each.plan,
        }
        known |= {f"model of {step}": digest for step, digest in each.models}
        known |= {f"option {name}": value for name, value in each.options.items()}
        tables.append(known | each.packages)
    names = dict.fromkeys([*tables[0], *tables[1]])
    pairs = [(name, tables[0].get(name, "–"), tables[1].get(name, "–")) for name in names]
    return [(name, a or "–", b or "–") for name, a, b in pairs if a != b]


def change(before: float, after: float) -> str:
    """Return by how much a number changed.

    >>> change(10.0, 12.5), change(4.0, 4.0), change(0.0, 3.0), change(999_910, 1_000_000)
    ('+25 %', 'same', '–', 'less than +1 %')
    """
    if before == after:
        return "same"
    if not before:
        return "–"
    share = after / before - 1
    sign = "+" if share > 0 else "−"
    return f"{sign}{percent(abs(share))}" if abs(share) >= 0.005 else f"less than {sign}1 %"


def title(first: Run, second: Run) -> str:
    """Return the page's name."""
    return f"{sentence(first, second)} – {first[1].output}, {second[1].output}"


def body(parts: list[Html]) -> Html:
    """Return the parts as the main part of a page."""
    return tag("main", join(parts), id="main")
