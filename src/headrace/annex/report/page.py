"""The page: one file that loads nothing from elsewhere, made by a template from one plain value."""

from __future__ import annotations

import binascii
import hashlib
import os
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.annex.report import head, metrics, running, totals
from headrace.annex.report.facts import Facts, History
from headrace.annex.report.values import Value, cleaned
from headrace.core.cards import engine, rendered

if TYPE_CHECKING:
    from headrace.annex.report.comparison import Run
    from headrace.core.tables import Table

ASSETS = Path(__file__).parent / "assets"
TEMPLATE = Path(__file__).parent / "page.html"
MOST_BYTES = 3_000_000
_FIGURES_BYTES = 1_500_000


def page(
    history: History,
    facts: Facts,
    *,
    made: float,
    version: str,
    live: Value | None = None,
    predictions: Table | None = None,
) -> bytes:
    """Return the whole report, as UTF-8. ``made``: when, in seconds since 1970.

    ``live``: the page is served while the run goes on, with what one may ask of it. ``predictions``: rows that were
    written.
    """
    figures: Value = {}
    sections = {
        "required": totals.required(facts),
        "metrics": metrics.shown(facts, figures),
        "rows": totals.rows(facts),
        "predictions": totals.predictions(predictions),
        "answers": totals.answers(history, facts),
        "speed": running.speed(history, figures),
        "workers": running.workers(history, figures, under_way=facts.status == "under way"),
        "memory": running.memory(history, figures),
        "failed": totals.failed(facts),
        "trouble": running.trouble(history),
        "more": head.more_advice(history, facts),
        "runs": totals.runs(facts),
        "plan": running.plan(history, facts),
    }
    title = f"{head.verdict(history, facts)} – {facts.output}"
    value = {
        "title": title,
        "head": head.head(history, facts),
        "runs_compared": (),
        "sections": list(sections.items()),
        "live": live,
    }
    if len(repr(figures)) > _FIGURES_BYTES:  # as the parts are bounded, never
        figures = {}  # without charts the page still opens
    return _made({**value, "figures": figures}, history.unread, made, version)


def comparison_page(first: Run, second: Run, *, made: float, version: str) -> bytes:
    """Return a page about two runs side by side, as UTF-8."""
    from headrace.annex.report.comparison import comparison

    return _made({**comparison(first, second), "figures": {}}, first[0].unread, made, version)


def plain_page(value: Value, *, made: float, version: str) -> bytes:
    """Return a page of ``title``, ``place``, ``sentence``, ``sections`` and ``figures``, as UTF-8.

    Instead of ``place`` it may have ``runs_compared``.
    """
    return _made({"runs_compared": (), **value, "head": ""}, 0, made, version)


def _made(value: Value, unread_lines: int, made: float, version: str) -> bytes:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(made))
    unread = f"{unread_lines:,}" if unread_lines else ""
    value = cleaned({"live": None, **value, "made": at, "version": version, "unread": unread})
    while len(text := render(value)) > MOST_BYTES:
        biggest = max(value["sections"], key=lambda each: len(repr(each[1])))
        if biggest[1] == "left out":
            break
        biggest[1] = "left out"
    return text


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
