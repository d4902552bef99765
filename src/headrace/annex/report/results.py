"""The parts of a page about results: metrics, where each row went, what failed, what models answered, the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from headrace.annex.report.facts import Facts, History
from headrace.annex.report.template import Value, chart, plain, share_bar, table, table_of, tile
from headrace.core.answered import Answered
from headrace.core.human import duration, percent, plural, size
from headrace.core.tables import Table
from headrace.observers.summary import terms
from headrace.observers.words import answer_lines

_MOST = 24  # charts
_TILES = 6  # fields of a metric that are tiles; more of them are a table
_ROWS, _COLUMNS = 50, 20
_ESTIMATE = {"value", "low", "high"}

_DRAWN = ("edges", "counts", "below", "above", "classes", "chart", "worst", "types", "judged", "note")
SQUARE = ("roc", "precision-recall", "calibration", "confusion")
_KINDS = {  # how a title ends, and what is drawn
    "roc": (
        "ROC curve",
        "ROC curve: positive rows found over negative rows taken for positive, at each threshold",
    ),
    "precision-recall": ("precision over recall", "Precision over recall, at each threshold"),
    "calibration": (
        "calibration",
        "Calibration: how often rows with a predicted probability are positive",
    ),
    "confusion": ("confusion matrix", "Confusion matrix: labels in rows, predictions in columns"),
    "histogram": ("histogram", "How many rows have a value in each interval"),
    "bars": ("one bar for each value", "One bar for each value"),
    "groups": ("one chart for each value", "One chart for each value"),
}


def shown_metrics(history: History, facts: Facts) -> Mapping[str, Any]:
    """Return the metrics of a page: of a run with ``show_data=False`` the numbers: others may name values."""
    described = history.described
    if facts.values or described is None or described.options.get("show_data") != "False":
        return facts.metrics
    return {name: value for name, value in facts.metrics.items() if is_number(value)}


def measured(history: History, facts: Facts, figures: Value) -> Value | None:
    """Return every metric: a number, a table, a chart."""
    shown, words = shown_metrics(history, facts), list[str]()
    if facts.measured:
        words.append(f"So far, of {facts.measured:,} of {facts.shards[1]:,} parts of the input.")
    if hidden := [name for name in facts.metrics if name not in shown]:
        words.append(f"Hidden, as they may name values of rows: {', '.join(hidden)}.")
    found: dict[str, Any] = {"tiles": [], "square": [], "wide": [], "words": " ".join(words)}
    for name, value in shown.items():
        note = facts.notes.get(name, "")
        for field, each in _headline(name, value):
            found["tiles"].append(tile(field, number(each), _between(each), note))
        drawn = facts.charts.get(name)
        drawn = drawn if isinstance(drawn, dict) and not (_is_flat(value) and _has_few(drawn)) else None
        if drawn is not None or not _is_flat(value):  # else the tiles have all of it
            made = rich(name, value, note, drawn, figures)
            square = drawn is not None and drawn.get("kind") in SQUARE
            found["square" if square else "wide"].append(made)
    return found if facts.metrics else None


def _is_flat(value: Any) -> bool:
    """Say whether a result is one number, or a few by name: then it needs no table."""
    if is_number(value):
        return True
    return isinstance(value, Mapping) and 0 < len(value) <= _TILES and all(map(is_number, value.values()))


def _has_few(drawn: Value) -> bool:
    """Say whether a chart would have no more than a few bars, and all of them."""
    if drawn.get("kind") != "bars" or drawn.get("left_out"):
        return False
    labels = drawn.get("labels")
    return isinstance(labels, list) and len(labels) <= _TILES


def _headline(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return the numbers of a metric that stand as tiles: itself, or its fields if they are few."""
    if is_number(value):
        return [(name, value)]
    if isinstance(value, Mapping) and _is_flat(value):
        return [(f"{name}: {field}", each) for field, each in value.items()]
    if isinstance(value, Mapping) and "share" in value and "psi" in value:  # of one column against another
        return [
            (f"{name}: {field}", value[field]) for field in ("share", "psi", "ks") if value[field] is not None
        ]
    if isinstance(value, Mapping) and is_number(value.get("error")) and "bins" in value:
        return [(f"{name}: calibration error", value["error"])]
    return []


