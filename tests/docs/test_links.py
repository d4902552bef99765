"""Links between the pages resolve, where the repository is browsed as well as on the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import ROOT, anchors, links

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{link}: there is no such file"
        if page.is_relative_to(ROOT / "docs"):
            assert found.is_relative_to(ROOT / "docs"), f"{link}: the site has no such page"
        if anchor and found.suffix == ".md":  # behind a picture it says for which colours that is
            assert anchor in anchors(found), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name)
def test_a_decision_names_files_that_are_there(page: Path) -> None:
    for name in re.findall(r"`([\w/]+(?:/|\.py))`", page.read_text()):
        if "/" in name:
            places = (ROOT / "src" / "headrace" / name, ROOT / name)
            assert any(place.exists() for place in places), f"{name} is not there any more"


def test_each_decision_has_its_line_in_the_list() -> None:
    listed = links(ROOT / "docs" / "decisions" / "README.md")
    assert sorted(listed) == sorted(page.name for page in DECISIONS)
