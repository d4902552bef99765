"""The site has every page, and the reference every public name."""

from __future__ import annotations

import doctest
import importlib
import re
from typing import Any

import pytest
import yaml

import millrace as mr
from millrace import testing
from millrace.compat import ray

from .pages import ROOT

REFERENCE = ROOT / "docs" / "reference"
SHOWN = set(re.findall(r"^::: ([\w.]+)", "".join(page.read_text() for page in REFERENCE.glob("*.md")), re.M))
OTHER_NAMES = {"TensorflowCheckpoint", "TensorflowPredictor"}


def _targets(nav: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        found += _targets(target) if isinstance(target, list) else [target]
    return found


def test_every_page_has_its_place() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = _targets(nav)
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed))
    missing = {page for page in there if not page.startswith("decisions/")} - set(listed)
    assert sorted(missing) == [], "the navigation in mkdocs.yml has no place for these"


def test_the_reference_shows_every_public_name() -> None:
    verbs = {f"Dataset.{name}" for name in dir(mr.Dataset) if not name.startswith("_")}
    names = {f"millrace.{name}" for name in {*mr.__all__, *verbs} - OTHER_NAMES - {"__version__", "errors"}}
    names |= {f"millrace.testing.{name}" for name in testing.__all__}
    names |= {f"millrace.compat.ray.{name}" for name in ray.__all__}
    assert "millrace.errors" in SHOWN
    assert sorted(names - SHOWN) == [], "no page of docs/reference shows these"


def test_what_tests_a_promise_is_there() -> None:
    named = re.findall(r"`([a-z]+/(?:test_[a-z_]+\.py)?)`", (ROOT / "docs" / "promises.md").read_text())
    named.remove("tests/")
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


@pytest.mark.parametrize("name", ["docstrings", "hooks"])
def test_what_makes_the_site(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("griffe")
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    assert doctest.testmod(importlib.import_module(name)).failed == 0