def is_number(value: Any) -> bool:
    """Say whether a result is one number, or none, or an estimate."""
    return (
        value is None
        or isinstance(value, (int, float))
        or (isinstance(value, Mapping) and set(value) == _ESTIMATE)
    )


def number(value: Any) -> str:
    """Return a number with three significant digits; whole numbers, and those from a thousand on, in full.

    >>> number(0.83123456), number(1234567), number(None), number({"value": 0.5, "low": 0.4, "high": 0.6})
    ('0.831', '1,234,567', 'none', '0.5')
    >>> number(123456.78), number(0.000012345), number(-0.99961)
    ('123,457', '1.23e-05', '-1')
    """
    if isinstance(value, Mapping):
        value = value.get("value")
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"


def _between(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    return f"between {number(value.get('low'))} and {number(value.get('high'))}"


def rich(name: str, value: Any, note: str, drawn: Value | None, figures: Value) -> Value:
    """Return a metric as a chart with its numbers; as its numbers alone where none can be drawn."""
    try:
        tables = _tables(name, value, drawn or {})
    except (AttributeError, LookupError, TypeError, ValueError):  # a metric of the user's own lacks something
        tables, drawn = [_plain(name, value)], None
    if drawn is None or len(figures) > _MOST:
        return {"name": "", "title": name, "words": note, "numbers": tables}
    key = f"metric-{len(figures)}"
    figures[key] = drawn
    short, words = _KINDS.get(str(drawn.get("kind")), ("", "Chart"))
    title, words = f"{name}: {short}" if short else name, f"{words}."
    if "axes" in drawn:
        title, words = f"{name}: changes of classes", "Old classes in rows, new ones in columns."
    left = drawn.get("left_out")
    if isinstance(left, int) and left > 0:
        words += f" {left:,} more are not shown."
    if isinstance(value, Mapping) and drawn.get("kind") == "calibration":
        words += f" The expected calibration error is {number(value.get('error'))}."
    if is_number(value) and value is not None:
        words += f" {name} is {number(value)}."
    label = f"{title}: {words} The numbers are in the table below."
    return chart(key, title, f"{words} {note}".strip(), label, *tables)


def _tables(name: str, value: Any, drawn: Value) -> list[Value | str]:
    kind = drawn.get("kind")
    if kind in ("roc", "precision-recall"):
        head = ("False positive rate", "True positive rate") if kind == "roc" else ("Recall", "Precision")
        return [table(name, head, list(zip(drawn["x"], drawn["y"], strict=False)), words=())]
    if kind == "histogram":
        edges, both = drawn["edges"], "other" in drawn
        counts = list(zip(drawn["counts"], *([drawn["other"]] if both else []), strict=False))
        rows = [["below", number(drawn["below"]), *([""] if both else [])]]
        rows += [
            [f"{number(low)} to {number(high)}", *map(number, here)]
            for low, high, here in zip(edges, edges[1:], counts, strict=False)
        ]
        rows.append(["above", number(drawn["above"]), *([""] if both else [])])
        fields = value.items() if isinstance(value, Mapping) else ()
        more = {key: each for key, each in fields if key not in _DRAWN and each is not None}
        names = ["Values", "Old", "New"] if both else ["Values", "Rows"]
        return [table(name, names, rows), *([_plain(name, more)] if more else [])]
    if kind == "confusion":
        labels = drawn["labels"]
        lines = [(label, *map(number, row)) for label, row in zip(labels, drawn["matrix"], strict=False)]
        row, column = drawn.get("axes") or ("label", "prediction")
        return [table(name, (f"{row} ↓ {column} →", *labels), lines)]
    return [_plain(name, value)]


def _plain(name: str, value: Any) -> Value | str:
    """Return a result as a table, as far as it has fields or is a list; else in words."""
    if isinstance(value, Mapping) and isinstance(value.get("bins"), list):
        value = value["bins"]
    if isinstance(value, Mapping):
        if not value or not all(isinstance(each, Mapping) and not is_number(each) for each in value.values()):
            fields = [(str(key), _metric_cell(each)) for key, each in value.items()]
            return table(name, ("Of", "Value"), fields[:_ROWS], all_=len(fields))
        columns = _columns(value.values())
        lines = [
            (key, *(_metric_cell(each.get(column)) for column in columns)) for key, each in value.items()
        ]
        return table(name, ("Of", *columns), lines[:_ROWS], all_=len(lines))
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        columns = _columns(value)
        rows = [tuple(_metric_cell(each.get(column)) for column in columns) for each in value]
        return table(name, columns, rows[:_ROWS], words=(), all_=len(rows))
    return _metric_cell(value)


def _columns(rows: Any) -> list[str]:
    return list(dict.fromkeys(str(key) for each in rows for key in each))[:_COLUMNS]


def _metric_cell(value: Any) -> str:
    if is_number(value):
        return number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_metric_cell(each)}" for key, each in value.items())[:200]
    words = str(value)
    return words if len(words) <= 200 else words[:199] + "…"


