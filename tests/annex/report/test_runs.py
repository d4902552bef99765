"""``hr.runs``: all outputs below a place, and all runs of one output. The museum compares it with ``status``."""

from __future__ import annotations

import contextlib
import html
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.annex.cli import main
from headrace.core.stores import writing
from headrace.errors import ArgumentError, NothingMatched, OutputWriteFailed, RequirementNotMet
from headrace.testing.llm_server import FakeLLMServer
from observers.browsers import browser, findings, look
from stores.conftest import Bucket, _proxy, bucket, port, proxy, raw  # noqa: F401 - fixtures
from stores.proxy import Proxy

QUIET = {"engine": "inline", "progress": False}


def product(batch: dict, factor: int) -> dict:
    return {"x": batch["id"] * factor}


def write(out: str | Path, rows: int = 10, factor: int = 2, least: float | None = None) -> None:
    data = hr.range(rows).map_batches(product, fn_args=[factor]).accumulate(mean=hr.Mean("x"))
    if least is not None:
        data = data.require(mean=hr.at_least(least))
    with contextlib.suppress(RequirementNotMet):
        data.with_options(**QUIET).write_parquet(out)


def take_in(out: Path, number: int, most: float) -> None:
    """Take one more input file into an output."""
    (out.parent / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [number * 100]}), out.parent / "in" / f"{number}.parquet")
    data = (
        hr.read_parquet(str(out.parent / "in")).accumulate(mean=hr.Mean("id")).require(mean=hr.at_most(most))
    )
    with contextlib.suppress(RequirementNotMet):
        data.with_options(**QUIET, incremental=True).write_parquet(out)


def fail(row: dict) -> dict:
    raise ValueError("no fare\nin the second line")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with outputs in several states, at several depths, and with others' files."""
    place = tmp_path / "shop"
    write(place / "fares" / "monday")
    write(place / "fares" / "tuesday", least=99)
    with pytest.raises(hr.errors.StepError):
        hr.range(3).map(fail).with_options(**QUIET).write_parquet(place / "labels")
    write(place / "old" / "damaged")
    (place / "old" / "damaged" / "_SUCCESS").write_text('{"run": ')
    write(place / "old" / "lost")
    (place / "old" / "lost" / "_headrace" / "current").write_text("../../../etc")
    (place / "spark").mkdir()
    (place / "spark" / "_SUCCESS").touch()
    (place / "soon" / "_headrace").mkdir(parents=True)
    write(place / ".hidden")
    (place / "link").symlink_to(place / "fares")
    return place


def test_a_folder_has_a_row_for_each_output(shop: Path) -> None:
    found = hr.runs(shop)
    assert not found.history and len(found) == 6
    rows = {Path(row.output).relative_to(shop).as_posix(): row for row in found}
    assert {name: row.status for name, row in rows.items()} == {
        "fares/monday": "complete",
        "fares/tuesday": "unpublished",
        "labels": "failed",
        "old/damaged": "damaged",
        "old/lost": "damaged",
        "soon": "stopped",
    }
    monday, tuesday = rows["fares/monday"], rows["fares/tuesday"]
    assert (monday.rows, monday.rejected, monday.metrics, monday.required) == (10, 0, {"mean": 9.0}, None)
    assert len(monday.code) == 1 and monday.version == hr.__version__ and monday.ended >= monday.began > 0
    assert tuesday.metrics == {"mean": 9.0} and not tuesday.published
    assert tuesday.required is not None and tuesday.required.verdict == "not met"
    assert "mean is 9 (asked: at least 99)" in tuesday.trouble
    assert rows["labels"].trouble.endswith("raised ValueError: no fare")
    assert "_SUCCESS cannot be read" in rows["old/damaged"].trouble and "current" in rows["old/lost"].trouble
    assert "No run has begun" in rows["soon"].trouble


def test_it_is_a_table_in_a_terminal_and_a_notebook_and_as_arrow(shop: Path) -> None:
    found = hr.runs(shop)
    lines = str(found).splitlines()
    assert lines[0] == f"{shop}: {found.sentence}"
    assert lines[2].split() == ["Output", "Status", "Rows", "Rejected", "mean", "Required", "Age"]
    assert max(map(len, lines[2:9])) <= 80 and repr(found) == str(found)
    narrow = found.text(50).splitlines()
    assert any("not shown: " in line for line in narrow) and max(map(len, narrow[2:9])) < 60
    assert "<td" in found._repr_html_() and "at least 99" in found._repr_html_()
    table = found.to_arrow()
    assert table.num_rows == 6 and table["published"].to_pylist().count(True) == 1
    assert dict(table["metrics"].to_pylist()[table["status"].to_pylist().index("complete")]) == {"mean": 9.0}
    assert json.loads(json.dumps(found.data()))[0].keys() >= set(table.schema.names)


