"""The page: what it says, that it adds up, that nothing in it is taken for code, and how big it gets."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.annex.report import running
from headrace.annex.report import template as templates
from headrace.annex.report.facts import Facts, History, RejectedSample, facts, history
from headrace.annex.report.follow import RunStatus
from headrace.annex.report.head import strip
from headrace.annex.report.page import comparison_page, page
from headrace.core.events import MachineWork, MetricsCounted
from headrace.observers.record_reader import lines_of
from headrace.observers.summary import Part
from observers.histories import HOSTILE, recorded, success


class Reader(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.charts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if tag not in ("meta", "link", "input", "br"):
            self._open.append(tag)
        for name, found in (("id", self.ids), ("href", self.links), ("data-chart", self.charts)):
            if given.get(name):
                found.append(str(given[name]))
        assert not any(name.startswith("on") for name in given)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self._open and "style" not in self._open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(
            "".join(
                f" {word}" if not word.startswith((":", ",", ".")) else word for word in self.words
            ).split()
        )


def made(found: History, **given: Any) -> tuple[Reader, Facts, str]:
    known = facts(found, output="/out", **given)
    text = page(found, known).decode()
    return Reader(text), known, text


def test_everything_is_there(tmp_path: Path) -> None:
    found = recorded(tmp_path / "events")
    reader, known, _ = made(
        found, success=success(found), samples=[RejectedSample("a.csv, row 3", "f", "bad", "{'x': 1}")]
    )
    assert known.status == "complete"
    text = reader.text
    for words in (
        "Complete: 1,600 rows in 10.5 s, 200 rejected.",
        "Workers were idle 32 % of the time.",
        "2,000 read − 200 filtered − 200 rejected = 1,600 written",
        "accounted for, exactly once",
        "worker lost",
        "ValueError",
        "a.csv, row 3",
        "{'x': 1}",
        "source Parquet",
        "What next",
        "Where the time went",
        "between 0.7 and 0.9",
    ):
        assert words in text, words
    assert {"throughput", "timeline", "memory"} <= set(reader.charts)
    assert len(reader.charts) == 10 and len(set(reader.ids)) == len(reader.ids)
    assert all(link[1:] in reader.ids for link in reader.links if link.startswith("#"))
    assert reader.tags.count("h1") == 1 and reader.tags.count("main") == 1


def test_nobody_is_asked_for_anything(tmp_path: Path) -> None:
    found = recorded(tmp_path / "events")
    reader, _, text = made(found)
    assert [link for link in reader.links if not link.startswith("#")] == ["data:,"]
    assert not {"img", "iframe", "object", "form"} & set(reader.tags)
    assert "default-src 'none'" in text and "'unsafe-inline'" not in text.split("script-src")[1].split(";")[0]


def test_what_others_wrote_is_text(tmp_path: Path) -> None:
    usual, _, _ = made(recorded(tmp_path / "usual"))
    found = recorded(tmp_path / "events", hostile=HOSTILE)
    samples = [RejectedSample(HOSTILE, HOSTILE, HOSTILE, HOSTILE)] * 2
    reader, _, text = made(found, samples=samples)
    text.encode("utf-8")
    assert reader.tags.count("script") == usual.tags.count("script") == 2
    assert "alert(1)</script>" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None and "<" not in data[1]
    assert HOSTILE[:30] in json.loads(data[1])["timeline"]["stages"][0]


def test_the_template_is_one_of_jinja2_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine can be replaced by the one that everybody knows."""
    jinja2 = pytest.importorskip("jinja2")
    found = recorded(tmp_path / "events", hostile=HOSTILE)
    samples = [RejectedSample(HOSTILE, HOSTILE, HOSTILE, HOSTILE)] * 2
    ours, known, _ = made(found, samples=samples, success=success(found))
    env = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )

    def rendered(template: Path, **values: Any) -> str:
        return str(env.from_string(template.read_text()).render(values))

    monkeypatch.setattr(templates, "rendered", rendered)
    theirs = Reader(page(found, known).decode())
    assert (theirs.tags, theirs.text) == (ours.tags, ours.text)


