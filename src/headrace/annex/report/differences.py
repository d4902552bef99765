"""The page about rows that were compared: how each column differs, and the rows that changed most."""

from __future__ import annotations

import re
import time
from difflib import SequenceMatcher
from typing import Any

from headrace.annex.report import metrics
from headrace.annex.report.page import plain_page
from headrace.annex.report.values import Value, plain, table
from headrace.core.human import row_text
from headrace.version import __version__

_ROWS = 100  # of a table with values
_CHARS = 2_000  # of a text
_WORDS = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


def page(
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
            square = each["chart"].get("kind") in metrics.SQUARE
            drawn["square" if square else "wide"].append(
                metrics.rich(name, each, each["note"], each["chart"], figures)
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
    return plain_page({**value, "figures": figures}, made=time.time(), version=__version__)


def _left_out(names: list[str]) -> str:
    return f"Columns that only it has: {', '.join(names)}." if names else ""


def _worst(columns: dict[str, Any], keys: list[str]) -> Value | None:
    head = (", ".join(keys) or "Row", "Old", "New", "Difference", "Its other columns")
    words = (0, 1, 2, 4) if keys else (1, 2, 4)
    tables = [
        table(name, head, [_cells(row, keys) for row in each["worst"][:_ROWS]], words=words)
        for name, each in columns.items()
        if each["worst"]
    ]
    return plain(tables=tables) if tables else None


def _cells(row: dict[str, Any], keys: list[str]) -> tuple[Any, ...]:
    others = dict(row["inputs"])
    known = ", ".join(_short(others.pop(key)) for key in keys if key in others)
    which = known if keys else f"{row['row']:,}"
    by = metrics.number(row["difference"]) if row.get("difference") is not None else "–"
    old, new = row["old"], row["new"]
    if isinstance(old, str) and isinstance(new, str):
        return which, *_side_by_side(old, new), by, row_text(others)
    return which, _short(old), _short(new), by, row_text(others)


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
        table(f"Only in {side}", ("Row",), [(row_text(row),) for row in some[:_ROWS]])
        for side, some in rows.items()
        if some
    ]
    return plain("Some of them:", tables=tables) if tables else None


def _short(value: Any) -> str:
    return row_text({"": value})[5:-1]
