"""The pages: about a run, about two runs side by side, and about rows that were compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from headrace.annex.report.facts import Facts, History
from headrace.annex.report.head import head, more_advice, slow_part, strip, verdict
from headrace.annex.report.results import (
    SQUARE,
    answers,
    failed,
    is_number,
    measured,
    number,
    predictions,
    required,
    rich,
    rows,
    runs,
    shown_metrics,
)
from headrace.annex.report.running import machines, memory, plan, speed, trouble, workers
from headrace.annex.report.template import Value, made_page, plain, table
from headrace.core.events import RunDescribed
from headrace.core.human import count, duration, per_second, percent, row_text, size
from headrace.core.tables import Table
from headrace.observers.summary import all_parts, stage_times

_FIGURES_BYTES = 1_500_000


def page(
    history: History,
    facts: Facts,
    *,
    live: Value | None = None,
    written: Table | None = None,
) -> bytes:
    """Return the whole report, as UTF-8.

    ``live``: the page is served while the run goes on, with what one may ask of it. ``written``: rows that were
    written.
    """
    figures: Value = {}
    sections = {
        "required": required(facts),
        "metrics": measured(history, facts, figures),
        "rows": rows(facts),
        "predictions": predictions(written),
        "answers": answers(history, facts),
        "speed": speed(history, figures),
        "workers": workers(history, figures, under_way=facts.status == "under way"),
        "machines": machines(history),
        "memory": memory(history, figures),
        "failed": failed(facts),
        "trouble": trouble(history),
        "more": more_advice(history, facts),
        "runs": runs(facts),
        "plan": plan(history, facts),
    }
    title = f"{verdict(history, facts)} – {facts.output}"
    value = {
        "title": title,
        "head": head(history, facts),
        "sections": list(sections.items()),
        "live": live,
    }
    if len(repr(figures)) > _FIGURES_BYTES:  # as the parts are bounded, never
        figures = {}  # without charts the page still opens
    return made_page({**value, "figures": figures}, history.unread)


# ----------------------------------------------------------------
# Two runs side by side: how they ended, how fast they were, what took the time, what differs in what ran.

Run = tuple[History, Facts]
_NAMES = ("First run", "Second run")


def comparison_page(first: Run, second: Run) -> bytes:
    """Return a page about two runs side by side, as UTF-8."""
    return made_page({**comparison(first, second), "figures": {}}, first[0].unread)


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
    pairs = {
        "the steps": (one.steps, two.steps),
        "the models": (one.models, two.models),
        "the inputs": (one.inputs, two.inputs),
    }
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
    found = [flat(shown_metrics(*run)) for run in runs]
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
    known = {"command": described.command, "input": ", ".join(described.inputs)}
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


# ----------------------------------------------------------------
# The page about rows that were compared: how each column differs, and the rows that changed most.

_ROWS = 100  # of a table with values
_CHARS = 2_000  # of a text
_WORDS = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


def differences_page(
    found: dict[str, Any],
    sentence: str,
    head: tuple[str, ...],
    lines: list[tuple[str, ...]],
    judged: list[str],
) -> bytes:
    """Return the page about a comparison, whose plain values are ``found``, as UTF-8.

    ``head`` and ``lines`` are a table with a line for each column; ``judged`` says how good both are by a label.
    """
    figures: Value = {}
    drawn: dict[str, Any] = {"tiles": [], "square": [], "wide": [], "words": ""}
    for name, each in found["columns"].items():
        if each["changed"] and each["chart"] is not None:
            square = each["chart"].get("kind") in SQUARE
            drawn["square" if square else "wide"].append(
                rich(name, each, each["note"], each["chart"], figures)
            )
    sections = {
        "columns": plain(
            " ".join(f"{each}." for each in judged), tables=[table("Of the columns", head, lines)]
        ),
        "metrics": drawn if figures else None,
        "worst": _worst(found["columns"], found["on"]),
        "lone": _lone(found["lone"]),
    }
    sides = [
        {
            "name": side.capitalize(),
            "output": found[side],
            "run": "",
            "words": _left_out(found["left_out"][side]),
            "time": None,
        }
        for side in ("old", "new")
    ]
    value = {
        "title": f"{sentence} – {found['old']}, {found['new']}",
        "sentence": sentence,
        "runs_compared": sides,
        "sections": list(sections.items()),
    }
    return made_page({**value, "figures": figures})


def _left_out(names: list[str]) -> str:
    return f"Columns that only it has: {', '.join(names)}." if names else ""


def _worst(columns: dict[str, Any], keys: list[str]) -> Value | None:
    head = (", ".join(keys) or "Row", "Old", "New", "Its other columns", "Difference")
    tables = []
    for name, each in columns.items():
        rows = each["worst"][:_ROWS]
        numbers = all(isinstance(row[side], (int, float)) for row in rows for side in ("old", "new"))
        words = [*([0] if keys else []), *([] if numbers else [1, 2]), 3]
        shown = len(head) if any(row.get("difference") is not None for row in rows) else len(head) - 1
        if rows:
            lines = [_cells(row, keys)[:shown] for row in rows]
            tables.append(table(name, head[:shown], lines, words=words))
    return plain(tables=tables) if tables else None


def _cells(row: dict[str, Any], keys: list[str]) -> tuple[Any, ...]:
    others = dict(row["inputs"])
    known = ", ".join(_short(others.pop(key)) for key in keys if key in others)
    which = known if keys else f"{row['row']:,}"
    by = number(row["difference"]) if row.get("difference") is not None else "–"
    old, new = row["old"], row["new"]
    beside = (
        _side_by_side(old, new) if isinstance(old, str) and isinstance(new, str) else map(_short, (old, new))
    )
    return which, *beside, _values(others), by


def _side_by_side(old: str, new: str) -> tuple[Value, Value]:
    """Return two texts as cells, in which the words are marked that the other has not.

    >>> [cell["pieces"][1]["text"] for cell in _side_by_side("a red wheel", "a big wheel")]
    [' red', ' big']
    """
    words = [_WORDS.findall(text[:_CHARS]) for text in (old, new)]
    pieces: tuple[list[Value], list[Value]] = ([], [])
    for kind, *ends in SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes():
        for side, start, stop in ((0, *ends[:2]), (1, *ends[2:])):
            if stop > start:
                pieces[side].append({"text": "".join(words[side][start:stop]), "changed": kind != "equal"})
    for side, text in enumerate((old, new)):
        if len(text) > _CHARS:
            pieces[side].append({"text": f"… ({len(text):,} characters)", "changed": False})
        if not text:
            pieces[side].append({"text": "(empty)", "changed": True})
    return {"pieces": pieces[0]}, {"pieces": pieces[1]}


def _lone(rows: dict[str, Any]) -> Value | None:
    tables = [
        table(f"Only in {side}", ("Row",), [(_values(row),) for row in some[:_ROWS]])
        for side, some in rows.items()
        if some
    ]
    return plain("Some of them:", tables=tables) if tables else None


def _values(row: Mapping[str, Any]) -> str:
    """Return the values of a row, each behind the name of its column."""
    return "; ".join(f"{name}: {_short(value)}" for name, value in row.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return row_text({"": value})[5:-1]
