"""The built site in a real browser: no kind of page shuts anybody out. ``make docs`` builds it and runs this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.observers.browsers import browser, findings, look

from later import Later, needs

from .pages import ROOT

SITE = ROOT / "build" / "site"
PAGES = (
    "index",
    "tutorial",
    "types",
    "faq",
    "performance",
    "comparison",
    "coming-from-ray",
    "reference/index",
)

ActionChains = Later("selenium.webdriver:ActionChains")
WebDriverWait = Later("selenium.webdriver.support.ui:WebDriverWait")
pytestmark = [needs("selenium"), pytest.mark.site]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as made:
        yield made


def test_the_search_finds_pages_of_a_site_in_a_folder(driver: Any) -> None:
    look(driver, SITE / "index.html", width=1400)
    driver.find_element("css selector", ".md-search__input").click()
    ActionChains(driver).send_keys("rejected rows").perform()
    found = WebDriverWait(driver, 30).until(
        lambda _: driver.find_elements("css selector", "a.md-search-result__link")
    )
    assert any("errors.html" in str(each.get_attribute("href")) for each in found)


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_pages_of_every_kind_are_for_everybody(driver: Any, width: int, dark: bool) -> None:
    wrong = {}
    for name in PAGES:
        page = SITE / f"{name}.html"
        assert page.exists(), "build the site first: make docs"
        look(driver, page, width=width, dark=dark)
        driver.execute_script("localStorage.clear()")  # the site remembers which colours were wanted
        look(driver, page, width=width, dark=dark)
        driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        scheme = driver.execute_script("return document.body.dataset.mdColorScheme")
        assert scheme == ("slate" if dark else "default")
        found = findings(driver)
        if driver.execute_script("return document.documentElement.scrollWidth") > width:
            found.append("it is wider than the window")
        if found:
            wrong[name] = found
    assert wrong == {}
