"""What a notebook shows: by a real kernel, and its page in a real browser."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pickle
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.events import RunStarted, WorkerReady
from headrace.core.tables import Link, card
from headrace.observers.progress import progress_html
from headrace.observers.run_state import RunState
from headrace.sources.range import RangeSource
from observers.browsers import browser, look
from observers.histories import described

CELLS = {
    "begin": """
import os, signal
import headrace as hr
from headrace.observers import progress
progress.PATIENCE, progress._FRAME = -1.0, 0.0
frames, update = [], progress.NotebookView._update
def noted(view, html, words):
    frames.append((html, words))
    update(view, html, words)
progress.NotebookView._update = noted
def picky(row):
    if row["id"] % 20_000 == 7:
        raise ValueError("<script>document.title = 'run'</script>")
    return row
class Interrupts:
    def __init__(self):
        self.commits = 0
    def on_event(self, event):
        self.commits += type(event).__name__ == "ShardCommitted"
        if self.commits == 2:
            self.commits = 1_000  # once
            os.kill(os.getpid(), signal.SIGINT)
data = hr.range(40_000).filter(lambda row: row["id"] != 3).map(picky)
data = data.with_options(on_error="reject", shard_rows=1_000, workers=2, durability="process")
""",
    "interrupted": "data.with_options(observers=[Interrupts()]).write_parquet('out')",
    "after": "import psutil; print(len(psutil.Process().children()), len(frames), frames[-1], frames[-2][1])",
    "again": "result = data.write_parquet('out')\nresult",
    "dataset": "hr.read_parquet('out').rename_columns({'id': '<b>id</b>'}).filter(lambda row: 1 / 0)",
    "images": """
import numpy as np
hr.from_items([{"<i>": "<script>document.title = 'run'</script>", "a": np.full((100, 150, 3), i, np.uint8)}
               for i in range(2)]).show()
""",
    "verified": "hr.verify('out')",
    "explain": "data.explain()",
    "stats": "data.stats()",
    "executor": "executor = hr.connect(workers=1)\nreference = executor.put(bytes(100_000))\nexecutor",
    "reference": "reference",
    "shut": "executor.shutdown()\nexecutor",
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook, executed by a kernel, by the names of its cells; and its folder."""
    client = pytest.importorskip("nbclient")
    if importlib.util.find_spec("ipykernel") is None:
        pytest.skip("there is no ipykernel")
    from nbformat.v4 import new_code_cell, new_notebook

    folder = tmp_path_factory.mktemp("notebook")
    book = new_notebook(cells=[new_code_cell(text, id=name) for name, text in CELLS.items()])
    settings = {"allow_errors": True, "resources": {"metadata": {"path": str(folder)}}}
    client.NotebookClient(book, kernel_name="python3", **settings).execute()
    for name in [name for name in sys.modules if name.partition(".")[0] == "ipykernel"]:
        del sys.modules[name]  # a program that has imported it is a notebook: this one is none
    outputs = {name: cell.outputs for name, cell in zip(CELLS, book.cells, strict=True)}
    assert outputs["begin"] == [], outputs["begin"]
    return SimpleNamespace(book=book, outputs=outputs, folder=folder)


def streams(outputs: list[Any]) -> dict[str, str]:
    return {each.name: each.text for each in outputs if each.output_type == "stream"}


def shown(outputs: list[Any], kind: str = "text/html") -> str:
    (found,) = [each.data[kind] for each in outputs if each.output_type == "execute_result"]
    return str(found).replace("&#x2f;", "/")  # which the engine escapes, too


def test_a_cell_that_is_interrupted_ends_its_workers_and_says_how_to_go_on(executed: Any) -> None:
    outputs = executed.outputs["interrupted"]
    said = streams(outputs)
    assert "rows kept in" in said["stdout"] and "Run the same cell again to go on." in said["stdout"]
    assert [each.ename for each in outputs if each.output_type == "error"] == ["KeyboardInterrupt"]
    children, frames, last, *before = streams(executed.outputs["after"])["stdout"].split(" ", 3)
    assert children == "0" and int(frames) >= 3
    assert last == "('',"  # the bar is gone
    assert " of 40,000 rows" in before[-1]


def test_the_cell_again_goes_on(executed: Any) -> None:
    outputs = executed.outputs["again"]
    said = streams(outputs)
    assert said["stdout"].startswith("40,000 rows in, 39,997 out, 1 filtered, 2 rejected (")
    assert "stderr" not in said
    html = shown(outputs)
    assert "40,000 in, 39,997 out, 2 rejected" in html and "ValueError: &lt;script&gt;" in html
    assert "row 20,007" in html and 'href="out/_headrace/' in html
    (bar,) = [each for each in outputs if each.output_type == "display_data"]
    assert dict(bar.data) == {"text/html": "", "text/plain": ""}  # one, in its place, and gone in the end


