"""Photographs the report of the tutorial's run, as a browser shows it: docs/assets/report.png.

    python tools/screens.py

Needs Chromium (CHROMIUM names another one than `chromium`) and the extra sklearn; the site is built without either.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "assets" / "report.png"
_FILE = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def report_of_the_tutorial(folder: Path) -> Path:
    """Run the tutorial's programs in a folder and return the report."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HEADRACE_PROGRESS": "0"}
    for name, text in _FILE.findall(page):
        (folder / name).write_text(text)
        subprocess.run([sys.executable, name], cwd=folder, env=env, check=True)
    return next(folder.glob("read/_headrace/*/report.html"))


def photograph(page: Path, to: Path, width: int = 1100, height: int = 900) -> None:
    """Write what Chromium shows of a page's top."""
    subprocess.run(
        [
            os.environ.get("CHROMIUM", "chromium"),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(
                f"--window-size={width},{height}",
                "--virtual-time-budget=3000",
                f"--screenshot={to}",
                page.as_uri(),
            ),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as made:
        photograph(report_of_the_tutorial(Path(made)), PICTURE)


if __name__ == "__main__":
    main()
