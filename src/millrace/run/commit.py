"""Commit records into the journal, staged files into parts, and what a resumed run finds.

The order is the promise: staged and synced by the worker, journalled (that is the commit), synced, published.
Whatever a crash leaves between two of these steps, ``recover`` finishes or undoes.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millrace.core import failpoints
from millrace.core.ports import Sink
from millrace.core.work import CommitRecord, Durability, Ledger, Timings
from millrace.plan.physical import SavedPlan
from millrace.run import journal as journals
from millrace.run.journal import Finished, Journal, Opened, Revision, Revoked, Settled, Swapping
from millrace.run.output import OutputFolder, sync_folder, write_whole


@dataclass(slots=True)
class State:
    """What a journal says, shard by shard and in sum."""

    done: bytearray
    ledger: Ledger = field(default_factory=Ledger)
    timings: Timings = field(default_factory=Timings)
    passed: list[int] = field(default_factory=list)
    schema: bytes | None = None
    files: int = 0
    code: dict[str, str] = field(default_factory=dict)
    revision: int = 0
    finished: bool = False
    seconds: float = 0.0
    swapping: bool = False
    plan_sha256: str = ""
    bytes: int = 0
    lone: bool = False  # there is a part without rows, which only tells the schema

    def add(self, record: CommitRecord) -> None:
        """Count a committed shard in."""
        if record.shard < len(self.done):
            self.done[record.shard] = 1
        else:
            self.lone = True
        self.ledger += record.ledger
        self.timings += record.timings
        self.bytes += sum(file.size for file in record.files)
        self.files += len(record.files)
        if record.passed:
            before = self.passed or [0] * len(record.passed)
            self.passed = [a + b for a, b in zip(before, record.passed, strict=True)]

    def holds(self, shard: int) -> bool:
        """Say whether a part of this number is committed. The number after the last is the lone empty part."""
        return bool(self.done[shard]) if shard < len(self.done) else self.lone


class ShardCommitter:
    """The driver's hand on one run: takes commit records, publishes, finishes.

    ``hidden`` keeps parts in staging until ``finish`` swaps them in for the run named ``replaces``.
    """

    def __init__(
        self, output: OutputFolder, plan: SavedPlan, sink: Sink, journal: Journal, state: State, hidden: bool
    ) -> None:
        self.output = output
        self.plan = plan
        self.state = state
        self.hidden = hidden
        self.folder = output.folder(plan.run)
        self.sink = sink
        self._journal = journal
        self._unpublished: list[CommitRecord] = []
        self.on_published: Callable[[CommitRecord], None] = lambda record: None

    def settle(self, schema: bytes) -> None:
        """Record the output schema, and make that last before another writer opens."""
        self.state.schema = schema
        self._journal.append(Settled(schema))
        self._sync()

    def revise(self, code: dict[str, str]) -> None:
        """Record that shards are made by other code from here on."""
        self.state.revision += 1
        self.state.code = code
        self._journal.append(Revision(self.state.revision, code))
        self._journal.sync()

    def commit(self, record: CommitRecord) -> None:
        """Append a shard's record; it counts from the next ``flush`` on."""
        self._journal.append(record)
        self.state.add(record)
        self._unpublished.append(record)

    @property
    def pending(self) -> bool:
        """True while committed shards wait for ``flush``."""
        return bool(self._unpublished)

    def revoke(self, record: CommitRecord) -> None:
        """Take back a commit whose files are gone, so that its shard is run again."""
        for file in record.files:
            (self.output.root / file.name).unlink(missing_ok=True)
        self.output.remove_success()
        self.state.finished = False
        self._journal.append(Revoked(record.shard))

    def flush(self) -> None:
        """Make all commits last, then publish their files."""
        self._sync()
        records, self._unpublished = self._unpublished, []
        for record in records:
            if not self.hidden:
                for file in record.files:
                    self.sink.publish(file)
            self.on_published(record)

    def _sync(self) -> None:
        if self.durability == "power" and any(record.files for record in self._unpublished):
            sync_folder(self.folder / "staging")
        self._journal.sync()

    @property
    def durability(self) -> Durability:
        """Whether commits survive a loss of power, or only of processes."""
        return self._journal.durability

    def finish(self, seconds: float, summary: dict[str, Any]) -> None:
        """Everything is committed: publish the rest, swap if hidden, write manifest and ``_SUCCESS``."""
        self.flush()
        if self.hidden:
            self._swap()
        digest = self._write_manifest()
        failpoints.hit("finish.manifest")
        success = {
            "run": self.plan.run,
            "rows": self.state.ledger.written,
            "files": self.state.files,
            "bytes": self.state.bytes,
            "shards": sum(self.state.done),
            "manifest": f"_millrace/{self.plan.run}/manifest",
            "manifest_sha256": digest,
            **summary,
        }
        self.sink.finish(msgspec.json.format(msgspec.json.encode(success), indent=2) + b"\n")
        self.state.seconds += seconds
        self.state.finished = True
        self._journal.append(Finished(seconds))
        self._journal.sync()
        failpoints.hit("finish.closed")
        shutil.rmtree(self.folder / "staging", ignore_errors=True)

    def _swap(self) -> None:
        """Take the place of the run that is in force now. Every step may be repeated after a crash."""
        old = self.output.current()
        if not self.state.swapping:
            self._journal.append(Swapping(old or ""))
            self._journal.sync()
            self.state.swapping = True
        failpoints.hit("swap.recorded")
        self.output.remove_success()
        if old is not None and old != self.plan.run:
            self.output.remove_parts(old)
        failpoints.hit("swap.removed")
        for record in self.committed():
            for file in record.files:
                self.sink.publish(file)
        self.output.point("current", self.plan.run)
        failpoints.hit("swap.pointed")
        self.output.point("next", None)
        if old is not None and old != self.plan.run:
            shutil.rmtree(self.output.folder(old), ignore_errors=True)
        self.hidden = False

    def committed(self) -> Iterator[CommitRecord]:
        """Read the records in force back from the journal."""
        return journals.in_force(self.folder / "journal")

    def _write_manifest(self) -> str:
        files = sorted((file.name, file) for record in self.committed() for file in record.files)
        lines = (
            msgspec.json.encode({"name": name, "rows": file.rows, "size": file.size, "crc32": file.crc32})
            for name, file in files
        )
        data = b"".join(line + b"\n" for line in lines)
        write_whole(self.folder / "manifest", data)
        return hashlib.sha256(data).hexdigest()

    def close(self) -> None:
        """Let go of the journal; unsynced commits are dropped and will be done again."""
        self._journal.close()


