"""The pages for users: their blocks of code, headings and links.

What a block is, its fence says:

``python``                     runs; the blocks of a page are one program, from its top to its end
``python title="job.py"``      is a file of that name, in the folder in which the page's program runs
``python title="... Ray ..."`` is a program for Ray, and runs with Ray's words from ``headrace.compat``
``python title="for Spark"``   is a program for Spark, and runs with Spark where that is installed
``sh``                         is a script for the shell, and runs
``console``                    commands after ``$``, and what they print
``text``                       lines that were printed by what is above it
anything else, and any block below ``<!-- not run: why -->``, is only shown
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ("python", "sh", "console", "text")
_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+?) -->\n+)?^```(?P<kind>\w*)(?: +(?P<rest>[^\n]*))?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^::: ([\w.]+)", re.MULTILINE)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    title: str
    text: str
    line: int
    why_not: str

    @property
    def for_ray(self) -> bool:
        """Whether it is a program for Ray."""
        return self.kind == "python" and re.search(r"\bRay\b", self.title) is not None

    @property
    def for_spark(self) -> bool:
        """Whether it is a program for Spark."""
        return self.kind == "python" and self.title == "for Spark"

    @property
    def file(self) -> str:
        """The name of the file that it is, if it is one."""
        return self.title if re.fullmatch(r"[\w.-]+\.\w+", self.title) else ""


def pages() -> list[Path]:
    """Return the pages for users, but for the decisions, which are for maintainers."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/reference").glob("*.md")),
    ]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        title = re.search(r'title="([^"]*)"', found["rest"] or "")
        line = text.count("\n", 0, found.start("kind")) + 1
        yield Block(found["kind"], title[1] if title else "", found["text"], line, found["why"] or "")


def prose(page: Path) -> str:
    """Return a page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return what links may point at: headings as forges and the site name them, and what the reference shows."""
    text = prose(page)
    return {slug(heading) for heading in _HEADING.findall(text)} | set(_DIRECTIVE.findall(text))


def slug(heading: str) -> str:
    """Return the anchor of a heading.

    >>> slug("Who `fails`, and when?")
    'who-fails-and-when'
    """
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def links(page: Path) -> list[str]:
    """Return where the links of a page point."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page)))
