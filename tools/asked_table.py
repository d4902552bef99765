"""Writes what runs may ask of each kind of output into docs/reference/outputs.md, from ``headrace.core.asked``.

    python tools/asked_table.py

A test holds that the page says what the code has; another one tries each cell.
"""

from __future__ import annotations

import re
from pathlib import Path

from headrace.core.asked import ASKED, KINDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "outputs.md"
_MARKED = re.compile(r"(?<=<!-- asked: begin -->\n).*?(?=<!-- asked: end -->)", re.DOTALL)


def table() -> str:
    """Return the table for the page, with the reasons below it."""
    lines = [f"| | | {' | '.join(KINDS.values())} |", "|---|---" + "|---" * len(KINDS) + "|"]
    reasons = []
    for asked, each in ASKED.items():
        name = f"`{asked}`".replace("'", '"')
        cells = ["no" if kind in each.cannot else each.but.get(kind, "yes") for kind in KINDS]
        lines.append(f"| {name} | {each.meaning} | {' | '.join(cells)} |")
        for why in dict.fromkeys(each.cannot.values()):
            kinds = ", ".join(KINDS[kind] for kind, said in each.cannot.items() if said == why)
            reasons.append(f"- {name}, {kinds}: {why}")
    return "\n".join([*lines, "", "Why not:", "", *reasons]) + "\n"


def written(page: str) -> str:
    """Return the page with what the code has now."""
    return _MARKED.sub(lambda _: f"\n{table()}\n", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