def test_it_stays_small_however_big_the_run(tmp_path: Path) -> None:
    found = recorded(tmp_path / "events", shards=40_000, workers=1_000)
    assert (tmp_path / "events").stat().st_size < 5 << 20
    _, _, text = made(found)
    assert len(text.encode()) < 3_000_000
    timeline = running.timeline_figure(found)
    assert timeline is not None and timeline["all"] == 1001
    assert len(timeline["workers"]) <= running.TRACKS
    assert len(timeline["stretches"]) <= running.SPANS


def line(at: float, event: str, **fields: Any) -> dict[str, Any]:
    return {"at": at, "event": event, **fields}


STARTED = {"shards": 10, "shards_done": 0, "rows_done": 0, "rows": 1000, "workers": 1}
RESUMED = {"shards": 10, "shards_done": 4, "rows_done": 400, "rows": 1000, "workers": 1}


def killed_and_resumed() -> History:
    return history(
        [
            line(100.0, "described", elapsed=1.0),
            line(100.0, "started", **STARTED),
            line(103.0, "committed", shards=4, read=400, written=400),
            line(104.0, "progress", rows=460, shards=4),
            line(9000.0, "described", elapsed=0.5, host="other"),
            line(9000.0, "started", **RESUMED),
            line(9002.0, "committed", shards=6, read=600, written=600),
            line(9003.0, "finished", error="", ledger={"read": 1000, "written": 1000}, seconds=3.5),
        ]
    )


def test_time_stands_still_between_two_drivers() -> None:
    found = killed_and_resumed()
    assert found.seconds == 5.0 + 3.5
    assert found.progress[-1] == (7.5, 1000, 10)
    assert [driver.error for driver in found.drivers] == [None, ""]
    figure = running.throughput_figure(found)
    assert figure is not None and figure["resumed"] == [5.0]
    done = sum((end - start) * rate for start, end, rate, _ in figure["points"])
    assert done == pytest.approx(1000, rel=0.01)
    again = sum((end - start) * twice for start, end, _, twice in figure["points"])
    assert again == pytest.approx(60, rel=0.01)  # what the first driver had read and not committed
    reader, _, _ = made(found)
    assert "killed, or at work" in reader.text


@pytest.mark.parametrize(
    ("error", "alive", "status", "words"),
    [
        (None, True, "under way", "Under way for 3.0 s, 40 % done: 390 rows written so far."),
        (None, False, "stopped", "Stopped after 3.0 s at 40 %: its driver was killed; 390 rows are kept."),
        ("StepError: <b>bad</b>", False, "failed", "StepError: <b>bad</b>"),
        ("interrupted", False, "interrupted", "Interrupted after 4.0 s at 40 %; 390 rows are kept."),
    ],
)
def test_a_run_that_is_not_complete_says_so(error: str | None, alive: bool, status: str, words: str) -> None:
    lines = [
        line(100.0, "described", run="r1"),
        line(100.0, "started", **STARTED),
        line(103.0, "committed", shards=4, read=400, written=390, rejected=10),
    ]
    if error is not None:
        lines.append(
            line(104.0, "finished", error=error, ledger={"read": 400, "written": 390, "rejected": 10})
        )
    reader, known, _ = made(history(lines), alive=alive)
    assert known.status == status and known.ledger.written == 390
    assert words in reader.text and "390 rows" in reader.text and "4 of 10" in reader.text


def test_a_record_that_is_lost_or_damaged_still_makes_a_page() -> None:
    for record in (
        b"",
        b"\x00\xff\n{]\n[]\n{}\n",
        b"[" * 100_000 + b"]" * 100_000,
        b'{"at":"x","event":1}\n{"at":1,"event":"worked","stage":"0"}\n',
    ):
        found = history(lines_of(record))
        reader, known, _ = made(found, success={"run": "r1", "ledger": {"read": 5, "written": 5}})
        assert "Complete: 5 rows" in reader.text and known.status == "complete"


