"""The site has every page, and the reference every public name."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from typing import Any

import pytest
import yaml

import headrace as hr
from headrace import testing
from headrace.compat import ray

from .pages import ROOT

REFERENCE = ROOT / "docs" / "reference"
SHOWN = set(re.findall(r"^::: ([\w.]+)", "".join(page.read_text() for page in REFERENCE.glob("*.md")), re.M))


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
    verbs = {f"Dataset.{name}" for name in dir(hr.Dataset) if not name.startswith("_")}
    names = {
        f"headrace.{name}"
        for name in {*hr.__all__, *verbs} - {"__version__", "aggregate", "errors", "llm", "observers"}
    }
    names |= {f"headrace.llm.{name}" for name in hr.llm.__all__}
    names |= {f"headrace.aggregate.{name}" for name in hr.aggregate.__all__}
    names |= {f"headrace.observers.{name}" for name in hr.observers.OBSERVERS.ours}
    names |= {f"headrace.testing.{name}" for name in testing.__all__}
    names |= {f"headrace.compat.ray.{name}" for name in ray.__all__}
    assert "headrace.errors" in SHOWN
    assert sorted(names - SHOWN) == [], "no page of docs/reference shows these"


def test_every_error_says_a_way_out() -> None:
    classes = [each for each in vars(hr.errors).values() if inspect.isclass(each)]
    ours = {each for each in classes if issubclass(each, hr.errors.HeadraceError)} - {hr.errors.HeadraceError}
    assert len(ours) > 40
    short = [each.__name__ for each in ours if "\n\n" not in (inspect.getdoc(each) or "")]
    assert short == [], "the first paragraph of a docstring says what happened, the second what to do"


def test_what_tests_a_promise_is_there() -> None:
    named = re.findall(r"`((?:[a-z]+/)+(?:test_[a-z_]+\.py)?)`", (ROOT / "docs" / "promises.md").read_text())
    named.remove("tests/")
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


@pytest.mark.parametrize("page", ["how-it-works.md", "extending.md", "promises.md"])
def test_the_files_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", (ROOT / "docs" / page).read_text())
    assert len(named) > 15
    package = ROOT / "src" / "headrace"
    assert [
        name for name in named if not any((at / name).exists() for at in (package, ROOT, ROOT / "tests"))
    ] == []


def test_the_reference_shows_the_options_that_verbs_share(monkeypatch: pytest.MonkeyPatch) -> None:
    griffe = pytest.importorskip("griffe")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    prose = importlib.import_module("docstrings").Prose
    package = griffe.load(
        "headrace",
        search_paths=[ROOT / "src"],
        extensions=griffe.load_extensions(prose),
        allow_inspection=False,
    )
    for verb in ("map_batches", "map", "flat_map", "filter", "predict", "with_column"):
        shown = [each.name for each in package[f"Dataset.{verb}"].parameters]
        assert shown == list(inspect.signature(getattr(hr.Dataset, verb)).parameters)
        assert "num_gpus" in shown
        sections = package[f"Dataset.{verb}"].docstring.parse("numpy")
        parameters = next(each for each in sections if each.kind is griffe.DocstringSectionKind.parameters)
        assert {each.name: each.value for each in parameters.value}["num_gpus"] == "None"


@pytest.mark.parametrize("name", ["docstrings", "hooks", "versions"])
def test_what_makes_the_site(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("griffe")
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    assert doctest.testmod(importlib.import_module(name)).failed == 0