def bound(sink: Sink, output: OutputFolder, plan: SavedPlan, durability: Durability) -> Sink:
    """Return the sink for one run of this output."""
    staging = output.folder(plan.run) / "staging"
    return sink.bind(run=plan.run, staging=str(staging), digits=plan.digits(), durability=durability)


def begin(
    output: OutputFolder, plan: SavedPlan, sink: Sink, *, durability: Durability, pointer: str
) -> ShardCommitter:
    """Start a new run: its plan and an empty journal are on disk before the first attempt."""
    folder = output.make(plan.run)
    data = plan.encode()
    write_whole(folder / "plan", data)
    journal = Journal.create(folder / "journal", durability)
    digest = hashlib.sha256(data).hexdigest()
    journal.append(Opened(plan.run, digest))
    journal.append(Revision(0, plan.code))
    journal.sync()
    sync_folder(folder)
    output.point(pointer, plan.run)
    failpoints.hit("run.opened")
    state = State(bytearray(len(plan.shards)), code=plan.code, plan_sha256=digest)
    return ShardCommitter(
        output, plan, bound(sink, output, plan, durability), journal, state, pointer == "next"
    )


def recover(
    output: OutputFolder, run: str, sink: Sink, *, durability: Durability, hidden: bool
) -> ShardCommitter:
    """Take a run up again: done where its files are, revoked where they are not; unlisted files are dropped."""
    folder = output.folder(run)
    plan = SavedPlan.read(folder / "plan")
    journal, records = Journal.open(folder / "journal", durability)
    failpoints.hit("recover.opened")
    try:
        state = _replay(plan, records)
        if not state.plan_sha256:  # the tail was torn before the first record: start the list anew
            journal.append(Opened(run, hashlib.sha256(plan.encode()).hexdigest()))
            journal.append(Revision(0, plan.code))
            journal.sync()
        committer = ShardCommitter(
            output, plan, bound(sink, output, plan, durability), journal, state, hidden
        )
        (folder / "staging").mkdir(mode=0o700, exist_ok=True)
        _settle_places(committer)
        failpoints.hit("recover.revoked")
        _drop_unlisted(committer)
        failpoints.hit("recover.swept")
    except BaseException:
        journal.close()
        raise
    return committer


def peek(output: OutputFolder, run: str) -> State:
    """Read what a run's journal says, except for its commits, and change nothing."""
    folder = output.folder(run)
    return _replay(SavedPlan.read(folder / "plan"), journals.read(folder / "journal"))


def _replay(plan: SavedPlan, records: Iterator[journals.Record]) -> State:
    """Read everything but the commits, which are counted in one by one when their files are looked at."""
    state = State(bytearray(len(plan.shards)), code=plan.code)
    for record in records:
        if isinstance(record, Settled):
            state.schema = record.schema
        elif isinstance(record, Revision):
            state.revision, state.code = record.number, record.code
        elif isinstance(record, Finished):
            state.finished = True
            state.seconds += record.seconds
        elif isinstance(record, Revoked):
            state.finished = False
        elif isinstance(record, Swapping):
            state.swapping = True
        elif isinstance(record, Opened):
            state.plan_sha256 = record.plan_sha256
    return state


def _settle_places(committer: ShardCommitter) -> None:
    """Publish what was committed but not published, revoke what is gone, count in what is in force."""
    sink = committer.sink
    revoked = []
    for record in committer.committed():
        places = [sink.state(file) for file in record.files]
        if "missing" in places:
            revoked.append(record)
            continue
        committer.state.add(record)
        if "staged" in places and not committer.hidden:
            for file in record.files:
                sink.publish(file)
    for record in revoked:
        committer.revoke(record)
    if revoked:
        committer.flush()


def _drop_unlisted(committer: ShardCommitter) -> None:
    """Remove files of this run that no record names: their attempt was never committed."""
    state, output = committer.state, committer.output
    staged: set[str] = set()
    if committer.hidden:
        staged = {file.staged for record in committer.committed() for file in record.files}
    for path in (committer.folder / "staging").iterdir():
        if path.name not in staged:
            path.unlink(missing_ok=True)
    mark = f"-{committer.plan.run}."
    for name in output.parts():
        if mark in name and not state.holds(int(name.split("-")[1])):
            (output.root / name).unlink(missing_ok=True)
    if 0 in state.done and not committer.hidden:
        output.remove_success()


def replan(committer: ShardCommitter, plan: SavedPlan) -> None:
    """Put another plan in force for the shards that are not yet committed."""
    write_whole(committer.folder / "plan", plan.encode())
    committer.plan = plan