@pytest.mark.parametrize("value", [None, 5, -1e300, "x", [None], {"a": None}])
def test_values_that_make_no_sense_still_make_a_page(tmp_path: Path, value: Any) -> None:
    recorded(tmp_path / "events")
    told = [json.loads(each) for each in (tmp_path / "events").read_bytes().splitlines()]
    kinds = {each["event"]: i for i, each in enumerate(told)}
    for i in kinds.values():
        for name in set(told[i]) - {"at", "event"}:
            changed = [*told[:i], told[i] | {name: value}, *told[i + 1 :]]
            found = history(changed)
            known = facts(found, output="/out")
            assert b"<h1>" in page(found, known)
            json.dumps(RunStatus(found, known, tmp_path).data())
    kept = told[kinds["described"]] | {"stages": [{"name": "s", "workers": value}]}
    assert "<h1>" in made(history([kept, *told[1:]]))[2]


@pytest.mark.parametrize(
    "chart", [{"kind": "roc"}, {"kind": "histogram", "edges": 3}, {"kind": "confusion", "labels": None}]
)
def test_a_chart_of_ones_own_that_lacks_something_costs_no_page(
    tmp_path: Path, chart: dict[str, Any]
) -> None:
    found = recorded(tmp_path / "events")
    found.metrics = MetricsCounted({"mine": {"a": 0.25}}, {}, {"mine": chart})
    reader, _, _ = made(found, success=success(found))
    assert "mine" in reader.text and "0.25" in reader.text


def test_it_stays_small_however_many_metrics(tmp_path: Path) -> None:
    found = recorded(tmp_path / "events")
    wide = {f"group {i}": {f"column {j}": "é" * 200 for j in range(20)} for i in range(50)}
    found.metrics = MetricsCounted({f"metric {i}": wide for i in range(20)}, {}, {})
    reader, _, text = made(found, success=success(found))
    assert len(text.encode()) < 3_000_000
    assert "A part of this page is left out" in reader.text and "Complete: 1,600 rows" in reader.text


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    runs = []
    for name, shards in (("one", 20), ("two", 10)):
        found = recorded(tmp_path / name, shards=shards, hostile=HOSTILE)
        runs.append((found, facts(found, output=f"/{name}", success=success(found))))
    reader = Reader(comparison_page(runs[0], runs[1]).decode())
    assert "The first run was 2 times as fast: 190 rows/s, not 95." in reader.text
    assert "Rows written 1,600 800 −50 %" in reader.text and "auc 0.9 0.9 +0" in reader.text
    assert "Command, inputs, models, versions and options are the same." in reader.text
    assert reader.tags.count("script") == 2


def test_the_values_of_a_row_are_hidden_until_asked_for() -> None:
    failed = line(
        104.0, "finished", error="StepError: f raised: It was working on a.csv, row 3.", row="x='secret'"
    )
    found = history([line(100.0, "described", run="r1"), failed])
    assert "secret" not in made(found)[2] and "values are hidden" in made(found)[0].text
    assert "The row: x='secret'" in made(found, values=True)[0].text


def test_the_page_of_a_fleet_says_what_its_machines_did(tmp_path: Path) -> None:
    """The machine that made the output of their rows had none to read itself."""
    found = recorded(tmp_path / "events")
    driver = found.drivers[0]
    assert driver.started is not None
    driver.started = msgspec.structs.replace(driver.started, rows_done=found.read)
    assert found.average(found.at) < 1
    found.machines = tuple(MachineWork(name, "box", 4, 800, 700, 0, 2.0) for name in ("one", "two"))
    known = facts(found, output="out", success=success(found))
    text = Reader(page(found, known).decode()).text
    assert "Machines that worked on this output" in text and "Rows per second" in text
    status = RunStatus(found, known, None)
    assert status.rows_per_second == pytest.approx(found.read / found.elapsed(found.at))
    assert [name for name, _ in status.lines() if name in ("workers", "machine")] == ["machine", "machine"]


def test_a_step_keeps_its_colour_while_shares_change() -> None:
    def colours(*shares: float) -> dict[str, str]:
        parts = [
            Part("step", name, share, share, at)
            for at, (name, share) in enumerate(zip("ba", shares, strict=True))
        ]
        return {
            each["name"]: each["color"]
            for each in strip(sorted(parts, key=lambda part: -part.share))["parts"]
        }

    assert colours(0.4, 0.6) == colours(0.6, 0.4) == {"b": "c1", "a": "c5"}