# ----------------------------------------------------------------
# Rows: where each went, what some failed with, what was written.

_ACROSS = 12  # columns of a table of rows


def rows(facts: Facts) -> Value:
    """Return how rows read and rows written add up, and what each step did to them."""
    ledger = facts.ledger
    changes = [
        (number if what == "added" else -number, what)
        for number, what in terms(ledger, facts.steps)
        if not what.startswith("with a null")
    ]
    adds_up = ledger.read + sum(number for number, _ in changes) == ledger.written
    if facts.status == "complete" and adds_up:
        words = "Every row that was read is accounted for, exactly once."
    elif (facts.status == "complete" or facts.steps) and adds_up:
        words = "Every row of what is finished is accounted for, exactly once."
    else:
        words = "These are the rows that were written, as far as the record says."
    words += f" {ledger.nulled:,} of the rows written have a null for a result." if ledger.nulled else ""
    if ledger.gathered:
        words += f" They come of what was made first, of {ledger.gathered:,} rows."
    whole = [("", ledger.read, "read")]
    whole += [("+" if number > 0 else "−", abs(number), what) for number, what in changes]
    whole.append(("=", ledger.written, "written"))
    made = [
        (step, f"{taken:,}", f"{given:,}", f"{aside:,}")
        for step, (taken, given), aside in zip(facts.steps, ledger.steps, ledger.rejects, strict=False)
        if not step.startswith("accumulate(")  # such a step counts rows and changes none
    ]
    head = ("Step", "Rows in", "Rows out", "Rejected")
    return {
        "words": words,
        "terms": [{"sign": sign, "number": f"{number:,}", "what": what} for sign, number, what in whole],
        "steps": table("Rows by step", head, made) if facts.steps else None,
    }


def required(facts: Facts) -> Value | None:
    """Return what was required of the output, beside what was found; and what somebody decided."""
    if facts.required is None:
        return None
    because = f", because: {facts.required.because}" if facts.required.because else ""
    made = [
        (each.name, each.asked, each.shown, "yes" if each.met else "no") for each in facts.required.figures
    ]
    tables = [table("Figures", ("Figure", "Asked", "Found", "Met"), made, words=(0, 1, 2, 3))] if made else []
    return plain(f"{facts.required.verdict.capitalize()}{because}.", tables=tables)


def failed(facts: Facts) -> Value | None:
    """Return what rows failed with, and some of them."""
    number = facts.ledger.rejected + facts.ledger.nulled
    if not number:
        return None
    words = f"{plural(number, 'row')} failed, {percent(number / max(facts.ledger.read, 1), 2)} of those read."
    if facts.ledger.rejected:
        words += f" Rejected rows are kept in {facts.output}/_rejected, with all columns."
    most = max((rows for *_, rows in facts.faults), default=1)
    made = [
        (step or "–", kind, message, share_bar(rows, most, bad=True), f"{rows:,}")
        for step, kind, message, rows in facts.faults
    ]
    head = ("Step", "Error", "Message of one of them", "Share", "Rows")
    tables = list[Value | str]()
    if made:
        tables.append(table("Rows that failed, by step and error", head, made, words=(0, 1, 2, 3)))
    shown = any(sample.values for sample in facts.samples)
    if facts.samples:
        columns = ("Where", "Step", "Error", *(("Values",) if shown else ()))
        lines = [(each.where, each.step, each.error, each.values)[: len(columns)] for each in facts.samples]
        tables.append(table("Some of the rejected rows", columns, lines, words=range(len(columns))))
        if not shown:
            tables.append("Values are hidden. headrace report OUT --values shows them.")
    return plain(words, tables=tables)