@pytest.mark.annex
def test_values_are_shown_in_words(executed: Any) -> None:
    html = shown(executed.outputs["dataset"])
    assert f"Parquet: {executed.folder}/out" in html and "&lt;b&gt;id&lt;/b&gt;" in html and "int64" in html
    assert "2. filter(" in html
    assert shown(executed.outputs["explain"], "text/plain").startswith("source   Range")
    assert shown(executed.outputs["stats"], "text/plain").startswith("40,000 rows in, 39,997 out")
    assert shown(executed.outputs["executor"], "text/plain").endswith(", state open>")
    assert "97.7 KiB" in shown(executed.outputs["reference"])
    assert shown(executed.outputs["shut"], "text/plain").endswith(", state shut down>")


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as made:
        yield made


@pytest.mark.annex
@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_in_a_browser(driver: Any, executed: Any, width: int) -> None:
    exporter = pytest.importorskip("nbconvert").HTMLExporter(require_js_url="", mathjax_url="")
    page = Path(executed.folder, "page.html")
    page.write_text(exporter.from_notebook_node(executed.book)[0], encoding="utf-8")
    look(driver, page, width=width)
    assert driver.execute_script("return document.querySelectorAll('div.headrace').length") == 5
    assert (
        driver.execute_script("return document.querySelectorAll('.headrace script, .headrace b').length") == 0
    )
    assert driver.title != "run"
    sizes = (
        "return [...document.querySelectorAll('.headrace img')].map(i => [i.naturalWidth, i.naturalHeight])"
    )
    assert driver.execute_script(sizes) == [[50, 34], [50, 34]]
    link = driver.find_element("css selector", ".headrace a")
    assert link.text == "report.html" and Path(link.get_attribute("href").removeprefix("file://")).exists()


def test_nothing_of_the_users_runs_for_a_look() -> None:
    class Secretive(RangeSource):
        def schema(self) -> Any:
            raise AssertionError("asked")

    calls: list[int] = []
    data = hr.Dataset.from_source(Secretive(1)).map_batches(lambda batch: calls.append(1) or batch)
    html = data._repr_html_()
    assert "Secretive" in html and "1. map_batches(" in html and calls == []
    many = pa.table({f"c{i}": [i] for i in range(50)})
    assert "and 20 more columns" in hr.from_arrow(many)._repr_html_()


def test_rows_that_were_taken_are_a_list_and_a_table() -> None:
    image = np.zeros((10, 10, 3), np.uint8)
    rows = hr.from_items([{"id": i, "city": "<b>", "image": image} for i in range(3)]).take(2)
    assert isinstance(rows, list) and [row["id"] for row in rows] == [0, 1]
    assert hr.range(3).take(2) == [{"id": 0}, {"id": 1}] == json.loads(json.dumps(hr.range(3).take(2)))
    assert pickle.loads(pickle.dumps(hr.range(3).take(1))) == [{"id": 0}]
    html = rows._repr_html_()  # type: ignore[attr-defined]
    assert html.count("<img") == 2 and "&lt;b&gt;" in html and "uint8 (10, 10, 3)" in html
    assert "no rows" in hr.range(3).take(0)._repr_html_()  # type: ignore[attr-defined]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"<i>no</i>")
    html = hr.read_parquet(str(tmp_path / "bad.parquet"))._repr_html_()
    assert "not known:" in html and "<i>" not in html


def test_cards_escape_all(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>\x1b[2J\"'&"
    html = card(evil, [(evil, evil), ("a", Link(evil, tmp_path / evil))])
    assert "<img" not in html and "\x1b" not in html and html.count("&lt;img") == 4


def test_progress_escapes_all() -> None:
    evil, state = "<img src=x onerror=alert(1)>\x1b[2J", RunState()
    state.add(described((f"f({evil})", 1), ("predict(Net)", 1)), 100.0)
    state.add(RunStarted("r1", "/out", 10, 0, 0, 1000, 2), 100.0)
    state.add(WorkerReady(0, 0.1), 101.0)
    state.add(WorkerReady(1, 0.1), 101.0)
    html = progress_html(state, 102.0, None)
    assert "<img" not in html and "\x1b" not in html and "&lt;img" in html and "running" in html


def test_a_result_in_an_object_store_is_shown(tmp_path: Path) -> None:
    result = hr.range(3).with_options(engine="inline", progress=False).write_csv(tmp_path / "out")
    place = "s3://bucket/out"
    there = dataclasses.replace(result, path=place, report=f"{place}/report.html", rejected=1)
    html = unescape(there._repr_html_())
    assert f"{place}/report.html" in html and "<a " not in html and "1 rejected rows" in html
