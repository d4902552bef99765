"""The committer on its own: what it records, the next driver knows; what it reveals, and when."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.core import failpoints
from headrace.core.arrow.batch import schema_bytes
from headrace.core.target_ports import Moment, Sink, Target
from headrace.core.work import CommitRecord, Ledger, Shard, StagedFile, Task
from headrace.errors import OutputWriteFailed, SinkError
from headrace.output import commit as committing
from headrace.output import journal as journals
from headrace.output.commit import ShardCommitter, parts_of
from headrace.output.journal_state import Grown, Reached, Renewed, Revision, Swapping
from headrace.output.layout import open_output, read_plan
from headrace.output.mending import replace_shards, replacing
from headrace.output.recover import begin, recover
from headrace.plan.physical import InputVersion, SavedPlan
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet
from headrace.testing.sinks import open_below

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def no_faults_left() -> Iterator[None]:
    yield
    failpoints.activate({})


class Run:
    """An output, and the committer of its run as one driver after the other has it."""

    def __init__(
        self, folder: Path, name: str = "aaaaaaaa", sink: Any = None, pointer: str = "", **options: Any
    ) -> None:
        self.folder, self.name = folder, name
        self.sink = sink or FileSink(str(folder), Parquet())
        self.options: dict[str, Any] = {"durability": "process", **options}
        plan = SavedPlan(
            name,
            '{"source": {"kind": "x"}}',
            {"f": "1"},
            [("in", 1, 1)],
            [Shard(i, ()) for i in range(3)],
            1.0,
            "0",
        )
        self.output = open_output(folder)
        pointer = pointer or ("next" if self.output.current() else "current")
        self.committer = begin(self.output, plan, self.sink, pointer=pointer, **self.options)

    def again(self, **options: Any) -> ShardCommitter:
        """Have the next driver open the run; what was not synced is lost."""
        self.end()
        self.output = open_output(self.folder)
        plan = read_plan(self.output.folder(self.name))
        given = {"hidden": self.output.next() == self.name, **self.options, **options}
        self.committer = recover(self.output, self.name, plan, self.sink, **given)
        return self.committer

    def end(self) -> None:
        self.committer.close()
        assert not [path for path in open_below(self.folder) if path.endswith("journal")]
        self.output.close()

    def record(self, shard: int, rows: int = 2, **more: Any) -> CommitRecord:
        """Stage a part, and accept its record."""
        writer = self.committer.sink.open(Task(Shard(shard, ()), 1), SCHEMA)
        writer.write(pa.record_batch([pa.array(range(rows), pa.int64())], SCHEMA))
        ledger = Ledger(read=rows, written=rows)
        record = CommitRecord(shard, 1, self.committer.state.revision, writer.close(), ledger, **more)
        self.committer.accept(record)
        return record

    def commit(self, *shards: int) -> list[CommitRecord]:
        records = [self.record(shard) for shard in shards]
        self.committer.commit_accepted()
        return records

    def seen(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("part-*"))

    @property
    def is_complete(self) -> bool:
        return (self.folder / "_SUCCESS").exists()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "out")
    yield made
    made.end()


def names(*records: CommitRecord) -> list[str]:
    return sorted(file.name for record in records for file in record.files)


def test_what_is_recorded_is_known_to_the_next_driver(run: Run) -> None:
    run.committer.settle(schema_bytes(SCHEMA))
    assert run.again().state.schema == schema_bytes(SCHEMA)
    assert run.committer.sink.source == {"kind": "x"}
    run.committer.agreed = lambda schema: schema_bytes(pa.schema([]))  # with others
    assert (
        run.committer.settle(schema_bytes(SCHEMA)) == schema_bytes(pa.schema([])) == run.again().state.schema
    )
    run.committer.note(Revision(run.committer.state.revision + 1, {"f": "2"}))
    state = run.again().state
    assert (state.revision, state.code, state.codes) == (1, {"f": "2"}, {0: {"f": "1"}, 1: {"f": "2"}})
    run.committer.note(Reached(InputVersion({"version": 7})))
    assert run.again().state.versions == [InputVersion({"version": 7})]
    run.committer.divide([Shard(0, (), "0.0"), Shard(3, (), "0.1")])
    for committer in (run.committer, run.again()):
        assert [shard.name for shard in committer.plan.shards] == ["0.0", "", "", "0.1"]
        assert len(committer.state.done) == 4 and committer.state.shard_too_big


def test_some_records_are_durable_with_the_next_commit(run: Run) -> None:
    run.committer.lower("f", 64)
    run.committer.divide([Shard(0, (), "0.0"), Shard(3, (), "0.1")], early=True)
    run.committer.extend([Shard(4, ())])
    assert run.committer.ceilings == {"f": 64}
    assert run.again().ceilings == {} and len(run.committer.plan.shards) == 3
    run.committer.lower("f", 64)
    run.committer.divide([Shard(0, (), "0.0"), Shard(3, (), "0.1")], early=True)
    run.committer.extend([Shard(4, ())])
    run.committer.commit_accepted()
    assert run.again().ceilings == {"f": 64} and len(run.committer.plan.shards) == 5
    assert not run.committer.state.shard_too_big


def test_a_fault_while_a_shard_is_divided(run: Run) -> None:
    failpoints.activate({"shard.divided": "EIO"})
    with pytest.raises(OSError):
        run.committer.divide([Shard(0, (), "0.0"), Shard(3, (), "0.1")])


def test_commits_are_counted_durable_and_seen(run: Run) -> None:
    told: list[int] = []
    run.committer.on_published = lambda record: told.append(record.shard)
    assert run.committer.empty and not run.committer.pending
    assert run.committer.left_out == run.committer.gone == ()
    records = [run.record(shard) for shard in (0, 2)]
    assert run.committer.pending and run.seen() == [] and told == []
    assert run.committer.state.ledger.written == 4
    run.committer.commit_accepted()
    assert run.seen() == names(*records) and told == [0, 2]
    run.committer.commit_accepted()  # of nothing more
    assert not run.committer.empty and not run.committer.pending
    committer = run.again()
    assert list(committer.state.done) == [1, 0, 1] and not committer.empty
    assert names(*committer.committed()) == names(*committer.of_last_run()) == run.seen()


def test_what_is_under_way_ends_with_the_committer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(run.committer.revealing.publisher, "close", lambda: closed.append(True))
    run.again()
    assert closed == [True]


def test_nothing_is_seen_that_is_not_journalled(run: Run) -> None:
    run.record(0)
    failpoints.activate({"journal.sync": "EIO"})
    with pytest.raises(Exception, match="journal"):
        run.committer.commit_accepted()
    assert run.seen() == []


@pytest.mark.parametrize("durability", ["power", "process"])
def test_names_of_staged_files_last_before_their_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    run = Run(tmp_path / "out", durability=durability)
    synced: list[tuple[str, int]] = []
    at = run.committer.folder / "journal"
    monkeypatch.setattr(committing, "sync_folder", lambda path: synced.append((path.name, at.stat().st_size)))
    size = at.stat().st_size
    run.committer.commit_accepted()
    run.commit(0)
    assert synced == ([("staging", size)] if durability == "power" else [])
    run.end()


def test_states_are_read_in_the_order_of_shards(run: Run) -> None:
    for shard in (2, 0, 1):
        run.record(shard, states=(f"{shard}".encode(),) if shard else ())
    run.committer.commit_accepted()
    shards = run.committer.plan.shards
    assert [
        record.states
        for record in journals.read(run.committer.folder / "journal").in_order(
            [shard.place for shard in shards]
        )
    ] == [(), (b"1",), (b"2",)]


# ------------------------------------------------------------ the end


def test_the_end(run: Run) -> None:
    records = run.commit(2, 0)
    run.record(1)
    folder = run.committer.folder
    (folder / "states").mkdir()
    (folder / "states" / "unlisted").touch()
    (folder / "states" / "deep" / "er").mkdir(parents=True)
    (folder / "kept").mkdir()
    failpoints.activate({"finish.manifest": "EIO@2"})  # it is written once
    run.committer.finish(2.5, {"metrics": {"n": 1}})
    records = list(run.committer.committed())
    manifest = (folder / "manifest").read_bytes()
    lines = [json.loads(line) for line in manifest.splitlines()]
    assert [line["name"] for line in lines] == names(*records) == run.seen() and len(records) == 3
    told = json.loads((run.folder / "_SUCCESS").read_bytes())
    sizes = sum(file.size for record in records for file in record.files)
    assert {name: told[name] for name in ("run", "rows", "files", "bytes", "shards", "metrics", "manifest")} == {
        "run": "aaaaaaaa", "rows": 6, "files": 3, "bytes": sizes, "shards": 3, "metrics": {"n": 1},
        "manifest": "_headrace/aaaaaaaa/manifest",
    }  # fmt: skip
    assert told["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    assert [each["run"] for each in told["runs"]] == ["aaaaaaaa"]
    assert not (folder / "staging").exists() and not (folder / "kept").exists()
    assert list((folder / "states").iterdir()) == []
    assert run.committer.state.finished
    state = run.again().state
    assert state.finished and state.seconds == 2.5 and state.runs[-1].ended > 1


@pytest.mark.parametrize("point", ["finish.manifest", "finish.success", "finish.closed"])
def test_a_fault_at_the_end(run: Run, point: str) -> None:
    run.commit(0, 1, 2)
    failpoints.activate({point: "EIO"})
    with pytest.raises((OSError, Exception), match=r"EIO|injected|Input/output"):
        run.committer.finish(1.0, {})
    assert run.is_complete == (point == "finish.closed")
    failpoints.activate({})
    committer = run.again()
    assert committer.state.finished == (point == "finish.closed")
    committer.finish(1.0, {})
    assert run.is_complete and run.again().state.finished


def finished(folder: Path, name: str = "aaaaaaaa", **options: Any) -> Run:
    run = Run(folder, name, **options)
    run.commit(0, 1, 2)
    run.committer.finish(1.0, {})
    return run


def test_a_run_that_takes_the_place_of_another(tmp_path: Path) -> None:
    finished(tmp_path / "out").end()
    old = sorted(path.name for path in (tmp_path / "out").glob("part-*"))
    new = Run(tmp_path / "out", "bbbbbbbb")
    records = new.commit(0, 1, 2)
    assert new.seen() == old and new.is_complete
    failpoints.activate({"swap.recorded": "EIO"})
    with pytest.raises(OSError):
        new.committer.finish(4.0, {"x": 1})
    assert new.seen() == old and new.is_complete
    failpoints.activate({"swap.pointed": "EIO"})
    swapping = new.again().state.swapping
    assert swapping is not None and (swapping.old, swapping.seconds, swapping.summary) == (
        "aaaaaaaa",
        4.0,
        {"x": 1},
    )
    with pytest.raises(OSError):
        new.committer.finish(4.0, {"x": 1})
    assert not new.is_complete
    failpoints.activate({})
    new.again().finish(4.0, {"x": 1})
    assert new.seen() == names(*records) and new.is_complete
    decisions = [
        note for note in journals.read(new.committer.folder / "journal") if isinstance(note, Swapping)
    ]
    assert len(decisions) == 1  # what one driver has decided, the others carry out
    assert (new.output.current(), new.output.next()) == ("bbbbbbbb", None)
    assert [path.name for path in (new.folder / "_headrace").iterdir() if path.is_dir()] == ["bbbbbbbb"]
    new.end()


def test_the_first_run_of_an_output_that_nobody_sees_before_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "out", pointer="next")
    records = run.commit(0, 1, 2)
    failpoints.activate({"swap.recorded": "EIO"})
    with pytest.raises(OSError):
        run.committer.finish(1.0, {})
    failpoints.activate({})
    assert run.seen() == [] and not run.is_complete
    swapping = run.again().state.swapping
    assert swapping is not None and swapping.old == ""
    publisher, told = run.committer.revealing.publisher, []
    for name in ("publish", "settle"):
        done = getattr(publisher, name)
        monkeypatch.setattr(
            publisher, name, lambda *each, name=name, done=done: (told.append(name), done(*each))
        )
    run.committer.finish(1.0, {})
    assert told == ["publish", "settle"]  # a store may be copying yet
    assert run.seen() == names(*records) and run.is_complete
    run.end()


def test_what_is_withheld_is_kept_with_what_it_would_be_finished_with(tmp_path: Path) -> None:
    finished(tmp_path / "out").end()
    run = Run(tmp_path / "out", "bbbbbbbb")
    old, records = run.seen(), [*run.commit(0, 1), run.record(2)]
    failpoints.activate({"finish.withheld": "EIO"})
    with pytest.raises(OSError):
        run.committer.withhold(3.0, {"x": 1})
    failpoints.activate({})
    withheld = run.again().state.withheld
    assert withheld is not None and (withheld.seconds, withheld.summary) == (3.0, {"x": 1})
    assert names(*run.committer.committed()) == names(*records)
    assert run.seen() == old and run.is_complete
    run.committer.finish(withheld.seconds, withheld.summary)
    assert run.seen() == names(*records) and run.again().state.withheld is None
    run.end()


def test_the_part_that_shows_the_columns_is_taken_back(run: Run) -> None:
    record = run.record(3, rows=0)
    run.committer.commit_accepted()
    assert run.seen() == names(record)
    run.committer.revoke_unread([record])
    assert run.seen() == [] == list(run.again().committed())


def watched(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is looked at, and made to last, before the end."""
    told: list[tuple[Any, ...]] = []
    publisher, place = run.committer.revealing.publisher, run.output.place
    monkeypatch.setattr(
        publisher,
        "check_complete",
        lambda records: told.append(("all", len(names(*records)), run.is_complete)),
    )
    monkeypatch.setattr(place, "sync_names", lambda: told.append(("names", run.is_complete)))
    return told


