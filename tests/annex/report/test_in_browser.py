"""The report in a real browser: it draws, asks nobody for anything, and suits phones, the dark and keyboards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.annex.report.facts import RejectedSample, facts
from headrace.annex.report.page import page
from observers.browsers import asked_for, browser, findings, look
from observers.histories import HOSTILE, recorded, success

_CONTRAST = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = (c) => { const [r, g, b] = c.map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
const names = "h1, h2, h3, p, dt, dd, td, th, caption, a:not(.skip), summary, pre, li, b, i, span";
return [...document.querySelectorAll(names)]
  .filter((e) => e.textContent.trim() && e.getClientRects().length && !e.closest(".plot")).map((e) => {
    const a = light(parse(getComputedStyle(e).color).slice(0, 3)), b = light(ground(e));
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.tagName + ": " + e.textContent.slice(0, 40)]; })
  .filter(([ratio]) => ratio < 4.5);
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    found = recorded(folder / "events", hostile=HOSTILE)
    samples = [RejectedSample("/data/a long name of a file/part-1.csv, row 3", "f", HOSTILE, HOSTILE)]
    known = facts(found, output="/data/" + "deep/" * 20, success=success(found), samples=samples)
    path = folder / "report.html"
    path.write_bytes(page(found, known))
    return path


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 360])
def test_it_draws_and_asks_for_nothing(driver: Any, report: Path, width: int, dark: bool) -> None:
    look(driver, report, width=width, height=800, dark=dark)
    assert driver.get_log("browser") == []
    assert asked_for(driver) == [report.as_uri()]
    drawn = driver.execute_script(
        "return [...document.querySelectorAll('.plot')].map((p) => p.querySelectorAll('svg').length)"
    )
    assert len(drawn) == 10 and min(drawn) >= 1
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert driver.execute_script(_CONTRAST) == []
    assert findings(driver) == []
    overlap = driver.execute_script(
        "return [...document.querySelectorAll('.plot svg')].filter((s) => s.getBoundingClientRect().right"
        " > s.closest('figure').getBoundingClientRect().right + 1).length"
    )
    assert overlap == 0


def test_a_window_that_changes_is_drawn_anew(driver: Any, report: Path) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    width = "return document.querySelector('[data-chart=throughput] svg').getBoundingClientRect().width"
    look(driver, report, width=1200)
    wide = driver.execute_script(width)
    metrics = {"width": 500, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    drawn = "return Number(document.querySelector('[data-chart=throughput]').dataset.width)"
    WebDriverWait(driver, 5).until(lambda driver: driver.execute_script(drawn) < 500 < wide)


def test_a_keyboard_gets_everywhere(driver: Any, report: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    look(driver, report)
    names = []
    for _ in range(60):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        names.append(
            driver.execute_script(
                "const e = document.activeElement; return [e.tagName, e.getAttribute('aria-label') ?? e.textContent,"
                " getComputedStyle(e).outlineStyle]"
            )
        )
    assert names[0][:2] == ["A", "Skip to the report"]
    assert {"A", "SUMMARY", "DIV"} <= {name for name, *_ in names}
    assert all(outline != "none" for name, _, outline in names if name != "BODY")
    assert all(words.strip() for name, words, _ in names if name != "BODY")


def test_who_listens_hears_names(driver: Any, report: Path) -> None:
    look(driver, report)
    driver.execute_cdp_cmd("Accessibility.enable", {})
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored")
    ]
    for role in ("image", "region", "navigation", "table", "figure", "DisclosureTriangle"):
        found = [name for kind, name in named if kind == role]
        assert found, role
        assert role == "figure" or all(found), role
    levels = driver.execute_script(
        "return [...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))"
    )
    assert levels[0] == 1 and all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_numbers_are_there_without_scripts(driver: Any, report: Path) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        look(driver, report)
        text = driver.find_element("tag name", "body").get_attribute("textContent")
        assert "1,600 rows in" in text and "Rows read per second" in text
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
