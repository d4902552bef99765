"""The part of a page about metrics: numbers, and charts of what they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.observers.report.facts import Facts
from headrace.observers.report.html import Html, chart, join, pairs, section, table, tag

Figures = dict[str, Any]
_MOST = 24  # charts
_TILES = 6  # fields of a metric that are tiles; more of them are a table
_ROWS = 50


def shown(facts: Facts, figures: Figures) -> Html:
    """Return every metric: a number, a table, a chart."""
    if not facts.metrics:
        return Html("")
    plain: list[tuple[Any, Html]] = []
    rest: list[Html] = []
    square: list[Html] = []
    for name, value in facts.metrics.items():
        note = facts.notes.get(name, "")
        for field, each in _headline(name, value):
            plain.append((field, join([tag("b", number(each)), _between(each), _note(note)])))
        drawn = facts.charts.get(name)
        drawn = None if _is_flat(value) and _has_few(drawn) else drawn  # the tiles have them
        if not _is_flat(value) or isinstance(drawn, dict):
            made = _rich(name, value, note, drawn, figures)
            (square if isinstance(drawn, dict) and drawn.get("kind") in _SQUARE else rest).append(made)
    numbers = pairs(plain, class_="key") if plain else ""
    return section("metrics", "Metrics", numbers, tag("div", *square, class_="twos") if square else "", *rest)


def _is_flat(value: Any) -> bool:
    """Say whether a result is one number, or a few by name: then it needs no table."""
    if is_number(value):
        return True
    return isinstance(value, Mapping) and 0 < len(value) <= _TILES and all(map(is_number, value.values()))


def _has_few(drawn: Any) -> bool:
    """Say whether a chart would have no more than a few bars, and all of them."""
    if not isinstance(drawn, dict) or drawn.get("kind") != "bars" or drawn.get("left_out"):
        return False
    labels = drawn.get("labels")
    return isinstance(labels, list) and len(labels) <= _TILES


def _headline(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return the numbers of a metric that stand as tiles: itself, or its fields if they are few."""
    if is_number(value):
        return [(name, value)]
    if isinstance(value, Mapping) and _is_flat(value):
        return [(f"{name}: {field}", each) for field, each in value.items()]
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


_ESTIMATE = {"value", "low", "high"}


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


def _between(value: Any) -> Html:
    if not isinstance(value, Mapping):
        return Html("")
    return tag("span", f" between {number(value.get('low'))} and {number(value.get('high'))}", class_="note")


def _note(note: str) -> Html:
    return tag("span", f" {note}", class_="note") if note else Html("")


def _rich(name: str, value: Any, note: str, drawn: Any, figures: Figures) -> Html:
    try:
        numbers = _table(name, value, drawn)
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ):  # a chart of the user's own metric that lacks something
        numbers, drawn = _plain_table(name, value), None
    if not isinstance(drawn, dict) or len(figures) > _MOST:
        return join([tag("h3", name), tag("p", note, class_="note") if note else "", numbers])
    key = f"metric-{len(figures)}"
    figures[key] = drawn
    kind = str(drawn.get("kind"))
    title = f"{name}: {_SHORT[kind]}" if kind in _SHORT else name
    words = f"{_TITLES.get(kind, 'Chart')}."
    left = drawn.get("left_out")
    if isinstance(left, int) and left > 0:
        words += f" {left:,} more are not shown."
    if isinstance(value, Mapping) and drawn.get("kind") == "calibration":
        words += f" The expected calibration error is {number(value.get('error'))}."
    if is_number(value) and value is not None:
        words += f" {name} is {number(value)}."
    return chart(
        key,
        title,
        f"{words} {note}".strip(),
        f"{title}: {words} The numbers are in the table below.",
        numbers,
    )


_SHORT = {
    "roc": "ROC curve",
    "precision-recall": "precision over recall",
    "calibration": "calibration",
    "confusion": "confusion matrix",
    "histogram": "histogram",
    "bars": "one bar for each value",
    "groups": "one chart for each value",
}
_DRAWN = ("edges", "counts", "below", "above")
_SQUARE = ("roc", "precision-recall", "calibration", "confusion")
_TITLES = {
    "roc": "ROC curve: positive rows found over negative rows taken for positive, at each threshold",
    "precision-recall": "Precision over recall, at each threshold",
    "calibration": "Calibration: how often rows with a predicted probability are positive",
    "confusion": "Confusion matrix: labels in rows, predictions in columns",
    "histogram": "How many rows have a value in each interval",
    "bars": "One bar for each value",
    "groups": "One chart for each value",
}


def _table(name: str, value: Any, drawn: Any) -> Html:
    kind = drawn.get("kind") if isinstance(drawn, dict) else None
    if kind in ("roc", "precision-recall"):
        head = ("False positive rate", "True positive rate") if kind == "roc" else ("Recall", "Precision")
        return table(name, head, list(zip(drawn["x"], drawn["y"], strict=False)), words=())
    if kind == "histogram":
        edges, counts = drawn["edges"], drawn["counts"]
        rows: list[tuple[Any, ...]] = [
            (f"{number(low)} to {number(high)}", number(rows))
            for low, high, rows in zip(edges, edges[1:], counts, strict=False)
        ]
        rows = [("below", number(drawn["below"])), *rows, ("above", number(drawn["above"]))]
        more = (
            {key: each for key, each in value.items() if key not in _DRAWN}
            if isinstance(value, Mapping)
            else {}
        )
        return join([table(name, ("Values", "Rows"), rows), _plain_table(name, more) if more else ""])
    if kind == "confusion":
        labels = drawn["labels"]
        lines = [(label, *map(number, row)) for label, row in zip(labels, drawn["matrix"], strict=False)]
        return table(name, ("label ↓ prediction →", *labels), lines)
    return _plain_table(name, value)


def _plain_table(name: str, value: Any) -> Html:
    if isinstance(value, Mapping) and isinstance(value.get("bins"), list):
        return _plain_table(name, value["bins"])
    if isinstance(value, Mapping):
        if value and all(isinstance(each, Mapping) and not is_number(each) for each in value.values()):
            columns = list(dict.fromkeys(str(key) for each in value.values() for key in each))[:20]
            lines = [(key, *(_cell(each.get(column)) for column in columns)) for key, each in value.items()]
            return table(name, ("Of", *columns), lines[:_ROWS], all_=len(lines))
        pairs_ = [(str(key), _cell(each)) for key, each in value.items()]
        return table(name, ("Of", "Value"), pairs_[:_ROWS], all_=len(pairs_))
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        columns = list(dict.fromkeys(str(key) for each in value for key in each))[:20]
        rows = [tuple(_cell(each.get(column)) for column in columns) for each in value]
        return table(name, columns, rows[:_ROWS], words=(), all_=len(rows))
    return tag("p", _cell(value))


def _cell(value: Any) -> str:
    if is_number(value):
        return number(value)
    words = str(value)
    return words if len(words) <= 200 else words[:199] + "…"