@pytest.mark.parametrize("durability", ["power", "process"])
def test_all_parts_are_there_and_last_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    run = Run(tmp_path / "out", durability=durability)
    run.commit(0, 1, 2)
    told = watched(run, monkeypatch)
    run.committer.finish(1.0, {})
    assert told == [("all", 3, False), *([("names", False)] if durability == "power" else [])]
    run.end()


# ------------------------------------------------------------ further input


def test_a_further_run_is_seen_once_it_is_complete(tmp_path: Path) -> None:
    run = finished(tmp_path / "out")
    before = run.seen()
    run.committer.grow([("in2", 1, 1)], [Shard(3, ())], reached=InputVersion({"version": 8}))
    (record,) = run.commit(3)
    assert run.is_complete and run.seen() == before and "aaaaaaaa-2" in record.files[0].name
    manifest = (run.committer.folder / "manifest").read_bytes()
    committer = run.again()
    assert committer.state.hidden and not committer.state.finished and len(committer.state.runs) == 2
    assert committer.plan.files[-1] == ("in2", 1, 1) and list(committer.state.done) == [1, 1, 1, 1]
    assert committer.state.versions == [InputVersion({"version": 8})]
    assert run.seen() == before and names(*committer.of_last_run()) == names(record)
    assert parts_of(committer.committed(), "aaaaaaaa-2") == list(record.files)
    failpoints.activate({"swap.removed": "EIO"})
    with pytest.raises(OSError):
        committer.finish(1.0, {})
    assert (committer.folder / "manifest").read_bytes() == manifest
    failpoints.activate({})
    run.again().finish(1.0, {})
    assert run.seen() == sorted([*before, *names(record)])
    told = json.loads((run.folder / "_SUCCESS").read_bytes())
    assert [each["run"] for each in told["runs"]] == ["aaaaaaaa", "aaaaaaaa-2"] and told["rows"] == 8
    assert told["manifest_sha256"] == hashlib.sha256((committer.folder / "manifest").read_bytes()).hexdigest()
    run.end()


