"""Records wait for their files: in order, all of them or what has arrived, an error in its turn; and small files."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from headrace.core.work import CommitRecord, Ledger, StagedFile
from headrace.errors import ForeignOutput, OutputWriteFailed
from headrace.output import publishing
from headrace.output.layout import open_output
from headrace.output.publishing import FolderNotes, FolderPublisher, Publisher
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet

RECORDS = [CommitRecord(shard, 1, 0, (), Ledger()) for shard in range(3)]


class Arriving(Publisher):
    """Its files arrive when a test says so."""

    def __init__(self) -> None:
        super().__init__(FileSink("out", Parquet()))
        self.files: list[Future[None]] = [Future() for _ in RECORDS]

    def arriving(self, record: CommitRecord) -> list[Future[None]]:
        return [self.files[record.shard]]


@pytest.fixture
def publisher() -> Arriving:
    made = Arriving()
    for record in RECORDS:
        made.add(record)
    return made


def test_they_are_ready_in_order(publisher: Arriving) -> None:
    publisher.files[1].set_result(None)
    assert publisher.ready(wait=False) == [] and publisher.pending
    publisher.files[0].set_result(None)
    assert publisher.ready(wait=False) == RECORDS[:2] and publisher.pending
    publisher.files[2].set_result(None)
    assert publisher.ready(wait=False) == RECORDS[2:] and not publisher.pending


def test_all_of_them_are_waited_for(publisher: Arriving) -> None:
    threads = [threading.Thread(target=each.set_result, args=(None,)) for each in publisher.files]
    for thread in threads:
        thread.start()
    assert publisher.ready(wait=True) == RECORDS
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("wait", [True, False])
def test_an_error_is_raised_in_its_turn(publisher: Arriving, wait: bool) -> None:
    publisher.files[0].set_result(None)
    publisher.files[1].set_exception(OSError("no space"))
    assert publisher.ready(wait=wait) == RECORDS[:1]
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            publisher.ready(wait=wait)


def test_whoever_waits_for_all_files_is_told_why_one_has_not_come(publisher: Arriving) -> None:
    for number in (0, 2):
        publisher.files[number].set_result(None)
    publisher.files[1].set_exception(OSError("no space"))
    with pytest.raises(OSError, match="no space"):
        publisher.arrive()
    assert publisher.ready(wait=True) == RECORDS[:1]


def test_what_comes_fast_is_journalled_together(publisher: Arriving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arriving, "pause", 86_400.0)
    publisher._journalled = -100_000.0  # long ago
    publisher.files[0].set_result(None)
    assert publisher.ready(wait=False) == RECORDS[:1]
    for file in publisher.files[1:]:
        file.set_result(None)
    assert publisher.ready(wait=False) == []
    assert publisher.ready(wait=True) == RECORDS[1:]


def test_too_many_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(publishing, "_MOST_WAITING", 2)
    monkeypatch.setattr(publishing, "wait", waited.append)
    publisher = Arriving()
    for record in RECORDS:
        publisher.add(record)
    assert waited == [[publisher.files[0]]]


def test_a_note_is_added_once_and_leaves_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there"
    notes, folder = FolderNotes(root, "fleet/notes"), root / "_headrace" / "fleet" / "notes"
    assert notes.read("plan") is None and notes.names() == []
    assert notes.add("plan", b"one") and notes.add("plan", b"one") and not notes.add("plan", b"two")
    assert notes.read("plan") == b"one" and notes.names() == os.listdir(folder) == ["plan"]
    shutil.rmtree(folder)
    assert notes.add("plan", b"one") is False and notes.read("plan") is None and notes.names() == []


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out" / "_headrace").mkdir(parents=True)
    (tmp_path / "out" / "_headrace" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ForeignOutput, match="is not opened"):
        open_output(tmp_path / "out")
    assert not (tmp_path / "elsewhere").exists()


def test_a_part_that_cannot_be_looked_at_is_not_taken_for_one_that_is_gone(tmp_path: Path) -> None:
    publisher = FolderPublisher(tmp_path, FileSink(str(tmp_path), Parquet()))
    assert publisher.state(StagedFile("1.staged", "part-1.parquet", 1, 1, 0)) == "missing"
    with pytest.raises(OutputWriteFailed, match="look at"):
        publisher.state(StagedFile("1.staged", "part-" + "1" * 300, 1, 1, 0))
