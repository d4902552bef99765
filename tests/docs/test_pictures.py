"""Pictures and tables are what figures and code say, and pictures ask for nothing from elsewhere."""

from __future__ import annotations

import doctest
import importlib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT

SVGS = sorted((ROOT / "docs" / "assets").glob("*.svg"))


def _tool(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module(name)


def test_charts_and_table_are_what_the_figures_say(monkeypatch: pytest.MonkeyPatch) -> None:
    charts = _tool("charts", monkeypatch)
    assert doctest.testmod(charts).failed == 0
    for path, text in charts.made().items():
        assert path.read_text() == text, f"{path.name}: python tools/charts.py draws it anew"


def test_a_contender_that_failed_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    charts = _tool("charts", monkeypatch)
    one = {"job": "tiny", "failure": None, "peaks": [2**20], "rounds": [{"wall_s": 2.0}]}
    results = [{**one, "contender": "hand"}, {**one, "contender": "ray", "failure": "it broke", "rounds": []}]
    assert [bar.name for bar in charts.bars({"results": results})] == ["hand"]


def test_the_table_of_types_is_what_the_code_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pandas", minversion="3")  # whose dtype of texts the page shows
    types = _tool("types_table", monkeypatch)
    page = types.PAGE.read_text()
    assert types.written(page) == page, "python tools/types_table.py writes the table anew"


def test_the_table_of_outputs_is_what_the_code_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _tool("asked_table", monkeypatch)
    page = asked.PAGE.read_text()
    assert asked.written(page) == page, "python tools/asked_table.py writes the table anew"


@pytest.mark.parametrize("path", SVGS, ids=lambda path: path.name)
def test_a_picture_stands_alone(path: Path) -> None:
    root = ET.parse(path).getroot()
    for element in root.iter():
        for name, value in element.attrib.items():
            assert name.rpartition("}")[2] != "href" and "url(http" not in value
        assert element.tag.rpartition("}")[2] not in ("script", "image", "foreignObject")
    assert "@import" not in path.read_text() and "url(http" not in path.read_text()


def test_a_terminal_is_drawn_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _tool("terminal", monkeypatch)
    film = terminal.Film(40)
    film.show(1.0, [terminal.prompt("run <it>")])
    film.show(0.5, [terminal.prompt("run <it>")])  # the same: no further frame
    film.show(1.5, [terminal.prompt("run <it>"), (("half", "red", True),)])
    film.show(1.0, [terminal.prompt("run <it>"), (("done", "green", False),)])
    assert [at for at, _ in film.frames] == [0.0, 1.5, 3.0] and film.seconds == 4.0
    root = ET.fromstring(terminal.svg(film, "A & B", rows=3, hold=6.0))
    texts = {
        "".join(each.itertext()): each.get("opacity")
        for each in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert texts == {
        "$ run <it>": None,
        "half": "0",
        "done": None,
    }  # what stands at the end is seen without movement
    style = "".join(each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}style"))
    assert "15.00%{opacity:1}30.00%{opacity:0}" in style