def test_shards_take_the_places_of_others(tmp_path: Path) -> None:
    run = finished(tmp_path / "out")
    before = run.seen()
    run.committer.grow([], [Shard(3, ())], replaces=[0], again=1)
    assert run.committer.state.ledger.written == 4
    (record,) = run.commit(3)
    assert run.seen() == before
    run.committer.finish(1.0, {})
    assert run.seen() == sorted([*before[1:], *names(record)])
    run.committer.grow([("in2", 1, 1)], [Shard(4, ())])
    grown = [
        type(note) for note in journals.read(run.committer.folder / "journal") if isinstance(note, Grown)
    ]
    assert grown == [Renewed, Grown]
    assert json.loads((run.folder / "_SUCCESS").read_bytes())["rows"] == 6
    run.end()


def test_records_take_the_places_of_others_all_or_none(tmp_path: Path) -> None:
    run = finished(tmp_path / "out")
    before = run.seen()
    sink, shards = replacing(run.committer, [0, 1])

    def made(shard: int) -> CommitRecord:
        writer = sink.open(Task(shards[shard], 1), SCHEMA)
        writer.write(pa.record_batch([pa.array([7], pa.int64())], SCHEMA))
        return CommitRecord(shards[shard].index, 1, 0, writer.close(), Ledger(read=1, written=1))

    with pytest.raises(AttributeError):
        replace_shards(run.committer, {0: made(0), 1: None})  # type: ignore[dict-item]
    with pytest.raises(OutputWriteFailed):
        run.committer.note(Reached(InputVersion({})))  # nothing that was noted before may last with it
    assert run.again().state.finished and run.seen() == before
    sink, shards = replacing(run.committer, [0, 1])
    replace_shards(run.committer, {0: made(0), 1: made(1)})
    assert run.seen() == before and run.committer.state.ledger.written == 4
    run.committer.finish(1.0, {})
    assert len(run.seen()) == 3 and before[2] in run.seen()
    run.end()


