"""The page: one file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.observers.report import head, metrics, running, totals, what_ran
from headrace.observers.report.facts import Facts
from headrace.observers.report.history import History
from headrace.observers.report.html import Html, data, join, tag

if TYPE_CHECKING:
    from headrace.observers.report.comparison import Run

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("d3.min.js", "plot.umd.min.js", "report.js")
MOST_BYTES = 3_000_000
_ASSETS_BYTES = 700_000  # scripts and style, and what is around the parts
_FEW = 1_000


def page(history: History, facts: Facts, *, made: float, version: str) -> str:
    """Return the whole report. ``made``: when, in seconds since 1970."""
    figures: dict[str, Any] = {}
    parts = [
        head.head(history, facts),
        metrics.shown(facts, figures),
        totals.rows(facts),
        running.speed(history, figures),
        running.workers(history, figures),
        running.memory(history, figures),
        totals.failed(facts),
        running.trouble(history),
        running.next_steps(history, facts),
        what_ran.what_ran(history, facts),
    ]
    if (
        len(data(figures)) > MOST_BYTES // 2
    ):  # the parts are bounded, so this should not happen; without charts the page still opens
        figures = {}
    parts = _fitting(parts, MOST_BYTES - len(data(figures)) - _ASSETS_BYTES)
    parts[1:1] = [_contents(parts)]
    body = join([tag("main", *parts, id="main"), _foot(history, made, version)])
    return _whole(head.title(history, facts), body, figures)


def comparison_page(first: Run, second: Run, *, made: float, version: str) -> str:
    """Return a page about two runs side by side."""
    from headrace.observers.report import comparison

    parts = _fitting(comparison.comparison(first, second), MOST_BYTES - _ASSETS_BYTES)
    body = join([comparison.body(parts), _foot(second[0], made, version)])
    return _whole(comparison.title(first, second), body, {})


def _fitting(parts: list[Html], most: int) -> list[Html]:
    """Leave out the biggest parts until the others fit; the first, with the status, stays."""
    left = list(parts)
    while sum(len(part.encode()) for part in left) > most:
        biggest = max(range(1, len(left)), key=lambda i: len(left[i]))
        if len(left[biggest]) < _FEW:
            break
        left[biggest] = tag("p", "A part of this page is left out: it would be too big.", class_="note")
    return left


def load_assets() -> None:
    """Read the files that are part of every page."""
    for name in SCRIPTS:
        _hash(name)
    for name in (*SCRIPTS, "report.css"):
        _asset(name)


def _contents(parts: list[Html]) -> Html:
    names = [
        ("metrics", "Metrics"),
        ("rows", "Rows"),
        ("speed", "Speed"),
        ("workers", "Workers"),
        ("memory", "Memory and batches"),
        ("failed", "Failed rows"),
        ("trouble", "Incidents"),
        ("more", "What else to try"),
        ("plan", "What ran"),
    ]
    whole = join(parts)
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title in names if f'id="{name}"' in whole]
    return tag("nav", tag("ul", *links), aria_label="Sections")


def _foot(history: History, made: float, version: str) -> Html:
    text = f"Made by Headrace {version} at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(made))} UTC."
    if history.unread:
        text += f" {history.unread:,} lines of the record could not be read."
    return tag("footer", tag("p", text))


def _whole(title: str, body: Html, figures: dict[str, Any]) -> str:
    scripts = [_asset(name) for name in SCRIPTS]
    hashes = " ".join(f"'sha256-{_hash(name)}'" for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        tag("title", title),
        f"<style>{_asset('report.css')}</style>",
    ]
    skip = tag("a", "Skip to the report", href="#main", class_="skip")
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n',
            "\n".join(head),
            "\n</head>\n<body>\n",
            skip,
            body,
            f'\n<script type="application/json" id="data">{data(figures)}</script>\n',
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _hash(name: str) -> str:
    """Return the hash by which the page's policy allows a script."""
    return base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()
