"""The plain values that the page's template knows: tables, tiles, charts. Whatever is in them is text, not HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.terminal import visible

MOST_ROWS = 300  # of a table

Value = dict[str, Any]


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    words: Sequence[int] = (0,),
    all_: int = 0,
) -> Value:
    """Return a table; columns are numbers but for those in ``words``. ``all_``: how many rows there are, if more."""
    left = max(all_, len(rows)) - len(rows[:MOST_ROWS])
    return {
        "caption": caption,
        "head": [str(name) for name in head],
        "numbers": [i not in words for i in range(len(head))],
        "rows": [[each if isinstance(each, dict) else str(each) for each in row] for row in rows[:MOST_ROWS]],
        "left": f"{left:,}" if left > 0 else "",
    }


def share_bar(number: int, most: int, *, bad: bool = False) -> Value:
    """Return a cell with a bar as wide as a number is of the biggest."""
    return {"share": f"{100 * number / max(most, 1):.0f}", "bad": bad}


def tile(name: str, value: str, *notes: str, warn: bool = False) -> Value:
    """Return a number that stands out, with its name above and notes below."""
    return {"name": name, "value": value, "notes": [note for note in notes if note], "warn": warn}


def chart(name: str, title: str, words: str, label: str, *numbers: Value | str) -> Value:
    """Return the place of a chart: drawn by the page's script from the figure called ``name``.

    ``label`` is read out in its place; ``numbers`` are tables of what is drawn.
    """
    return {"name": name, "title": title, "words": words, "label": label, "numbers": numbers}


def plain(words: str = "", *, charts: Sequence[Value] = (), tables: Sequence[Value | str] = ()) -> Value:
    """Return a section of a sentence, charts and tables."""
    return {"plain": True, "words": words, "charts": charts, "tables": tables}


def cleaned(value: Any) -> Any:
    """Return a plain value in which characters that would not show, or turn others around, are written out."""
    if isinstance(value, str):
        return value if value.isascii() and value.isprintable() else visible(value)
    if isinstance(value, dict):
        return {cleaned(str(key)): cleaned(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(each) for each in value]
    return value