def test_input_that_comes_to_a_run_under_way(run: Run) -> None:
    run.commit(0)
    run.record(1)
    run.committer.grow([("in2", 1, 1)], [Shard(3, ())])
    assert run.committer.state.ledger.written == 4  # what was accepted counts still
    (record,) = run.commit(3)
    assert names(record)[0] in run.seen() and "aaaaaaaa-2" not in names(record)[0]
    assert len(run.again().plan.shards) == 4


def test_input_that_comes_to_runs_that_nobody_sees_yet(tmp_path: Path) -> None:
    run = finished(tmp_path / "out")
    before = run.seen()
    for shard in (3, 4):
        run.committer.grow([(f"in{shard}", 1, 1)], [Shard(shard, ())])
        run.commit(shard)
    assert run.again().state.hidden and run.seen() == before and run.is_complete
    run.committer.finish(1.0, {})
    assert len(run.seen()) == 5 and len(run.committer.state.runs) == 2
    run.end()
    new = Run(tmp_path / "out", "bbbbbbbb")  # in the place of what is there
    new.record(3, rows=0)
    new.committer.commit_accepted()
    new.committer.grow([("in2", 1, 1)], [Shard(3, ())])
    assert new.is_complete and len(new.seen()) == 5
    new.end()


@pytest.mark.parametrize("gated", [False, True])
def test_rows_that_come_to_an_output_without_any(tmp_path: Path, gated: bool) -> None:
    run = Run(tmp_path / "out")
    run.record(3, rows=0)  # the part that shows the columns
    run.committer.finish(1.0, {})
    assert run.seen() and run.is_complete
    run.committer.gated = gated
    run.committer.grow([("in2", 1, 1)], [Shard(3, ())])
    assert not run.is_complete and run.seen() == [] and run.committer.state.files == 0
    (record,) = run.commit(3)
    assert run.seen() == ([] if gated else names(record))
    assert list(run.again().state.done) == [0, 0, 0, 1]
    run.end()