def test_one_output_has_a_row_for_each_of_its_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number, most in enumerate((1000, 1000, 60)):
        take_in(out, number, most)
    found = hr.runs(out)
    assert found.history
    assert [(row.number, row.status, row.rows, row.metrics["mean"]) for row in found] == [
        (3, "unpublished", 3, 100.0),
        (2, "complete", 2, 50.0),
        (1, "complete", 1, 0.0),
    ]
    hr.publish(out, because="a feast")
    assert [row.trouble for row in hr.runs(out)] == [
        "published although mean is 100 (asked: at most 60), because: a feast", "", "",
    ]  # fmt: skip
    events = next((out / "_headrace").glob("*/events-1.jsonl"))
    events.unlink()  # an older run of which little is known
    assert [row.rows for row in hr.runs(out)] == [3, 2, None]


def test_places_without_outputs(tmp_path: Path) -> None:
    with pytest.raises(hr.errors.ArgumentError, match="path is empty"):
        hr.runs("")
    assert str(hr.runs(tmp_path)) == f"{tmp_path}: 0 outputs"
    with pytest.raises(NothingMatched, match="There is no folder"):
        hr.runs(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="storage_options"):
        hr.runs(tmp_path, storage_options={"secret_key": "x"})
    with pytest.raises(ArgumentError, match="None is not a path"):
        hr.runs(None)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(NothingMatched, match="is a file, and not a folder"):
        hr.runs(tmp_path / "file")
    with pytest.raises(OutputWriteFailed, match="cannot be written"):
        hr.runs(tmp_path).write_report(tmp_path / "nowhere" / "page.html")


def test_the_command(shop: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["runs", str(shop), "--report", str(page)]) == 0
    said = capsys.readouterr().out
    assert f"report: {page}" in said and "fares/tuesday" in said
    assert main(["runs", str(shop), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["command"], told["place"], len(told["runs"])) == ("runs", str(shop), 6)
    with browser() as driver:
        look(driver, page)
        assert not driver.get_log("browser") and not findings(driver)
        assert len(driver.find_elements("css selector", "#outputs tbody tr")) == 6
        assert driver.find_elements("css selector", ".plot svg circle")


def test_a_store_is_asked_for_little(
    bucket: Bucket,  # noqa: F811
    proxy: Proxy,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b/deep"):
        write(f"{bucket.url}/{name}")
    write(f"{bucket.url}/c", least=99)
    for number in range(100):
        bucket.put(f"a/part-{number:05}-zzzzzzzz.parquet", b"")
    bucket.put("other/file.txt", b"")
    monkeypatch.setattr(writing, "PAGE", 40)  # a listing of all has several pages

    proxy.asked.clear()
    found = hr.runs(bucket.url)
    assert [(row.output.removeprefix(bucket.url), row.status) for row in found] == [
        ("/c", "unpublished"), ("/b/deep", "complete"), ("/a", "complete"),
    ]  # fmt: skip
    of_all = re.compile(rf"list-type=2&prefix={bucket.prefix}%2F(&|$)")
    assert sum(bool(of_all.search(asked.path)) for asked in proxy.asked) == 2  # parts are passed over
    assert sum(f"/{name}/" in asked.path for asked in proxy.asked for name in ("a", "b/deep")) == 2 * 4

    proxy.asked.clear()
    found = hr.runs(f"{bucket.url}/a/")
    assert found.history and [row.metrics for row in found] == [{"mean": 9.0}]
    assert len(proxy.asked) == 2 + 4

    hr.publish(f"{bucket.url}/c", because="all the same")
    latest = hr.runs(bucket.url)[0]
    assert latest.status == "complete" and latest.trouble.endswith("because: all the same")


def test_nobody_has_written_there(bucket: Bucket) -> None:  # noqa: F811
    with pytest.raises(NothingMatched, match="There is nothing"):
        hr.runs(f"{bucket.url}/nowhere")


def test_what_language_models_have_cost(tmp_path: Path) -> None:
    with FakeLLMServer(lambda prompt: f"{prompt} x") as server:
        model = hr.llm.Endpoint(server.url, "m", prices={"input": 1e6, "output": 0})
        data = hr.from_items([{"text": "a b"}, {"text": "c d"}]).prompt("{text}", model)
        result = data.with_options(**QUIET).write_parquet(tmp_path / "out")
    page = html.unescape(result.report.read_text())
    assert "2 rows of those that are written have an answer" in page and "How long answers are" in page
    assert "2 answers paid for: 4 tokens in, 6 out, cost 4.00" in page  # as a terminal says it
    (row,) = hr.runs(tmp_path)
    assert row.cost == 4.0 and [step for step, _ in row.models]
    versions = [_prompt_version(*how) for how in (("{x}?", "m"), ("{x}?", "n"), ("{x}!", "m"))]
    assert versions[0] == versions[1] != versions[2]  # the version is that of the prompt, not of the model
    (version,) = row.prompts
    assert len(version) == 8 and version in str(hr.runs(tmp_path))
    assert "4.00" in str(hr.runs(tmp_path)) and hr.runs(tmp_path).to_arrow()["cost"].to_pylist() == [4.0]


def _prompt_version(template: str, model: str) -> str:
    asked = hr.from_items([{"x": 1}]).prompt(template, hr.llm.Endpoint("http://localhost:1/v1", model))
    return asked._plan.steps[-1].models[0].function.parts.prompt_version
