"""Hints on what to install name extras that this distribution has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.core.door import DISTRIBUTION, install_hint, library
from headrace.errors import MissingLibrary

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}
EXTRAS = set(re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.M))


def test_one_function_makes_the_words() -> None:
    written = [path.name for path, text in SOURCES.items() if re.search(r"pip install (?!--)", text)]
    assert sorted(written) == ["door.py"]


def test_every_extra_is_there() -> None:
    text = "".join(SOURCES.values())
    named = set(re.findall(r"install_hint\([\"']([\w-]+)[\"']\)", text))
    named |= set(re.findall(r"\brequire\(\s*\"\w+\",\s*\"([\w-]+)\"", text))
    calls = re.findall(r"(?<!>> )\blibrary\(\"\w+\", \"([\w.]+)\"(?:, \"([\w-]+)\")?\)", text)
    named |= {extra or name for name, extra in calls}
    assert len(named) > 8 and named <= EXTRAS


def test_a_hint_names_what_can_be_installed_today() -> None:
    with pytest.raises(MissingLibrary, match=re.escape(install_hint("no_such"))) as caught:
        library("to_x", "no_such")
    assert f'pip install "{DISTRIBUTION}[no_such]"' in str(caught.value)


PAGES = {path: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}


@pytest.mark.skipif(DISTRIBUTION == "headrace", reason="the name on the index is this project")
def test_nothing_sends_people_to_a_name_on_the_index_that_is_not_ours() -> None:
    sent = re.compile(r"pip install (?:[^\n`]* )?[\"']?headrace(?![\w./-])|[\s`\"']headrace\[\w")
    texts = {path: text for path, text in (SOURCES | PAGES).items() if path.parent.name != "decisions"}
    assert {
        str(path.relative_to(ROOT)): found[0] for path, text in texts.items() if (found := sent.search(text))
    } == {}