def test_other_shards_for_a_run_that_has_done_none(run: Run) -> None:
    run.committer.save_plan(files=[("other", 2, 2)], shards=[Shard(i, ()) for i in range(5)])
    committer = run.again()
    assert committer.plan.files == [("other", 2, 2)] and len(committer.state.done) == 5


# ------------------------------------------------------------ taken back


def test_a_part_that_is_gone_is_made_again(tmp_path: Path) -> None:
    run = finished(tmp_path / "out")
    (run.folder / run.seen()[1]).unlink()
    committer = run.again()
    assert not run.is_complete and not committer.state.finished and list(committer.state.done) == [1, 0, 1]
    assert [record.shard for record in committer.committed()] == [0, 2]
    assert not run.again().state.finished and list(run.committer.state.done) == [1, 0, 1]
    run.commit(1)
    run.committer.finish(1.0, {})
    run.committer.revoke(list(run.committer.committed())[1:])
    assert not run.is_complete
    run.end()


def test_a_part_of_a_further_run_that_is_gone(tmp_path: Path) -> None:
    run = finished(tmp_path / "out")
    run.committer.grow([("in2", 1, 1)], [Shard(3, ())])
    (record,) = run.commit(3)
    (run.committer.folder / "staging" / record.files[0].staged).unlink()
    assert list(run.again().state.done) == [1, 1, 1, 0] and run.is_complete
    (run.folder / run.seen()[0]).unlink()
    assert list(run.again().state.done) == [0, 1, 1, 0] and not run.is_complete
    run.end()


