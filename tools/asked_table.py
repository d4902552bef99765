"""Writes what runs may ask of each kind of output into docs/reference/outputs.md, from ``headrace.core.asked``.

    python tools/asked_table.py

A test holds that the page has what the code has; another one tries each line.
"""

from __future__ import annotations

import re
from pathlib import Path

from headrace.core.asked import ASKED, KINDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "outputs.md"
_MARKED = re.compile(r"(?<=<!-- asked: begin -->\n).*?(?=<!-- asked: end -->)", re.DOTALL)


def listed() -> str:
    """Return a line for each thing that may be asked: what it means, who cannot do it, and what has to be known."""
    lines = []
    for asked, each in ASKED.items():
        name = f"`{asked}`".replace("'", '"')
        by_text: dict[str, list[str]] = {}
        for kind, text in each.but.items():
            by_text.setdefault(text, []).append(KINDS[kind])
        notes = [f"{', '.join(kinds)}: {text}" for text, kinds in by_text.items()]
        if each.cannot:
            notes.append(f"not {', '.join(KINDS[kind] for kind in KINDS if kind in each.cannot)}")
        but = f" But: {'; '.join(notes)}." if notes else ""
        lines.append(f"- {name}: {each.meaning}.{but}")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """Return the page with what the code has now."""
    return _MARKED.sub(lambda _: f"\n{listed()}\n", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
