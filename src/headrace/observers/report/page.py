"""The page: one file that loads nothing from elsewhere."""

from __future__ import annotations

import binascii
import hashlib
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.observers.report import answers, head, metrics, running, runs, totals, what_ran
from headrace.observers.report.facts import Facts
from headrace.observers.report.history import History
from headrace.observers.report.html import Html, data, join, tag

if TYPE_CHECKING:
    from headrace.observers.report.comparison import Run

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("d3.min.js", "plot.umd.min.js", "report.js")
DIGESTS = {
    "d3.min.js": "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1",
    "plot.umd.min.js": "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
}
"""SHA-256 of the scripts that are not ours: it would take a millisecond of each run to find them out."""

MOST_BYTES = 3_000_000
_ASSETS_BYTES = 700_000  # scripts and style, and what is around the parts
_FEW = 1_000


def page(history: History, facts: Facts, *, made: float, version: str) -> bytes:
    """Return the whole report, as UTF-8. ``made``: when, in seconds since 1970."""
    figures: dict[str, Any] = {}
    parts = [
        head.head(history, facts),
        metrics.shown(facts, figures),
        totals.rows(facts),
        answers.answers(history, facts),
        running.speed(history, figures),
        running.workers(history, figures),
        running.memory(history, figures),
        totals.failed(facts),
        running.trouble(history),
        running.next_steps(history, facts),
        runs.runs(facts),
        what_ran.what_ran(history, facts),
    ]
    drawn = data(figures)
    if len(drawn) > MOST_BYTES // 2:  # as the parts are bounded, never; without charts the page still opens
        drawn = data({})
    parts = _fitting(parts, MOST_BYTES - len(drawn) - _ASSETS_BYTES)
    parts[1:1] = [_contents(parts)]
    body = join([tag("main", *parts, id="main"), _foot(history, made, version)])
    return _whole(head.title(history, facts), body, drawn)


def comparison_page(first: Run, second: Run, *, made: float, version: str) -> bytes:
    """Return a page about two runs side by side, as UTF-8."""
    from headrace.observers.report import comparison

    parts = _fitting(comparison.comparison(first, second), MOST_BYTES - _ASSETS_BYTES)
    body = join([comparison.body(parts), _foot(second[0], made, version)])
    return _whole(comparison.title(first, second), body, data({}))


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
        ("answers", "Language model"),
        ("speed", "Speed"),
        ("workers", "Workers"),
        ("memory", "Memory and batches"),
        ("failed", "Failed rows"),
        ("trouble", "Incidents"),
        ("more", "What else to try"),
        ("runs", "Runs"),
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


def _whole(title: str, body: Html, drawn: Html) -> bytes:
    hashes = " ".join(f"'sha256-{_hash(name)}'" for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    head = [
        '<!doctype html>\n<html lang="en">\n<head>',
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        tag("title", title),
        "<style>",
    ]
    skip = tag("a", "Skip to the report", href="#main", class_="skip")
    shown = [
        f"</style>\n</head>\n<body>\n{skip}",
        body,
        f'\n<script type="application/json" id="data">{drawn}</script>\n',
    ]
    return b"".join(
        [
            "\n".join(head).encode(),
            _asset("report.css"),
            "".join(shown).encode(),
            *(part for name in SCRIPTS for part in (b"<script>", _asset(name), b"</script>\n")),
            b"</body>\n</html>\n",
        ]
    )


@cache
def _asset(name: str) -> bytes:
    return (ASSETS / name).read_bytes()


@cache
def _hash(name: str) -> str:
    """Return the hash by which the page's policy allows a script."""
    digest = bytes.fromhex(DIGESTS[name]) if name in DIGESTS else hashlib.sha256(_asset(name)).digest()
    return binascii.b2a_base64(digest, newline=False).decode()