def test_rows_that_were_to_come_to_a_part_are_gone(tmp_path: Path) -> None:
    run = finished(tmp_path / "out")
    before, first = run.seen(), next(iter(run.committer.committed()))
    run.committer.grow([], [Shard(3, (), "0")], replaces=[0])
    writer = run.committer.sink.open(Task(Shard(3, (), "0"), 1, behind=1), SCHEMA)
    writer.write(pa.record_batch([pa.array([7], pa.int64())], SCHEMA))
    (beside,) = writer.close()
    both = (*first.files, beside)
    run.committer.accept(CommitRecord(3, 1, 0, both, Ledger(read=3, written=3)))
    run.committer.commit_accepted()
    (run.committer.folder / "staging" / beside.staged).unlink()
    committer = run.again()
    assert list(committer.state.done) == [1, 1, 1, 1] and committer.state.ledger.written == 6
    (again,) = (record for record in committer.committed() if record.shard == 3)
    assert again == msgspec.structs.replace(first, shard=3)
    committer.accept(CommitRecord(3, 1, 0, both, Ledger(read=3, written=3)))
    committer.commit_accepted()
    committer.revoke_unread([CommitRecord(3, 1, 0, both, Ledger(read=3, written=3))])
    assert run.seen() == before
    committer.finish(1.0, {})
    assert run.seen() == before and run.is_complete
    run.end()


def test_commits_that_no_reader_knows_of_are_taken_back(tmp_path: Path) -> None:
    run = Run(tmp_path / "out")
    records = run.commit(0, 1)
    run.committer.revoke_unread(records[:1])
    assert run.seen() == names(records[1]) and list(run.committer.state.done) == [0, 1, 0]
    assert run.committer.state.ledger.written == 2
    assert list(run.again().state.done) == [0, 1, 0]
    run.commit(0, 2)
    run.committer.finish(1.0, {})
    run.committer.grow([("in2", 1, 1)], [Shard(3, ())])
    (record,) = run.commit(3)
    before = run.seen()
    run.committer.revoke_unread([record])
    assert list((run.committer.folder / "staging").iterdir()) == [] and run.seen() == before
    run.end()


# ------------------------------------------------------------ tables


