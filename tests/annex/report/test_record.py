"""The record of a run: its lines, its size, and what happens to a disk that is full."""

from __future__ import annotations

import json
import logging
import os
import stat
import typing
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.annex.report.facts import history
from headrace.core.events import (
    CallRetried,
    Event,
    PoolWaits,
    RowsBegun,
    RowsRead,
    RunFinished,
    RunStarted,
    ShardCommitted,
    Worked,
    WorkerReady,
)
from headrace.core.files import safe_files
from headrace.core.work import Ledger, Timings
from headrace.observers.record import MOST, NAMES, Log, Record, _plain
from headrace.observers.record_reader import lines_of
from headrace.observers.run_parts import WorkSum
from headrace.options import RunOptions
from headrace.session.event_bus import EVENTS, EventBus
from observers.histories import HOSTILE, Time, described, finished, recorded


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().rstrip().split("\n")]


def test_each_line_is_an_object_with_a_time_and_an_event(tmp_path: Path) -> None:
    recorded(tmp_path / "events", hostile=HOSTILE)
    told = lines(tmp_path / "events")
    assert all(isinstance(line["at"], float) and line["event"] for line in told)
    assert [line["event"] for line in told[:2]] == ["described", "started"]
    assert told[0]["format"] == 1
    last = told[-1]
    assert last["event"] == "finished" and last["ledger"]["written"] == 1600
    assert last["ledger"]["steps"][1] == {
        "step": "filter(ok)",
        "rows_in": 1800,
        "rows_out": 1600,
        "rejected": 0,
        "dropped": 200,
        "added": 0,
        "unused": 0,
    }
    assert last["faults"][0]["rows"] == 200
    committed = [line for line in told if line["event"] == "committed"]
    assert sum(line["read"] for line in committed) == last["ledger"]["read"] == 2000


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    recorded(tmp_path / "events")
    assert stat.S_IMODE((tmp_path / "events").stat().st_mode) == 0o600


def test_what_a_killed_driver_left_half_written_is_one_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b'{"at":1.0,"event":"described"}\n{"at":2.0,"ev')
    record = Record(path)
    record.on_event(described())
    record.close()
    assert [len(line) > 0 for line in path.read_bytes().split(b"\n")] == [True, True, True, False]
    record.close()


def test_a_line_is_in_the_file_half_a_second_later(tmp_path: Path) -> None:
    time = Time()
    record = EventBus([Record(tmp_path / "events")], clock=time)
    record.on_event(described())
    record.on_event(RunStarted("r", "/out", 1, 0, 0, -1, 1))
    record.on_event(WorkerReady(0, 0.25))
    record.tick()
    before = len(lines(tmp_path / "events"))
    time.now += 0.6
    record.tick()
    assert len(lines(tmp_path / "events")) == before + 1
    record.close()
    record.close()


def test_a_worker_is_not_at_work_before_it_is_up(tmp_path: Path) -> None:
    time = Time(100.0)
    record = EventBus([Record(tmp_path / "events")], clock=time)
    time.now = 103.0
    record.on_event(WorkerReady(0, 1.0))
    time.now = 104.0
    record.on_event(Worked(0, 0, 0, 0, 4.0, "done"))
    record.close()
    worked = lines(tmp_path / "events")[-1]
    assert (worked["from"], worked["to"], worked["seconds"]) == (103.0, 104.0, 1.0)


def test_a_hundred_thousand_shards_are_a_few_megabytes(tmp_path: Path) -> None:
    time = Time()
    record = EventBus([Record(tmp_path / "events")], clock=time)
    record.on_event(described(("f", 50)))
    record.on_event(RunStarted("r", "/out", 100_000, 0, 0, -1, 50))
    for shard in range(100_000):
        time.now += 0.03
        record.on_event(Worked(0, shard % 50, shard, 0, 1.5, "done", 10, Timings(1)))
        record.on_event(ShardCommitted(shard, 0, Ledger(10, 10), 100, Timings()))
        record.tick()
    record.on_event(finished(Ledger(1_000_000, 1_000_000)))
    assert (tmp_path / "events").stat().st_size < 8 << 20
    told = lines(tmp_path / "events")
    assert sum(line["read"] for line in told if line["event"] == "committed") == 1_000_000
    assert sum(line["calls"] for line in told if line["event"] == "worked") == 100_000


