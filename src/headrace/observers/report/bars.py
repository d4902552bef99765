"""Where workers' time went, as bars of HTML: they need no script, and screen readers get the list below."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.human import duration, percent
from headrace.observers.report.html import Html, join, table, tag
from headrace.observers.time_spent import Part, StageTime

_COLORS = {
    "starting": "starting", "loading": "loading", "reading": "c3", "decoding": "c2", "metrics": "c6", "writing": "c4",
    "waiting": "wait", "lost": "bad", "other": "other", "idle": "idle",
}  # fmt: skip
_STEPS = ("c1", "c5", "s3", "s4")
_SHOWN = 6
_LEAST = 0.004  # of the time: a thinner part cannot be seen
_ORDER = tuple(_COLORS)


def strip(parts: Sequence[Part], *, most: int = _SHOWN) -> Html:
    """Return a bar of what took the time, and below it the biggest parts with their shares."""
    parts = [part for part in parts if part.share >= _LEAST]
    colors = colors_of(parts)
    in_order = sorted(parts, key=lambda part: (_place(part), part.name))
    bar = [
        tag("span", class_=f"p-{colors[part.kind, part.name]}", style=f"--share: {100 * part.share:.2f}%")
        for part in in_order
    ]
    shown = sorted(parts, key=lambda part: -part.share)[:most]
    items = [
        tag(
            "li",
            tag("i", class_=f"p-{colors[part.kind, part.name]}", aria_hidden="true"),
            tag("b", percent(part.share)),
            f" {part.name if len(part.name) <= 60 else part.name[:59] + '…'}",
        )
        for part in shown
    ]
    rest = sum(part.share for part in parts) - sum(part.share for part in shown)
    if len(parts) > len(shown) and rest >= _LEAST:
        items.append(tag("li", tag("b", percent(rest)), " the rest"))
    return join([tag("div", *bar, class_="strip", aria_hidden="true"), tag("ul", *items, class_="parts")])


def colors_of(parts: Sequence[Part]) -> dict[tuple[str, str], str]:
    """Return a colour's name for each part: a kind has always the same, and steps have some of their own."""
    names = list(dict.fromkeys(part.name for part in parts if part.kind == "step"))
    found: dict[tuple[str, str], str] = {}
    for part in parts:
        step = part.kind == "step"
        found[part.kind, part.name] = (
            _STEPS[names.index(part.name) % len(_STEPS)] if step else _COLORS[part.kind]
        )
    return found


def _place(part: Part) -> float:
    if part.kind == "step":
        return _ORDER.index("decoding") + 0.5
    return _ORDER.index(part.kind)


def stages_table(stages: Sequence[StageTime]) -> Html:
    """Return the parts of each stage's time as a table."""
    rows = []
    for i, stage in enumerate(stages, 1):
        for part in sorted(stage.parts, key=lambda part: -part.share):
            if part.share >= _LEAST / 4:
                rows.append((f"{i}. {stage.name}", part.name, duration(part.seconds), percent(part.share, 1)))
    head = ("Stage", "Doing", "Worker time", "Share")
    return table("What the workers of each stage did", head, rows, words=(0, 1))
