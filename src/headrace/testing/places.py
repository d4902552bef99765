"""What every place of an output promises, as tests. A subclass says which place."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.core.work import (
    HOME,
    REJECTED,
    SUCCESS,
    CommitRecord,
    Durability,
    Ledger,
    Shard,
    StagedFile,
    Task,
)
from headrace.errors import ForeignOutput, RunLocked
from headrace.output import journal as journals
from headrace.output.journal import Opened
from headrace.output.layout import new_run_name
from headrace.output.places.place import Place
from headrace.output.publishing import Publisher
from headrace.sinks.parquet import ParquetSink
from headrace.testing.expect import check, same


class PlaceContract:
    """Subclass it with ``again``, which returns a new view of one and the same place, and with ``put``."""

    durability: Durability = "power"

    def again(self) -> Place:
        """Return the place, which nobody holds yet; each time another object, as each driver has its own."""
        raise NotImplementedError

    def put(self, name: str, data: bytes) -> None:
        """Put a file there past all drivers, as another program does."""
        raise NotImplementedError

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        place = self.again()
        place.take()
        yield place
        place.close()

    @pytest.fixture
    def run(self, place: Place) -> str:
        return self.begun(place)

    def begun(self, place: Place) -> str:
        run = new_run_name()
        os.makedirs(place.root / HOME / run / "staging", exist_ok=True)
        return run

    def seen(self) -> Place:
        """Return the place as somebody sees it who only looks."""
        place = self.again()
        place.look()
        return place

    def record(self, place: Place, run: str, shard: int, rows: int = 3) -> CommitRecord:
        """Stage a part of ``rows`` rows."""
        staging = str(place.root / HOME / run / "staging")
        sink = ParquetSink(str(place.at())).bind(
            run=run, staging=staging, digits=1, durability=self.durability
        )
        table = pa.table({"id": list(range(rows))})
        writer = sink.open(Task(Shard(shard, ()), 1), table.schema)
        writer.write(table.to_batches()[0])
        return CommitRecord(shard, 1, 0, writer.close(), Ledger())

    def publisher(self, place: Place, run: str, *, hidden: bool = False) -> Publisher:
        staging = str(place.root / HOME / run / "staging")
        sink = ParquetSink(str(place.at())).bind(
            run=run, staging=staging, digits=1, durability=self.durability
        )
        return place.publisher(sink, run, hidden=hidden)

    # ------------------------------------------------------------ who holds it

    def test_one_driver_holds_it(self, place: Place) -> None:
        check(
            f"process {os.getpid()} on " in str(place.writer()),
            "it does not hold: f'process {os.getpid()} on ' in str(place.writer())",
        )
        other = self.again()
        with pytest.raises(RunLocked, match="is being written by process"):
            other.take()
        other.close()
        place.close()
        place.close()
        check(self.again().writer() is None, "it does not hold: self.again().writer() is None")
        other = self.again()
        other.take()
        other.close()

    def test_nothing_of_others_is_taken_over(self) -> None:
        self.put("letter", b"dear")
        place = self.again()
        with pytest.raises(ForeignOutput, match="letter"):
            place.take()
        place.close(forget=True)
        self.put(f"{HOME}/current", b"")
        seen = self.seen()
        same(seen.visible(), ["letter"], "seen.visible()")
        seen.close()

    # ------------------------------------------------------------ small files

    def test_what_is_written_is_seen_by_others(self, place: Place, run: str) -> None:
        place.write(f"{HOME}/current", f"{run}\n".encode())
        place.write(f"{HOME}/{run}/plan", b"first")
        place.write(f"{HOME}/{run}/plan", b"second")
        place.write(SUCCESS, b"{}")
        place.create_journal(run, self.durability).close()
        same(
            (place.root / HOME / run / "plan").read_bytes(),
            b"second",
            "(place.root / HOME / run / 'plan').read_bytes()",
        )
        seen = self.seen()
        same(
            (seen.root / HOME / "current").read_text(),
            f"{run}\n",
            "(seen.root / HOME / 'current').read_text()",
        )
        same(
            (seen.root / HOME / run / "plan").read_bytes(),
            b"second",
            "(seen.root / HOME / run / 'plan').read_bytes()",
        )
        same((seen.root / SUCCESS).read_bytes(), b"{}", "(seen.root / SUCCESS).read_bytes()")
        same(seen.size_of(f"{HOME}/{run}/plan"), 6, "seen.size_of(f'{HOME}/{run}/plan')")
        same(seen.size_of("none"), -1, "seen.size_of('none')")
        check(run in seen.folders(HOME), "it does not hold: run in seen.folders(HOME)")
        check(
            f"{HOME}/{run}/plan" in seen.listed(f"{HOME}/{run}"),
            "it does not hold: f'{HOME}/{run}/plan' in seen.listed(f'{HOME}/{run}')",
        )
        seen.close()

    def test_what_is_removed_is_gone(self, place: Place, run: str) -> None:
        for name in (f"{HOME}/next", f"{HOME}/{run}/plan", f"{HOME}/{run}/manifest", SUCCESS):
            place.write(name, b"x")
        place.remove([SUCCESS, f"{HOME}/next", "none", f"{REJECTED}/none"])
        place.remove([SUCCESS])
        check(not (place.root / SUCCESS).exists(), "it does not hold: not (place.root / SUCCESS).exists()")
        check(
            not (place.root / HOME / "next").exists(),
            "it does not hold: not (place.root / HOME / 'next').exists()",
        )
        place.remove_below(f"{HOME}/{run}")
        check(
            not (place.root / HOME / run).exists(), "it does not hold: not (place.root / HOME / run).exists()"
        )
        seen = self.seen()
        same(seen.size_of(SUCCESS), -1, "seen.size_of(SUCCESS)")
        same(seen.size_of(f"{HOME}/next"), -1, "seen.size_of(f'{HOME}/next')")
        same(seen.folders(HOME), set(), "seen.folders(HOME)")
        check(not seen.listed(f"{HOME}/{run}"), "it does not hold: not seen.listed(f'{HOME}/{run}')")
        seen.close()

    def test_nothing_is_left_if_asked_for(self, place: Place, run: str) -> None:
        place.write(f"{HOME}/{run}/plan", b"x")
        place.close(forget=True)
        again = self.again()
        again.take()
        same(again.folders(HOME), set(), "again.folders(HOME)")
        same(again.visible(), [], "again.visible()")
        again.close(forget=True)

    # ------------------------------------------------------------ the journal

    def test_a_journal_is_read_by_the_next_driver(self, place: Place, run: str) -> None:
        place.write(f"{HOME}/current", f"{run}\n".encode())
        journal = place.create_journal(run, self.durability)
        journal.append(Opened(run, "1"))
        journal.sync()
        journal.append(Opened(run, "never synced"))
        journal.close()
        place.close()
        again = self.again()
        again.take()
        journal, contents = again.open_journal(run, self.durability)
        same(list(contents), [Opened(run, "1")], "list(contents)")
        journal.append(Opened(run, "2"))
        journal.sync()
        journal.close()
        same(
            list(journals.read(again.root / HOME / run / "journal")),
            [Opened(run, "1"), Opened(run, "2")],
            "list(journals.read(again.root / HOME / run / 'journal'))",
        )
        again.close()

    # ------------------------------------------------------------ parts

    def bring(self, publisher: Publisher, *records: CommitRecord) -> None:
        """Do with records what the committer does."""
        for record in records:
            publisher.add(record)
        check(publisher.pending, "it does not hold: publisher.pending")
        same(publisher.ready(wait=True), list(records), "publisher.ready(wait=True)")
        check(not publisher.pending, "it does not hold: not publisher.pending")

    def where(self, publisher: Publisher, *records: CommitRecord) -> list[str]:
        return [publisher.state(file) for record in records for file in record.files]

    def test_parts_are_published(self, place: Place, run: str) -> None:
        publisher = self.publisher(place, run)
        records = [self.record(place, run, shard) for shard in range(3)]
        self.bring(publisher, *records)
        publisher.publish(records)
        publisher.publish(records)
        publisher.settle()
        same(self.where(publisher, *records), ["published"] * 3, "self.where(publisher, *records)")
        names = [file.name for record in records for file in record.files]
        same(sorted(place.visible()), names, "sorted(place.visible())")
        with place.opened(names[0]) as path:
            same(path.stat().st_size, records[0].files[0].size, "path.stat().st_size")
        with place.opened("none") as path:
            check(not path.exists(), "it does not hold: not path.exists()")
        place.remove(names[:1])
        same(sorted(place.visible()), names[1:], "sorted(place.visible())")
        publisher.close()

    def test_hidden_parts_wait(self, place: Place, run: str) -> None:
        publisher = self.publisher(place, run, hidden=True)
        record = self.record(place, run, 0)
        self.bring(publisher, record)
        same(place.visible(), [], "place.visible()")
        same(self.where(publisher, record), ["staged"], "self.where(publisher, record)")
        publisher.publish([record])
        publisher.settle()
        same(place.visible(), [record.files[0].name], "place.visible()")
        publisher.close()

    def test_a_part_that_is_gone_or_cut_is_missing(self, place: Place, run: str) -> None:
        publisher = self.publisher(place, run)
        record = self.record(place, run, 0)
        same(
            self.where(publisher, CommitRecord(1, 1, 0, (StagedFile("x", "part-1", 1, 1, 1),), Ledger())),
            ["missing"],
            "self.where(publisher, CommitRecord(1, 1, 0, (StagedFile('x', 'part-1', 1, 1, 1),), Ledger()))",
        )
        self.bring(publisher, record)
        publisher.publish([record])
        (file,) = record.files
        self.put(file.name, b"other bytes")
        publisher.close()
        place.close()
        again = self.again()
        again.take()
        publisher = self.publisher(again, run)
        same(publisher.state(file), "missing", "publisher.state(file)")
        publisher.close()
        again.close()

    def test_the_end(self, place: Place, run: str) -> None:
        place.write(f"{HOME}/current", f"{run}\n".encode())
        journal = place.create_journal(run, self.durability)
        publisher = self.publisher(place, run)
        record = self.record(place, run, 0)
        self.bring(publisher, record)
        journal.append(record)
        journal.sync()
        publisher.publish([record])
        publisher.finish(b"one")
        publisher.finish(b"two")
        publisher.close()
        journal.close()
        place.sync_names()
        place.sync_made()
        seen = self.seen()
        same((seen.root / SUCCESS).read_bytes(), b"two", "(seen.root / SUCCESS).read_bytes()")
        same(seen.visible(), [record.files[0].name], "seen.visible()")
        seen.close()
