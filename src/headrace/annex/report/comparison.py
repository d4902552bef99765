"""Two runs side by side: how they ended, how fast they were, what took the time, what differs in what ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from headrace.annex.report.facts import Facts, History
from headrace.annex.report.head import slow_part, strip, verdict
from headrace.annex.report.metrics import is_number, number
from headrace.annex.report.values import Value, plain, table
from headrace.core.events import RunDescribed
from headrace.core.human import count, duration, per_second, percent, size
from headrace.core.tables import Table
from headrace.observers.time_spent import all_parts, stage_times

Run = tuple[History, Facts]
_NAMES = ("First run", "Second run")


def comparison(first: Run, second: Run) -> Value:
    """Return the parts of a page about two runs."""
    runs = (first, second)
    differing = _differing(runs)
    same = "" if differing else "Command, inputs, models, versions and options are the same."
    listed = (
        [table("What is not the same", ("What", *_NAMES), differing, words=(0, 1, 2))] if differing else []
    )
    tables = {
        "numbers": _changes("Of the runs", "What", _numbers(runs)),
        "time": _changes("What the workers did, in all", "Doing", _times(runs)),
        "metrics": _changes("The metrics of both", "Metric", _metrics(runs)),
        "plan": plain(same, tables=listed),
    }
    said = sentence(first, second)
    return {
        "title": f"{said} – {first[1].output}, {second[1].output}",
        "sentence": said,
        "runs_compared": [_card(name, *run) for name, run in zip(_NAMES, runs, strict=True)],
        "sections": list(tables.items()),
    }


def in_words(first: Run, second: Run, columns: int) -> str:
    """Return the comparison as a terminal shows it, in so many columns."""
    found = comparison(first, second)
    parts = [found["sentence"]]
    for each in (each for _, section in found["sections"] if section for each in section["tables"]):
        numbers = {i for i, is_number in enumerate(each["numbers"]) if is_number}
        rows = [line for row in each["rows"] for line in _differing_lines(row)]
        parts.append(f"{each['caption']}\n{Table(each['head'], rows, numbers=numbers).text(columns)}")
    return "\n\n".join(parts)


def _differing_lines(row: Sequence[str]) -> list[Sequence[str]]:
    """Return a row; of a plan, which has many lines, those that are not the same."""
    name, one, two, *_ = row
    if not any("\n" in cell for cell in row):
        return [row]
    pairs = zip_longest(one.splitlines(), two.splitlines(), fillvalue="")
    return [(name, a, b) for a, b in pairs if a != b]


def _changes(caption: str, first: str, rows: Sequence[tuple[str, ...]]) -> Value | None:
    return plain(tables=[table(caption, (first, *_NAMES, "Change"), rows)]) if rows else None


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
    one, two = (history.described for history, _ in runs)
    if one is None or two is None:
        return ""
    pairs = {"the steps": (one.steps, two.steps), "the inputs": (one.inputs, two.inputs)}
    return " and ".join(name for name, (a, b) in pairs.items() if a != b)


def _card(name: str, history: History, facts: Facts) -> Value:
    parts = all_parts(stage_times(history, history.at))
    return {
        "name": name,
        "output": facts.output,
        "run": facts.run,
        "words": f"{verdict(history, facts)} {slow_part(history)}",
        "time": strip(parts) if parts else None,
    }


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
    add("Work done twice or lost", [history.lost for history, _ in runs], duration)
    return rows


def _times(runs: tuple[Run, Run]) -> list[tuple[str, ...]]:
    spent = [
        {part.name: part.seconds for part in all_parts(stage_times(history, history.at))}
        for history, _ in runs
    ]
    both = {name: [each.get(name, 0.0) for each in spent] for name in spent[0] | spent[1]}
    return [
        (name, *map(duration, seconds), change(*seconds))
        for name, seconds in sorted(both.items(), key=lambda each: -max(each[1]))
        if max(seconds) >= 0.01
    ]


def _metrics(runs: tuple[Run, Run]) -> list[tuple[str, ...]]:
    found = [flat(facts.metrics) for _, facts in runs]
    rows = []
    for name in dict.fromkeys([*found[0], *found[1]]):
        values = [each.get(name) for each in found]
        numbers = [value.get("value") if isinstance(value, Mapping) else value for value in values]
        known = [float(value) for value in numbers if isinstance(value, (int, float))]
        moved = f"{known[1] - known[0]:+.3g}" if len(known) == 2 else "–"
        shown = (number(each) if name in there else "–" for each, there in zip(values, found, strict=True))
        rows.append((name, *shown, moved))
    return rows


def flat(metrics: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the numbers and estimates among metrics, those inside others as ``name: field``."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if is_number(value):
            found[f"{before}{name}"] = value
        elif isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}: ")
    return found


def _differing(runs: tuple[Run, Run]) -> list[tuple[str, ...]]:
    one, two = (_known(history.described) for history, _ in runs)
    pairs = [(name, one.get(name) or "–", two.get(name) or "–") for name in one | two]
    return [(name, a, b) for name, a, b in pairs if a != b]


def _known(described: RunDescribed | None) -> dict[str, str]:
    """Return what is known of how a run was started, by name."""
    if described is None:
        return {}
    known = {"command": described.command, "input": ", ".join(described.inputs), "commit": described.commit}
    known |= {"engine": described.engine, "Headrace": described.version, "Python": described.python}
    known |= {"cores": str(described.cores), "plan": described.plan}
    known |= {f"model of {step}": digest for step, digest in described.models}
    known |= {f"option {name}": value for name, value in described.options.items()}
    return known | dict(described.packages)


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
