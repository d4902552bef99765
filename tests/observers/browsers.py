"""A real browser without a window, for tests; skips where there is none."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Yield a driver of Chromium that logs what its console says and what its pages ask the network for."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary = os.environ.get("HEADRACE_TEST_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with its chromedriver; HEADRACE_TEST_BROWSER names another place")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield made
    finally:
        made.quit()


def look(driver: Any, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
    """Open a page in a window of that size."""
    size_of_window(driver, width, height)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get_log("performance")
    driver.get_log("browser")
    driver.get(page.as_uri())


def size_of_window(driver: Any, width: int, height: int = 900) -> None:
    """Give the window a size; a narrow one is a phone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def asked_for(driver: Any) -> list[str]:
    """Return the addresses that were asked for since a page was opened."""
    import json

    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        str(event["params"]["request"]["url"])
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def findings(driver: Any) -> list[str]:
    """Return what axe-core finds wrong with the page that is open: rule, and the first places."""
    driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    driver.execute_script((Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8"))
    found = driver.execute_async_script("axe.run(document).then(arguments[0])")
    assert len(found["passes"]) > 10
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}" for each in found["violations"]
    ]