@dataclass(frozen=True)
class Table(Target):
    """A table that keeps what it is told."""

    root: Path
    when: Moment = Moment.COMMIT
    told: list[tuple[Any, ...]] = field(default_factory=list, compare=False)

    @property
    def by_part(self) -> bool:  # type: ignore[override]
        return self.when is Moment.TRANSACTION

    @property
    def moment(self) -> Moment:
        return self.when

    def revealed(self, run: str = "") -> bool:
        return self.when is Moment.COMMIT and any(each[0] == "reveal" for each in self.told)

    def reveal(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> None:
        seen = [Path(self.root, file.name).exists() for file in files]
        self.told.append(("reveal", [file.name for file in files], seen, schema))

    def finish(self, rows: int) -> None:
        self.told.append(("finish", rows, Path(self.root, "_SUCCESS").exists()))

    def close(self) -> None:
        self.told.append(("close",))

    def kept_rows(self, run: str) -> str:
        return ""

    def rows_lost(self, files: Any, missing: Any, run: str = "") -> None:
        return None


def in_table(table: Table) -> Sink:
    return FileSink(str(table.root), Parquet(), target=table)


def test_a_table_gets_all_rows_at_the_end(tmp_path: Path) -> None:
    table = Table(tmp_path / "out")
    run = Run(tmp_path / "out", sink=in_table(table))
    run.committer.settle(schema_bytes(SCHEMA))
    run.commit(0, 1, 2)
    assert table.told == [] and len(run.seen()) == 3
    run.committer.finish(1.0, {})
    assert table.told == [("reveal", run.seen(), [True] * 3, SCHEMA), ("finish", 6, False)]
    (run.folder / run.seen()[0]).unlink()  # the table was compacted
    assert run.again().state.finished and run.is_complete
    del table.told[:]
    run.committer.grow([("in2", 1, 1)], [Shard(3, ())])
    assert table.told == [("close",)]  # a sink that is bound anew takes its place
    (record,) = run.commit(3)
    del table.told[:]
    run.committer.finish(1.0, {})
    assert [each[:2] for each in table.told] == [("reveal", names(record)), ("finish", 8)]
    run.end()
    assert table.told[-1] == ("close",)


def test_a_table_gets_the_rows_of_each_part_at_its_commit(tmp_path: Path) -> None:
    table = Table(tmp_path / "out", when=Moment.TRANSACTION)
    run = Run(tmp_path / "out", sink=in_table(table))
    records = run.commit(0, 1)
    assert table.told == [("reveal", names(record), [False], None) for record in records]
    assert run.seen() == names(*records)
    run.commit(2)
    del table.told[:]
    run.committer.finish(1.0, {})
    assert table.told == [("finish", 6, False)] and run.is_complete
    run.committer.grow([("in2", 1, 1)], [Shard(3, ())])
    (record,) = run.commit(3)
    del table.told[:]
    run.committer.finish(1.0, {})
    told = [each[1:3] for each in table.told if each[0] == "reveal"]
    assert told == [(run.seen(), [True] * 3 + [False])] and names(record)[0] in run.seen()  # all at once
    run.end()


def test_parts_that_a_table_has_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path / "out")
    run = Run(tmp_path / "out", sink=in_table(table))
    run.commit(0, 1, 2)
    told = watched(run, monkeypatch)
    failpoints.activate({"finish.success": "EIO"})
    with pytest.raises(OutputWriteFailed):
        run.committer.finish(1.0, {})
    assert told == [("all", 3, False)]
    failpoints.activate({})
    run.again()
    told = watched(run, monkeypatch)
    run.committer.finish(1.0, {})
    assert told == [("all", 0, False)]
    table.told.clear()
    run.committer.grow([("in2", 1, 1)], [Shard(3, ())])
    run.commit(3)
    told = watched(run, monkeypatch)
    run.committer.finish(1.0, {})
    assert ("all", 1, False) in told
    run.end()


@pytest.mark.parametrize("refuses", [True, False])
def test_what_a_table_may_refuse_takes_no_place_before_it_has_it(tmp_path: Path, refuses: bool) -> None:
    class Refusing(Table):
        def reveal(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> None:
            if refuses and ("close",) in self.told:
                raise SinkError("refused")
            super().reveal(files, schema)

    run = finished(tmp_path / "out", sink=in_table(Refusing(tmp_path / "out", when=Moment.TRANSACTION)))
    before = run.seen()
    run.committer.grow([], [Shard(3, ())], replaces=[0], again=1)
    run.commit(3)
    if refuses:
        with pytest.raises(SinkError, match="refused"):
            run.committer.finish(1.0, {})
        assert set(before) <= set(run.seen()) and not run.is_complete
    else:
        run.committer.finish(1.0, {})
        assert len(run.seen()) == 3 and before[0] not in run.seen()
    run.end()
