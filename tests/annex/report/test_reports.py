"""Records, reports and states of real runs: whole, resumed, killed, failed; and who watches them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import sys
import time
import urllib.request
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import forked
import headrace as hr
from api.data import numbers
from headrace.annex.report import writing as reporting
from headrace.annex.report.follow import Follower, RunStatus
from headrace.annex.report.page import page as page_of
from headrace.errors import ArgumentError, JournalDamaged, NothingMatched, StepError
from headrace.output.places.place import place_at
from headrace.session.event_bus import environment_observers


def record(out: Path) -> list[dict[str, Any]]:
    (path,) = out.glob("_headrace/*/events.jsonl")
    return [json.loads(line) for line in path.read_text().rstrip().split("\n")]


def page(result: hr.Result) -> str:
    return result.report.read_text(encoding="utf-8")


def words(text: str) -> str:
    """Return what a page says, without its markup, styles and scripts."""
    text = re.sub(r"<(script|style).*?</\1>", " ", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def fails_on_five(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] % 100 == 5:
        raise ValueError(f"no: {row['id']}")
    return row


def test_a_run_leaves_a_record_and_a_report(tmp_path: Path, engine: str) -> None:
    data = numbers(1000).filter(lambda row: row["id"] % 4 > 0).map(fails_on_five)
    data = data.accumulate(mean=hr.Mean("id"), hist=hr.Histogram("id", edges=[0, 500, 1000]))
    data = data.with_options(engine=engine, on_error="reject")
    result = data.write_parquet(tmp_path / "out")
    assert result.report == result.path / "_headrace" / result.run / "report.html"
    told = words(page(result))
    for each in (
        ": 740 rows in ",
        "1,000 read",
        "250 filtered",
        "10 rejected",
        "= 740",
        "ValueError",
        "no: 5",
        "headrace report OUT --values shows them",
    ):
        assert each in told, each
    assert "{&#x27;id&#x27;: 5" not in told and "metrics" in page(result)
    assert stat.S_IMODE(result.report.stat().st_mode) == 0o600
    lines = record(result.path)
    assert [line["event"] for line in lines[:2]] == ["described", "started"] and lines[-1][
        "event"
    ] == "finished"
    assert sum(line["read"] for line in lines if line["event"] == "committed") == 1000
    assert sum(line["shards"] for line in lines if line["event"] == "committed") == 10
    assert {line["event"] for line in lines} >= {"worker ready", "worked", "memory", "progress", "metrics"}
    assert lines[0]["options"]["on_error"] == "reject"
    again = data.write_parquet(tmp_path / "out")
    assert again.report == result.report and record(result.path) == lines
    result.report.unlink()
    assert data.write_parquet(tmp_path / "out").report.exists()


def test_values_are_hidden_unless_allowed(tmp_path: Path) -> None:
    data = hr.from_items([{"word": "sesame-17"}] * 3).map(lambda row: {"n": int(row["word"])})
    data = data.with_options(engine="inline", on_error="reject", show_data=False)
    result = data.write_parquet(tmp_path / "out")
    assert "sesame" not in page(result) and "Values are hidden" in page(result)
    assert "sesame" not in json.dumps(record(result.path))


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "twice": batch["id"] * 2}


class Adds:
    def __call__(self, batch: dict[str, Any]) -> Any:
        return batch["id"] + 1


def test_two_stages_are_told_apart(tmp_path: Path) -> None:
    data = (
        numbers(2000)
        .map_batches(double, num_cpus=1)
        .predict(Adds, inputs=["id"], output="more", concurrency=1)
    )
    result = data.with_options(engine="local").write_parquet(tmp_path / "out")
    lines = record(result.path)
    assert len(lines[0]["stages"]) == 2
    worked = [line for line in lines if line["event"] == "worked"]
    assert {line["stage"] for line in worked} == {0, 1}
    assert sum(line["rows"] for line in worked if line["stage"] == 0) == 2000
    assert all(line["from"] <= line["to"] + 0.001 for line in worked)
    assert "1. map_batches(double)" in words(page(result)) and "2. predict(Adds)" in words(page(result))


def test_a_run_that_fails_leaves_a_report_of_what_is_kept(tmp_path: Path) -> None:
    def late(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 950:
            raise ValueError("bad <b>luck</b>")
        return row

    with pytest.raises(StepError):
        numbers(1000).map(late).with_options(engine="inline").write_parquet(tmp_path / "out")
    (path,) = (tmp_path / "out").glob("_headrace/*/report.html")
    told = path.read_text(encoding="utf-8")
    assert "at 90 %; 900 rows are kept." in words(told) and "bad <b>luck</b>" in unescape(words(told))
    assert "9 of 10" in words(told) and record(tmp_path / "out")[-1]["error"].startswith("StepError")
    assert Follower(tmp_path / "out").poll().facts.status == "failed"
    data = numbers(1000).map(lambda row: row).with_options(engine="inline", on_change="continue")
    result = data.write_parquet(tmp_path / "out")
    told = words(page(result))
    assert ": 1,000 rows in " in told and told.count("StepError") == 1
    assert [line["event"] for line in record(result.path)].count("described") == 2


_KILLED = """
import os, signal, sys, time
import headrace as hr
from headrace.sources.range import RangeSource

