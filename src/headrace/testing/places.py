"""What every place of an output promises, as tests. A subclass says which place."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pytest

from headrace.core.target_ports import Moment, Sink
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
from headrace.output.journal_state import Opened
from headrace.output.layout import new_run_name
from headrace.output.places.place import Place
from headrace.output.publishing import Publisher
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet
from headrace.testing.steps import check, same


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
        sink = self.sink(place, run)
        table = pa.table({"id": list(range(rows))})
        writer = sink.open(Task(Shard(shard, ()), 1), table.schema)
        writer.write(table.to_batches()[0])
        return CommitRecord(shard, 1, 0, writer.close(), Ledger())

    def publisher(self, place: Place, run: str, moment: Moment = Moment.COMMIT) -> Publisher:
        return place.publisher(self.sink(place, run), run, moment)

    def sink(self, place: Place, run: str) -> Sink:
        staging = str(place.root / HOME / run / "staging")
        sink = FileSink(str(place.at()), Parquet())
        return sink.bind(run=run, staging=staging, digits=1, durability=self.durability)

    # ------------------------------------------------------------ who holds it

    def test_one_driver_holds_it(self, place: Place) -> None:
        check(
            f"process {os.getpid()} on " in str(place.writer()),
            "writer() names the process that holds the place",
        )
        other = self.again()
        with pytest.raises(RunLocked, match="is being written by process"):
            other.take()
        other.close()
        place.close()
        place.close()
        check(self.again().writer() is None, "nobody holds a place that was closed")
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
        same(seen.visible(), ["letter"], "the names that a reader finds")
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
            "the plan in root, as it was written last",
        )
        seen = self.seen()
        same(
            (seen.root / HOME / "current").read_text(),
            f"{run}\n",
            "the pointer, as another sees it",
        )
        same(
            (seen.root / HOME / run / "plan").read_bytes(),
            b"second",
            "the plan, as another sees it",
        )
        same((seen.root / SUCCESS).read_bytes(), b"{}", "_SUCCESS, as another sees it")
        same(seen.size_of(f"{HOME}/{run}/plan"), 6, "the size of the plan")
        same(seen.size_of("none"), -1, "the size of a file that is not there")
        check(run in seen.folders(HOME), "folders() has the folder of the run")
        check(
            f"{HOME}/{run}/plan" in seen.listed(f"{HOME}/{run}"),
            "listed() has the plan of the run",
        )
        seen.close()

    def test_what_is_removed_is_gone(self, place: Place, run: str) -> None:
        for name in (f"{HOME}/next", f"{HOME}/{run}/plan", f"{HOME}/{run}/manifest", SUCCESS):
            place.write(name, b"x")
        place.remove([SUCCESS, f"{HOME}/next", "none", f"{REJECTED}/none"])
        place.remove([SUCCESS])
        check(not (place.root / SUCCESS).exists(), "_SUCCESS is gone once it was removed")
        check(
            not (place.root / HOME / "next").exists(),
            "the pointer is gone once it was removed",
        )
        place.remove_below(f"{HOME}/{run}")
        check(not (place.root / HOME / run).exists(), "the folder of the run is gone once it was removed")
        seen = self.seen()
        same(seen.size_of(SUCCESS), -1, "the size of _SUCCESS, which was removed")
        same(seen.size_of(f"{HOME}/next"), -1, "the size of a pointer that was removed")
        same(seen.folders(HOME), set(), "the runs that are left")
        check(not seen.listed(f"{HOME}/{run}"), "nothing is listed in a folder that was removed")
        seen.close()

    def test_nothing_is_left_if_asked_for(self, place: Place, run: str) -> None:
        place.write(f"{HOME}/{run}/plan", b"x")
        place.close(forget=True)
        again = self.again()
        again.take()
        same(again.folders(HOME), set(), "the runs that are left")
        same(again.visible(), [], "the names that a reader finds")
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
        same(list(contents), [Opened(run, "1")], "what was synced to the journal")
        journal.append(Opened(run, "2"))
        journal.sync()
        journal.close()
        same(
            list(journals.read(again.root / HOME / run / "journal")),
            [Opened(run, "1"), Opened(run, "2")],
            "the journal in root",
        )
        again.close()

    # ------------------------------------------------------------ parts

    def bring(self, publisher: Publisher, *records: CommitRecord) -> None:
        """Do with records what the committer does."""
        for record in records:
            publisher.add(record)
        check(publisher.pending, "files that were added are pending until ready() gives their record")
        same(publisher.ready(wait=True), list(records), "the records that are ready")
        check(not publisher.pending, "nothing is pending once ready() gave all records")

    def where(self, publisher: Publisher, *records: CommitRecord) -> list[str]:
        return [publisher.state(file) for record in records for file in record.files]

    def test_parts_are_published(self, place: Place, run: str) -> None:
        publisher = self.publisher(place, run)
        records = [self.record(place, run, shard) for shard in range(3)]
        self.bring(publisher, *records)
        publisher.publish(records)
        publisher.publish(records)
        publisher.settle()
        same(self.where(publisher, *records), ["published"] * 3, "where the parts are")
        names = [file.name for record in records for file in record.files]
        same(sorted(place.visible()), names, "the names that a reader finds")
        with place.opened(names[0]) as path:
            same(path.stat().st_size, records[0].files[0].size, "the size of a part")
        with place.opened("none") as path:
            check(not path.exists(), "opened() gives no file for a name that is not there")
        place.remove(names[:1])
        same(sorted(place.visible()), names[1:], "the names that a reader finds")
        publisher.close()

    def test_hidden_parts_wait(self, place: Place, run: str) -> None:
        publisher = self.publisher(place, run, Moment.END)
        record = self.record(place, run, 0)
        self.bring(publisher, record)
        same(place.visible(), [], "the names that a reader finds")
        same(self.where(publisher, record), ["staged"], "where the part is")
        publisher.publish([record])
        publisher.settle()
        same(place.visible(), [record.files[0].name], "the names that a reader finds")
        publisher.close()

    def test_a_part_that_is_gone_or_cut_is_missing(self, place: Place, run: str) -> None:
        publisher = self.publisher(place, run)
        record = self.record(place, run, 0)
        same(
            self.where(publisher, CommitRecord(1, 1, 0, (StagedFile("x", "part-1", 1, 1, 1),), Ledger())),
            ["missing"],
            "where a part is that nobody made",
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
        same(publisher.state(file), "missing", "where a part is that has other bytes")
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
        same((seen.root / SUCCESS).read_bytes(), b"two", "_SUCCESS, as another sees it")
        same(seen.visible(), [record.files[0].name], "the names that a reader finds")
        seen.close()

    def test_of_all_who_add_a_note_one_is_first(self, place: Place) -> None:
        mine, other = place.notes("fleet/notes"), self.again().notes("fleet/notes")
        check(mine.add("claim", b"mine"), "the first who adds a note is told so")
        check(mine.add("claim", b"mine"), "and again, as the answer may have been lost")
        check(not other.add("claim", b"other"), "another is told that it was not first")
        same(other.read("claim"), b"mine", "the note")
        same(mine.read("nothing"), None, "a note that is not there")
        other.add("later", b"")
        same(sorted(mine.names()), ["claim", "later"], "the names of notes")

    def test_a_machines_part_becomes_one_of_the_run(self, place: Place, run: str) -> None:
        record = self.record(place, run, 0)
        (file,) = record.files
        data = (place.root / HOME / run / "staging" / file.staged).read_bytes()
        os.unlink(place.root / HOME / run / "staging" / file.staged)
        os.makedirs(place.root / HOME / "fleet" / "machine", exist_ok=True)
        self.put(f"{HOME}/fleet/machine/{file.name}", data)
        place.close()
        again = self.again()
        again.take()
        name = file.name.replace("part-00000", "part-00007")
        taken = msgspec.structs.replace(record, files=(again.adopted(run, "machine", file, name),))
        publisher = self.publisher(again, run)
        self.bring(publisher, taken)
        publisher.publish([taken])
        publisher.settle()
        publisher.close()
        same(again.visible(), [name], "the names that a reader finds")
        same(again.size_of(name), file.size, "the bytes of the part")
        again.close()
