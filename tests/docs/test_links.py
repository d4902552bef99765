"""Links between the pages resolve, where the repository is browsed as well as on the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .pages import ROOT, anchors, links

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def broken(page: Path) -> Iterator[str]:
    for link in links(page):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        found = (page.parent / target).resolve() if target else page
        if not found.exists():
            yield f"{page.name}: {link}: there is no such file"
        elif page.is_relative_to(ROOT / "docs") and not found.is_relative_to(ROOT / "docs"):
            yield f"{page.name}: {link}: the site has no such page"
        elif anchor and found.suffix == ".md" and anchor not in anchors(found):
            yield f"{page.name}: {link}: there is no such heading"  # behind a picture: for which colours that is


def test_links_resolve() -> None:
    assert [line for page in PAGES for line in broken(page)] == []


def test_a_decision_names_files_that_are_there() -> None:
    for page in DECISIONS:
        for name in re.findall(r"`([\w/]+(?:/|\.py))`", page.read_text()):
            if "/" in name:
                places = (ROOT / "src" / "headrace" / name, ROOT / name)
                assert any(place.exists() for place in places), f"{page.name}: {name} is not there any more"


def test_each_decision_has_its_line_in_the_list() -> None:
    listed = links(ROOT / "docs" / "decisions" / "README.md")
    assert sorted(listed) == sorted(page.name for page in DECISIONS)