class Kills:
    shards = 0
    def on_event(self, event):
        self.shards += type(event).__name__ == "ShardCommitted"
        if self.shards == 3:
            os.kill(os.getpid(), signal.SIGKILL)

def slow(batch):
    time.sleep(0.02)  # so that shards are committed one by one
    return batch

if __name__ == "__main__":
    data = hr.Dataset.from_source(RangeSource(1000, rows_per_split=100)).map_batches(slow)
    observers = [Kills()] if sys.argv[2] == "kill" else []
    data = data.with_options(shard_rows=100, workers=1, progress=False, observers=observers)
    data.write_parquet(sys.argv[1])
"""


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    script, out = tmp_path / "job.py", tmp_path / "out"
    script.write_text(_KILLED)
    done = forked.run([sys.executable, script, out, "kill"], timeout=280, workers=True)
    assert done.returncode == -signal.SIGKILL
    state = Follower(out).poll()
    assert state.facts.status == "stopped" and 300 <= state.facts.ledger.written < 1000
    assert "run the same command again to resume it" in dict(state.lines())["status"]
    folder = reporting.folder_of(out)
    assert "Stopped" in words(page_of(*reporting.read(place_at(out), folder, alive=False)).decode())
    assert forked.run([sys.executable, script, out, "on"], timeout=280, workers=True).returncode == 0
    told = Follower(out).poll().data()
    assert (told["status"], told["rows_written"], told["drivers"]) == ("complete", 1000, 2)
    text = words(Path(told["report"]).read_text(encoding="utf-8"))
    assert ": 1,000 rows in " in text and "killed, or at work" in text


def test_a_new_output_has_a_report_of_its_own(tmp_path: Path) -> None:
    data = numbers(100).with_options(engine="inline")
    first = data.write_parquet(tmp_path / "out")
    second = data.write_parquet(tmp_path / "out", mode="overwrite")
    assert second.report != first.report and not first.report.exists()
    assert second.run in page(second) and len(record(second.path)) > 3


class Watches:
    """Sees a run from within, and what its state is meanwhile."""

    def __init__(self, out: Path, fails: bool = False) -> None:
        self.out, self.fails = out, fails
        self.kinds: list[str] = []
        self.states: list[str] = []
        self.closed = 0

    def on_event(self, event: Any) -> None:
        self.kinds.append(type(event).__name__)
        if self.fails:
            raise RuntimeError("I am broken")
        if self.kinds[-1] == "ShardCommitted":
            self.states.append(Follower(self.out).poll().facts.status)

    def close(self) -> None:
        self.closed += 1


def test_ones_own_observers_see_everything_and_break_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watches, broken = Watches(tmp_path / "out"), Watches(tmp_path / "out", fails=True)
    observers = [broken, watches, hr.observers.Log(tmp_path / "log.jsonl")]
    data = numbers(300).with_options(engine="inline", observers=observers)
    result = data.write_parquet(tmp_path / "out")
    assert result.rows == 300
    assert len(broken.kinds) == 1 and "Watches failed and gets no more events" in caplog.text
    assert watches.kinds[:2] == ["RunDescribed", "RunStarted"] and watches.kinds[-1] == "RunFinished"
    assert set(watches.states) == {"under way"} and watches.closed >= 1
    assert len((tmp_path / "log.jsonl").read_text().rstrip().split("\n")) == len(record(result.path))


def test_state_while_it_goes_on(tmp_path: Path) -> None:
    states: list[dict[str, Any]] = []

    class Looks:
        def __init__(self) -> None:
            self.follower: Follower | None = None

        def tick(self) -> None:
            self.follower = self.follower or Follower(tmp_path / "out")
            states.append(self.follower.poll().data())

        def on_event(self, event: Any) -> None:
            pass

    data = numbers(2000).map_batches(double, batch_size=10).with_options(engine="inline", observers=[Looks()])
    data.write_parquet(tmp_path / "out")
    assert states and all(state["status"] == "under way" for state in states)
    assert states[-1]["rows_in_all"] == 2000 and states[-1]["shards"] == 20
    done = [state["shards_done"] for state in states]
    assert done == sorted(done)


def test_a_driver_that_says_nothing_is_told_of(tmp_path: Path) -> None:
    states: list[RunStatus] = []

    class Looks:
        def on_event(self, event: Any) -> None:
            if type(event).__name__ == "ShardCommitted":
                (events,) = (tmp_path / "out").glob("_headrace/*/events.jsonl")
                long_ago = time.time() - 300
                os.utime(events, (long_ago, long_ago))
                states.append(Follower(tmp_path / "out").poll())

    numbers(2000).with_options(engine="inline", observers=[Looks()]).write_parquet(tmp_path / "out")
    told = dict(states[0].lines())["status"]
    assert told.startswith("under way, for 5 min 0") and "no event for 5 min 0" in told
    assert states[0].rows_per_second == 0 and states[0].seconds_left is None
    assert states[0].data()["seconds_silent"] >= 300
    assert Follower(tmp_path / "out").poll().silent == 0


def test_no_output_has_no_state(tmp_path: Path) -> None:
    with pytest.raises(NothingMatched, match="give the folder"):
        Follower(tmp_path).poll()
    with pytest.raises(NothingMatched):
        reporting.folder_of(tmp_path / "nowhere")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_prometheus_finds_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    port = free_port()
    pages: list[str] = []

    class Scrapes:
        def on_event(self, event: Any) -> None:
            if type(event).__name__ == "RunFinished":
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    pages.append(answer.read().decode())

    data = numbers(1000).with_options(
        engine="inline", observers=[hr.observers.Prometheus(port=port), Scrapes()]
    )
    result = data.write_parquet(tmp_path / "out")
    (text,) = pages
    assert "headrace_rows_written_total 1000.0" in text and "headrace_shards_done 10.0" in text
    assert f'run="{result.run}"' in text and "headrace_finished 1.0" in text
    assert "python_info" not in text
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


def test_a_port_that_is_taken_is_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        served = hr.observers.Prometheus(port=sock.getsockname()[1])
        data = numbers(10).with_options(engine="inline", observers=[served])
        with pytest.warns(UserWarning, match="cannot be listened at"):
            assert data.write_parquet(tmp_path / "out").rows == 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observers", 3),
        ("observers", [object()]),
        ("observers", [Watches]),
        ("price_per_hour", 2),
        ("report_values", True),
    ],
)
def test_options_that_make_no_sense(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        numbers(10).with_options(**{name: value})


def test_the_environment_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LOG", "runs.jsonl")
    monkeypatch.setenv("HEADRACE_METRICS_PORT", "9100")
    log, served = environment_observers()
    assert isinstance(log, hr.observers.Log) and log.path == Path("runs.jsonl")
    assert isinstance(served, hr.observers.Prometheus)
    monkeypatch.setenv("HEADRACE_METRICS_PORT", "many")
    with pytest.raises(ArgumentError, match=r"HEADRACE_METRICS_PORT is 'many': .*a port is a whole number"):
        numbers(10).write_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_environment_adds_to_the_observers_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_LOG", str(tmp_path / "theirs"))
    data = numbers(10).with_options(engine="inline", observers=[hr.observers.Log(tmp_path / "ours")])
    for name in ("one", "two"):
        data.write_parquet(tmp_path / name)
    for log in ("ours", "theirs"):
        assert (tmp_path / log).read_text().count('"event":"described"') == 2


@pytest.mark.parametrize("path", ["", 3, None])
def test_a_log_takes_a_path(path: Any) -> None:
    with pytest.raises(ArgumentError, match="Log"):
        hr.observers.Log(path)


@pytest.mark.parametrize("port", [0, 80.5, True, 65_536, "many"])
def test_prometheus_takes_a_port(port: Any) -> None:
    with pytest.raises(ArgumentError, match="Prometheus"):
        hr.observers.Prometheus(port=port)


def test_a_report_that_cannot_be_written_hurts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blocks:
        def on_event(self, event: Any) -> None:
            if type(event).__name__ == "RunFinished":
                (folder,) = [path for path in (tmp_path / "out" / "_headrace").iterdir() if path.is_dir()]
                (folder / "report.html").mkdir()

    result = numbers(10).with_options(engine="inline", observers=[Blocks()]).write_parquet(tmp_path / "out")
    assert result.rows == 10 and "cannot be written" in caplog.text and "Traceback" not in caplog.text
    assert not list(result.report.parent.glob("*.tmp"))


class Alike:
    """Takes itself for every other."""

    def __init__(self, *, fails: bool) -> None:
        self.events = 0
        self.fails = fails

    def on_event(self, event: Any) -> None:
        self.events += 1
        if self.fails:
            raise RuntimeError("I am broken")

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_an_observer_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    good, bad = Alike(fails=False), Alike(fails=True)
    data = numbers(10).with_options(engine="inline", observers=[good, bad])
    result = data.write_parquet(tmp_path / "out")
    assert bad.events == 1 and good.events > 3
    assert record(result.path)[-1]["event"] == "finished"


class Plants:
    """Puts a pipe in the place of the record, and a link in that of the page, before it is written."""

    def __init__(self, out: Path, victim: Path) -> None:
        self.out, self.victim = out, victim

    def on_event(self, event: Any) -> None:
        if type(event).__name__ == "RunFinished":
            (events,) = self.out.glob("_headrace/*/events.jsonl")
            events.unlink()
            os.mkfifo(events)
            events.with_name(f"report.html.{os.getpid()}.tmp").symlink_to(self.victim)
            events.with_name("report.html").symlink_to(self.victim)


def test_what_others_plant_in_the_output_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    data = numbers(200).map(fails_on_five).with_options(on_error="reject", engine="inline")
    data = data.with_options(observers=[Plants(tmp_path / "out", victim)])
    result = data.write_parquet(tmp_path / "out")
    assert victim.read_text() == "mine" and not result.report.is_symlink()
    told = words(page(result))
    assert ": 198 rows in " in told
    assert "no: 105" not in told  # without a record nobody knows whether the words of errors may be shown
    assert Follower(result.path).poll().facts.status == "complete"
    (result.path / "_headrace" / "current").write_bytes(b"\xff\x00")
    with pytest.raises(JournalDamaged, match="is not the name of a run"):
        Follower(result.path).poll()


class Closing:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_event(self, event: Any) -> None:
        self.seen.append(type(event).__name__)

    def close(self) -> None:
        self.seen.append("close")


def test_an_observer_is_closed_once_and_last_however_the_run_ends(tmp_path: Path) -> None:
    def fails(row: Any) -> Any:
        raise ValueError("no")

    def interrupted(row: Any) -> Any:
        raise KeyboardInterrupt

    data = hr.range(4).with_options(engine="inline", progress=False)
    for name, rows in (("well", data), ("badly", data.map(fails)), ("cut", data.map(interrupted))):
        observer = Closing()
        with contextlib.suppress(hr.errors.HeadraceError, KeyboardInterrupt):
            rows.with_options(observers=[observer]).write_parquet(tmp_path / name)
        assert observer.seen.count("close") == 1 and observer.seen[-2:] == ["RunFinished", "close"], name