def predictions(written: Table | None) -> Value | None:
    """Return some of the rows that were written last."""
    if written is None:
        return None
    few = written.across(_ACROSS)
    return plain(few.note, tables=[table_of("Rows of the part that was written last", few)])


def runs(facts: Facts) -> Value | None:
    """Return which runs the output has, and what each still holds of it."""
    if not facts.runs or (len(facts.runs) < 2 and facts.number < 2):
        return None
    columns = [
        ("Run", [run.name for run in facts.runs]),
        ("Began", [run.began for run in facts.runs]),
        ("Took", [duration(run.seconds) for run in facts.runs]),
        ("New files", [f"{run.input_files:,}" for run in facts.runs]),
        ("Files again", [f"{run.input_files_again:,}" for run in facts.runs]),
        (
            "Input, up to",
            [run.input or "–" for run in facts.runs] if any(run.input for run in facts.runs) else [],
        ),
        ("Rows", [f"{run.rows:,}" for run in facts.runs]),
        ("Parts", [f"{run.files:,}" for run in facts.runs]),
        ("Size", [size(run.bytes) for run in facts.runs]),
        ("Code", [", ".join(run.code) for run in facts.runs]),
    ]
    head, cells = zip(*(each for each in columns if each[1]), strict=True)
    words = (
        "Each took in the files that were new. Rows, parts and size are what is there of it now; runs of the same "
        "functions and models have the same code."
    )
    if facts.number > len(facts.runs):
        words += f" The run that this page is about is number {facts.number:,}, and not complete."
    texts = [i for i, name in enumerate(head) if name in ("Run", "Began", "Input, up to", "Code")]
    lines = list(zip(*cells, strict=True))[::-1]
    return plain(words, tables=[table("Runs, the last first", head, lines, words=texts)])


# ------------------------------------------------------------ language models


def answers(history: History, facts: Facts) -> Value | None:
    """Return what language models answered, what they were paid for, and how long answers are."""
    answered = facts.ledger.answered
    lines = answer_lines(history, history.at, answered, ended=facts.status != "under way")
    if not lines:
        return None
    found = answered or Answered()
    none = f" {found.failed:,} have none, and are among the rows that failed." if found.failed else ""
    words = (
        f"{plural(found.rows - found.failed, 'row')} of those that are written have an answer.{none} Equal prompts "
        "are asked once, so fewer answers than rows may be paid for. What was asked again, or for rows that are not "
        "committed, is paid for, too."
    )
    tables = [table("What they were asked and have answered", ("What", "How much"), lines, words=(0, 1))]
    again: Counter[str] = Counter()
    for (_, kind), calls in history.retried.items():
        again[kind] += calls
    if again:
        caption = "Requests that were sent again, by what they had failed with"
        tables.append(
            table(caption, ("Failed with", "Requests"), [(kind, f"{n:,}") for kind, n in again.items()])
        )
    return plain(words, tables=[*tables, *_lengths(found)])


def _lengths(found: Answered) -> list[Value]:
    """Return how long answers are, as a table with bars."""
    whole = sum(found.lengths)
    if not whole:
        return []
    first = next(i for i, number in enumerate(found.lengths) if number)
    rows = []
    for bucket, number in list(enumerate(found.lengths))[first:]:
        least, last = found.least_most(bucket)
        tokens = f"{least:,}" if least == last else f"{least:,} to {last:,}"
        share = percent(number / whole, 1)
        rows.append((tokens, share_bar(number, max(found.lengths)), f"{number:,}", share))
    return [table("How long answers are", ("Tokens", "Compared", "Answers", "Share"), rows, words=(0, 1))]