def test_what_happens_too_often_is_counted(tmp_path: Path) -> None:
    record = EventBus([Record(tmp_path / "events")])
    record.on_event(described())
    for _ in range(MOST + 70):
        record.on_event(CallRetried(0, "predict(Net)", "TimeoutError"))
    record.close()
    told = lines(tmp_path / "events")
    assert sum(line["event"] == "call retried" for line in told) == MOST
    assert next(line for line in told if line["event"] == "more") | {"at": 0} == {
        "at": 0,
        "event": "more",
        "of": "call retried",
        "count": 70,
    }


def test_sums_say_which_shard_only_for_one() -> None:
    work = WorkSum.of(Worked(0, 1, 7, 0, 1.0, "done", 5), 10.0, 0.0)
    assert _plain(work, work.calls)["shard"] == 7
    work.add(WorkSum.of(Worked(0, 1, 8, 0, 1.0, "lost"), 12.0, 0.0))
    fields = _plain(work, work.calls)
    assert "shard" not in fields and fields["outcomes"] == {"done": 1, "lost": 1}
    assert (fields["from"], fields["to"], fields["seconds"], fields["lost"]) == (9.0, 12.0, 2.0, 1.0)


def test_a_full_disk_ends_the_record_and_not_the_run(caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    seen: list[Any] = []

    class Other:
        def on_event(self, event: Any) -> None:
            seen.append(event)

    watchers = EventBus([Record(Path("/dev/full")), Other()])
    with caplog.at_level(logging.WARNING):
        for event in (described(), RowsRead(0, 0, 5), finished(Ledger())):
            watchers.on_event(event)
        watchers.tick()
        watchers.close()
    assert len(seen) == 3 and isinstance(seen[-1], RunFinished)
    assert caplog.text.count("cannot be written, and is left out") == 1
    assert "Traceback" not in caplog.text


def test_the_record_is_in_the_folder_of_the_run(tmp_path: Path) -> None:
    watchers = EventBus.of(RunOptions(progress=False, observers=(Log(tmp_path / "log"),)), tmp_path)
    watchers.on_event(described())
    watchers.close()
    assert (tmp_path / EVENTS).read_text() and (tmp_path / "log").read_text()


def test_every_event_has_a_place_in_it(tmp_path: Path) -> None:
    assert {*NAMES, RowsBegun, RowsRead, Worked, ShardCommitted} >= set(typing.get_args(Event))
    record = EventBus([Record(tmp_path / "events")])
    record.on_event(described())
    record.on_event(PoolWaits("predict(M)", 1, 4, "1 CPU", 30.0))
    record.close()
    found = history(lines_of((tmp_path / "events").read_bytes()))
    assert found.incidents[0][1:] == ("pool waits", "predict(M): 1 of 4 workers (1 CPU) after 30 s")


@pytest.mark.parametrize("what", ["pipe", "link", "folder"])
def test_what_was_put_in_its_place_is_neither_followed_nor_waited_for(tmp_path: Path, what: str) -> None:
    path, elsewhere = tmp_path / "events", tmp_path / "elsewhere"
    elsewhere.write_text("mine\n")
    if what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
    record = Record(path)
    record.on_event(described())
    with pytest.raises(OSError):
        record.close()
    assert elsewhere.read_text() == "mine\n" and safe_files.read(path) == b""


def test_a_log_follows_a_link_and_waits_for_no_reader_of_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "log")
    record = Record(tmp_path / "link", ours=False)
    record.on_event(described())
    record.close()
    assert lines(tmp_path / "log")[0]["event"] == "described"
    os.mkfifo(tmp_path / "pipe")
    record = Record(tmp_path / "pipe", ours=False)
    record.on_event(described(plan="x" * 1_000_000))
    with pytest.raises(BlockingIOError):
        record.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_full_disk_is_told_of_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"engine": "inline", "progress": False}
    hr.range(3).with_options(observers=[Log("/dev/full")], **options).write_csv(tmp_path / "out")
    assert "/dev/full cannot be written, and is left out: No space left on device." in caplog.text
    assert "Traceback" not in caplog.text and hr.verify(tmp_path / "out").good
