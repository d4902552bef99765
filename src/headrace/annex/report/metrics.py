"""The part of a page about metrics: numbers, and charts of what they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.annex.report.facts import Facts
from headrace.annex.report.values import Value, chart, table, tile

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


def shown(facts: Facts, figures: Value) -> Value | None:
    """Return every metric: a number, a table, a chart."""
    found: dict[str, Any] = {"tiles": [], "square": [], "wide": [], "words": ""}
    if facts.measured:
        found["words"] = f"So far, of {facts.measured:,} of {facts.shards[1]:,} parts of the input."
    for name, value in facts.metrics.items():
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
            fields = [(str(key), _cell(each)) for key, each in value.items()]
            return table(name, ("Of", "Value"), fields[:_ROWS], all_=len(fields))
        columns = _columns(value.values())
        lines = [(key, *(_cell(each.get(column)) for column in columns)) for key, each in value.items()]
        return table(name, ("Of", *columns), lines[:_ROWS], all_=len(lines))
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        columns = _columns(value)
        rows = [tuple(_cell(each.get(column)) for column in columns) for each in value]
        return table(name, columns, rows[:_ROWS], words=(), all_=len(rows))
    return _cell(value)


def _columns(rows: Any) -> list[str]:
    return list(dict.fromkeys(str(key) for each in rows for key in each))[:_COLUMNS]


def _cell(value: Any) -> str:
    if is_number(value):
        return number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(each)}" for key, each in value.items())[:200]
    words = str(value)
    return words if len(words) <= 200 else words[:199] + "…"
