"""Names, errors and values that try to run as HTML, to move a terminal, or to be seen where none may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.annex.cli import main
from headrace.annex.report.facts import History
from headrace.annex.report.follow import Follower
from headrace.annex.report.live import Pages
from headrace.annex.report.serving import Server
from observers.browsers import browser, look

SECRET = "SECRET-"
RUNS = (
    "<img src=x onerror=\"window.taken='%s'\"><script>window.taken='%s'<\\script>\x1b]0;x\x07\x1b[31m\u202e'"
)
QUIET = {"engine": "inline", "progress": False, "on_error": "reject"}


def evil(name: str) -> str:
    """Return text that runs if it is taken for HTML or for a terminal's escape, and says where it came from."""
    return RUNS % (name, name)


def a_run(place: Path, name: str, **options: Any) -> Any:
    """Write an output in which all that has a name has such a one."""
    source = place / f"{evil('file')}.parquet"
    ids = np.arange(100)
    columns = {
        "id": ids,
        evil("column"): [f"{SECRET}{evil('value')}{i % 7}" for i in ids],
        "label": [f"{SECRET}{evil('label')}{i % 3}" for i in ids],
        "guess": [f"{SECRET}{evil('label')}{i % 2}" for i in ids],
    }
    pq.write_table(pa.table(columns), source)

    def picky(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] % 10 == 3:
            raise type(evil("type"), (Exception,), {})(f"{SECRET}{evil('message')}")
        return row

    picky.__qualname__ = picky.__name__ = evil("function")
    data = hr.read_parquet(str(source)).map(picky)
    metrics = {
        evil("metric"): hr.Mean("id"),
        "by": hr.By("label", hr.Mean("id")),
        "confusion": hr.ConfusionMatrix(label="label", prediction="guess"),
    }
    return data.accumulate(**metrics).with_options(**QUIET | options).write_parquet(place / name)


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as made:
        yield made


def is_harmless(driver: Any) -> bool:
    """Say whether nothing of a name ran in the page that is open, and all of it is text."""
    made = "return [window.taken, document.querySelectorAll('img[src=x]').length, document.body.textContent]"
    taken, images, text = driver.execute_script(made)
    assert taken is None and images == 0
    return "<img src=x" in text and not any(escape in text for escape in "\x1b\x07\u202e")


def test_no_name_or_value_runs_in_a_page(driver: Any, tmp_path: Path) -> None:
    first, second = (a_run(tmp_path, f"{name} {evil('output')}".replace("/", "")) for name in ("one", "two"))
    look(driver, Path(first.report))
    assert is_harmless(driver)
    server = Server(lambda: Pages(Follower(first.path, kind=History)))
    try:
        driver.get(server.address)
        assert is_harmless(driver) and SECRET in driver.find_element("id", "predictions").text
    finally:
        server.close()
    runs, changes = hr.runs(tmp_path), hr.compare(first.path, second.path, on="id")
    pages = [runs.write_report(tmp_path / "runs.html"), changes.write_report(tmp_path / "compare.html")]
    cards = [hr.read_parquet(str(first.path)), first, runs, changes, hr.verify(first.path)]
    (tmp_path / "cells.html").write_text("<!doctype html>" + "".join(each._repr_html_() for each in cards))
    main(["report", str(first.path), str(second.path), "--to", str(tmp_path / "both.html")])
    for page in (*pages, tmp_path / "cells.html", tmp_path / "both.html"):
        look(driver, page)
        assert is_harmless(driver), page
        assert [each for each in driver.get_log("browser") if each["level"] == "SEVERE"] == []


@pytest.mark.parametrize("values", [False, True])
def test_no_value_of_a_row_is_in_a_page_that_may_show_none(
    values: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metrics by group are named by values, too."""
    first, second = (a_run(tmp_path, name, show_data=values) for name in ("one", "two"))
    live = Pages(Follower(first.path, kind=History)).page()[0].decode()
    main(["report", str(first.path), str(second.path), "--to", str(tmp_path / "both.html")])
    pages = (
        Path(first.report).read_text(),
        live,
        (tmp_path / "both.html").read_text(),
        capsys.readouterr().out,
    )
    for page in pages:
        assert (SECRET in page) is values and "49.7" in page
    hidden = "Hidden, as they may name values of rows: by, confusion."
    assert [hidden in page for page in pages] == [not values, not values, False, False]
    main(["report", str(first.path), "--values", "--to", str(tmp_path / "values.html")])
    assert SECRET in (tmp_path / "values.html").read_text()


@pytest.mark.parametrize(
    "command", ["rejected", "runs", "watch", "status", "verify", "inspect", "report", "compare"]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_no_command_passes_on_an_escape(
    command: str, as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (a_run(tmp_path, f"{name} {evil('output')}".replace("/", "")) for name in ("one", "two"))
    outputs = [str(first.path)]
    if command in ("report", "compare"):
        outputs.append(str(second.path))
    capsys.readouterr()
    key = ["--on", "id"] if command == "compare" else []
    assert main([command, *outputs, *key, *(["--json"] if as_json else [])]) in (0, 1)
    said, complained = capsys.readouterr()
    assert said and not any(escape in said + complained for escape in "\x1b\x07\u202e")
    assert not as_json or json.loads(said)
