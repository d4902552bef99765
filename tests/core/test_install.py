"""Hints on what to install name extras that this distribution has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.core.install import install_hint, library
from headrace.errors import MissingLibrary

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}
EXTRAS = set(re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.M))


def test_one_function_makes_the_words() -> None:
    written = [path.name for path, text in SOURCES.items() if re.search(r"pip install (?!--)", text)]
    assert sorted(written) == ["install.py"]


def test_every_extra_is_there() -> None:
    text = "".join(SOURCES.values())
    named = set(re.findall(r"install_hint\([\"']([\w-]+)[\"']\)", text))
    named |= set(re.findall(r"\brequire\(\s*\"\w+\",\s*\"([\w-]+)\"", text))
    calls = re.findall(r"(?<!>> )\blibrary\(\"\w+\", \"([\w.]+)\"(?:, \"([\w-]+)\")?\)", text)
    named |= {extra or name for name, extra in calls}
    assert len(named) > 8 and named <= EXTRAS


def test_a_hint_works_from_a_clone_as_well() -> None:
    with pytest.raises(MissingLibrary, match=re.escape(install_hint("no_such"))) as caught:
        library("to_x", "no_such")
    assert 'pip install "headrace[no_such]"' in str(caught.value)
    assert 'pip install ".[no_such]"' in str(caught.value)
