"""What the template of pages is given: plain values, whose words are text and not HTML; and the page made of them."""

from __future__ import annotations

import binascii
import hashlib
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from headrace.core.files import safe_files
from headrace.core.tables import Picture, Table, Words, engine, rendered
from headrace.core.terminal import visible
from headrace.errors import OutputWriteFailed
from headrace.version import __version__

ASSETS = Path(__file__).parent / "assets"
TEMPLATE = Path(__file__).parent / "page.html"
MOST_BYTES = 3_000_000
MOST_ROWS = 300  # of a table
_CHARS = 200  # of a cell

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


def table_of(caption: str, made: Table) -> Value:
    """Return a table that a terminal shows, too."""
    words = [i for i in range(len(made.heading)) if i not in made.numbers]
    return table(caption, made.heading, [[_drawn(cell) for cell in row] for row in made.rows], words=words)


def _drawn(words: Words) -> Value | str:
    if isinstance(words, Picture):
        return {"picture": words.address(), "words": words.text}
    text = words if isinstance(words, str) else words.text
    return text if len(text) <= _CHARS else f"{text[:_CHARS]}…"


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


# ----------------------------------------------------------------
# The page: one file that loads nothing from elsewhere.


def made_page(value: Value, unread_lines: int = 0) -> bytes:
    """Return a page of ``title``, ``sections``, ``figures`` and more, as UTF-8, without what makes it too big."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    unread = f"{unread_lines:,}" if unread_lines else ""
    made = {"made": at, "version": __version__, "unread": unread}
    value = cleaned({"live": None, "runs_compared": (), "head": "", **value, **made})
    while len(text := render(value)) > MOST_BYTES:
        biggest = max(value["sections"], key=lambda each: len(repr(each[1])))
        if biggest[1] == "left out":
            break
        biggest[1] = "left out"
    return text


def write_page(path: str | os.PathLike[str], page: bytes) -> Path:
    """Write a page into a file, all of it or nothing, and return where it is; only its owner may read it.

    Raises ``OutputWriteFailed`` if it cannot be written.
    """
    place = Path(path).expanduser().absolute()
    try:
        safe_files.write(place, page, lasting=False)
    except OSError as error:
        raise OutputWriteFailed(f"The report cannot be written to {place}: {error.strerror}.") from error
    return place


def render(page: Value) -> bytes:
    """Return the page of a plain value, as UTF-8; all words in it are escaped by the template's engine."""
    place = os.urandom(16).hex()  # of style and script, which need not go through the engine
    made = rendered(TEMPLATE, page=page, policy=f"'sha256-{_hash()}'", place=place).encode()
    head, body, end = made.split(place.encode())
    return b"".join([head, _asset("report.css"), body, b"<script>", _asset("report.js"), b"</script>", end])


def load_assets() -> None:
    """Read the files that are part of every page, and the template."""
    _hash()
    _asset("report.css")
    engine(TEMPLATE)


@cache
def _asset(name: str) -> bytes:
    return (ASSETS / name).read_bytes()


@cache
def _hash() -> str:
    """Return the hash by which the page's policy allows the script."""
    return binascii.b2a_base64(hashlib.sha256(_asset("report.js")).digest(), newline=False).decode()
