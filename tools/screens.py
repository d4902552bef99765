"""Photographs what a browser shows: the report of the tutorial's run, and the first cells of the page on notebooks.

    python tools/screens.py                 # docs/assets/report.png and docs/assets/notebook.png

Needs Chromium (CHROMIUM names another one than `chromium`) and the extras sklearn and test; the site needs neither.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"
_FILE = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_CELL = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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


def notebook(folder: Path, cells: int = 2) -> Path:
    """Run the first cells of the page on notebooks with a kernel, and return what a browser would show."""
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter
    from nbformat.v4 import new_code_cell, new_notebook

    texts = _CELL.findall((ROOT / "docs" / "notebooks.md").read_text())[:cells]
    book = new_notebook(cells=[new_code_cell(text.rstrip("\n")) for text in texts])
    NotebookClient(book, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    page = folder / "notebook.html"
    page.write_text(
        HTMLExporter(require_js_url="", mathjax_url="").from_notebook_node(book)[0], encoding="utf-8"
    )
    return page


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as made:
        photograph(report_of_the_tutorial(Path(made)), ASSETS / "report.png")
    with tempfile.TemporaryDirectory(prefix="headrace-") as made:
        photograph(notebook(Path(made)), ASSETS / "notebook.png", height=520)


if __name__ == "__main__":
    main()
