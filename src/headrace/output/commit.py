"""Commit records into the journal, staged files into parts.

The order is the promise: staged and synced by the worker, journalled (that is the commit), synced, published.
Whatever a crash leaves between two of these steps, ``recover`` finishes or undoes.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from headrace.core import failpoints
from headrace.core.arrow.batch import schema_from
from headrace.core.files import safe_files
from headrace.core.metric_states import STATES, side_files
from headrace.core.ports import Sink
from headrace.core.uploading.names import is_uploaded
from headrace.core.work import CommitRecord, Durability, Shard, SideFile
from headrace.errors import OutputWriteFailed, PlanChanged
from headrace.output import journal as journals
from headrace.output.journal import (
    Divided,
    Finished,
    Grown,
    Journal,
    Lowered,
    Opened,
    Reached,
    Renewed,
    Revision,
    Revoked,
    Settled,
    Swapping,
)
from headrace.output.journal_state import JournalState
from headrace.output.layout import Output
from headrace.output.run_list import RunEntry, RunTotals
from headrace.output.saved_plan import divided, grown, write_plan
from headrace.output.small_files import remove_tree, remove_unlisted_states, sync_folder
from headrace.plan.physical import InputVersion, SavedPlan


class ShardCommitter:
    """Commits and publishes the shards of one run, and finishes it.

    ``hidden`` keeps parts in staging until ``finish`` publishes them all: in place of the run that is in force, or
    beside the parts of earlier runs of this output.
    """

    def __init__(
        self,
        output: Output,
        plan: SavedPlan,
        sink: Sink,
        journal: Journal,
        state: JournalState,
        *,
        hidden: bool,
        empty: bool,
    ) -> None:
        self.output = output
        self.plan = plan
        self.state = state
        self.hidden = hidden
        self.empty = empty
        self.folder = output.folder(plan.run)
        self.sink = sink
        self._journal = journal
        self.publisher = output.place.publisher(sink, plan.run, hidden=hidden)
        self.left_out: tuple[str, ...] = ()  # input files that came after the run was planned
        self.gone: tuple[str, ...] = ()  # input files that are not there any more; their rows stay
        self.runs: list[dict[str, Any]] = []  # as _SUCCESS names them
        self.on_published: Callable[[CommitRecord], None] = lambda record: None

    def settle(self, schema: bytes) -> None:
        """Record the output schema, and make it durable before another writer opens."""
        self.state.schema = schema
        self._journal.append(Settled(schema))
        self._journal.sync()

    @property
    def ceilings(self) -> dict[str, int]:
        """How many rows at a time fit into memory, by the labels of steps."""
        return self.state.ceilings

    def lower(self, step: str, rows: int) -> None:
        """Record how many rows at a time fit into memory; it is durable from the next ``commit_accepted`` on."""
        self.state.ceilings[step] = rows
        self._journal.append(Lowered(step, rows))

    def revise(self, code: dict[str, str]) -> None:
        """Record that shards are made by other code from here on."""
        self.state.revision += 1
        self.state.code = self.state.codes[self.state.revision] = code
        self._journal.append(Revision(self.state.revision, code))
        self._journal.sync()

    def divide(self, parts: Sequence[Shard], *, early: bool = False) -> None:
        """Record that a shard is done in parts.

        If it does not fit into memory, that is durable at once, for a later driver. ``early``: the first
        part is done and about to be committed; ``commit_accepted`` makes both durable, this record first.
        """
        record = Divided(tuple(parts), early)
        self._journal.append(record)
        if not early:
            self._journal.sync()
            self.state.shard_too_big = True
        failpoints.hit("shard.divided")
        self.plan = divided(self.plan, record)
        self.state.done.extend(bytes(len(parts) - 1))

    def grow(
        self,
        files: Sequence[tuple[str, int, int]],
        shards: Sequence[Shard],
        replaces: Sequence[int] = (),
        again: int = 0,
        reached: InputVersion | None = None,
    ) -> None:
        """Record that later input files are taken in as further shards; a finished run becomes unfinished.

        If it had finished, they begin a further run of the output, which stays hidden until it is complete. The first
        of the shards may take the places of those that are done, ``replaces``, of ``again`` files. ``reached``: the
        version of the input that has these files.
        """
        state = self.state
        beyond = [record for record in self.committed() if record.shard >= len(self.plan.shards)]
        number = len(state.runs) + 1 if state.runs[-1].ended else 0
        aside = not self.hidden and state.finished and not beyond
        if not self.hidden and not aside:
            self.output.remove_success()
        for record in beyond:  # the part without rows: there may be rows now
            self._journal.append(Revoked(record.shard))
        about = tuple(files), tuple(shards), number, aside or state.hidden, time.time()
        grown_by = Renewed(*about, tuple(replaces), again) if replaces else Grown(*about)
        self._journal.append(grown_by)
        if reached is not None:
            self._journal.append(Reached(reached))
        self._journal.sync()
        for record in beyond:
            self.output.place.remove([file.name for file in record.files])
        self.plan = grown(self.plan, grown_by)
        state.done.extend(bytes(len(shards)))
        state.grow(grown_by)
        if reached is not None:
            state.reach(reached)
        if beyond or replaces:
            state.recount(self.committed())
        self.output.make(self.plan.run)
        self.sink = bind_sink(self.sink, self.output, self.plan, self.durability, state.runs)
        if aside:
            self.hidden = True
            self.publisher.close()
            self.publisher = self.output.place.publisher(self.sink, self.plan.run, hidden=True)

    def plan_anew(self, files: Sequence[tuple[str, int, int]], shards: Sequence[Shard]) -> None:
        """Save other shards for the last run, none of which is done; there are as many as before, or more."""
        self.plan = msgspec.structs.replace(self.plan, files=list(files), shards=list(shards))
        write_plan(self.output, self.plan)
        self.state.done.extend(bytes(len(shards) - len(self.state.done)))

    def reach(self, version: InputVersion) -> None:
        """Record up to where the input was read, once what is new until there was taken in."""
        self._journal.append(Reached(version))
        self._journal.sync()
        self.state.reach(version)

    def is_in_table(self) -> bool:
        """Say whether the rows of the last run are those of a table."""
        target = self.sink.target
        return target is not None and target.revealed()

    def check_not_in_table(self) -> None:
        """Refuse new input for a run whose rows are those of a table."""
        target = self.sink.target
        if target is not None and target.revealed():
            raise PlanChanged(
                f"The run in {self.output} is finished, and new input cannot be added to it: "
                f"{target.why_not_grown()}."
            )

    def of_last_run(self) -> Iterator[CommitRecord]:
        """Read the records of the last run back from the journal."""
        first = self.state.runs[-1].shard
        return (record for record in self.committed() if record.shard >= first)

    def accept(self, record: CommitRecord) -> None:
        """Accept a shard's record; it counts from the next ``commit_accepted`` on."""
        self.state.add(record)
        self.publisher.add(record)

    @property
    def pending(self) -> bool:
        """True while committed shards wait for ``commit_accepted``."""
        return self.publisher.pending

    def revoke(self, records: list[CommitRecord]) -> None:
        """Take back commits whose files are gone, so that their shards are run again."""
        if not self.hidden or any(record.shard < self.state.runs[-1].shard for record in records):
            self.output.remove_success()
        for record in records:
            self._journal.append(Revoked(record.shard))
        self.state.finished, self.state.swapping = False, None
        self._journal.sync()

    def revoke_unread(self, records: Sequence[CommitRecord]) -> None:
        """Take back commits that no reader knows of yet; their shards are run again."""
        for record in records:
            self._journal.append(Revoked(record.shard))
        self._journal.sync()
        for record in records:
            self.state.done[record.shard] = 0
            if not self.hidden:
                self.output.place.remove([file.name for file in record.files])
            for file in record.files:
                if not is_uploaded(file):
                    (self.folder / "staging" / file.staged).unlink(missing_ok=True)
        self.state.recount(self.committed())

    def commit_accepted(self, *, wait: bool = True) -> None:
        """Make commits durable, then publish their files; without ``wait``, only those whose files are ready."""
        records = self.publisher.ready(wait=wait)
        for record in records:
            self._journal.append(record)
        if self.durability == "power" and any(record.files for record in records):
            sync_folder(self.folder / "staging")
        self._journal.sync()
        if records:
            self.empty = False
        if not self.hidden:
            self.publisher.publish(records)
        for record in records:
            self.on_published(record)

    @property
    def durability(self) -> Durability:
        """Whether commits survive a loss of power, or only of processes."""
        return self._journal.durability

    def finish(self, seconds: float, summary: dict[str, Any]) -> None:
        """Everything is committed: write the manifest, swap if hidden, write ``_SUCCESS``.

        A further run's manifest takes the place of the one that ``_SUCCESS`` names: it is written once that is gone.
        """
        self.commit_accepted()
        further = self.state.hidden
        self.state.end(seconds)
        digest = "" if further else self._write_manifest()
        if self.hidden:
            self._swap(seconds, summary)
        digest = self._write_manifest() if further else digest
        self._reveal()
        success = {
            "run": self.plan.run,
            "rows": self.state.ledger.written,
            "files": self.state.files,
            "bytes": self.state.bytes,
            "shards": self.state.shards,
            "manifest": f"_headrace/{self.plan.run}/manifest",
            "manifest_sha256": digest,
            "runs": self.runs,
            **summary,
        }
        self.publisher.finish(msgspec.json.format(msgspec.json.encode(success), indent=2) + b"\n")
        self.state.finished = True
        self._journal.append(Finished(seconds, self.state.runs[-1].ended))
        self._journal.sync()
        failpoints.hit("finish.closed")
        remove_tree(self.folder / "staging")
        if safe_files.is_folder(self.folder / safe_files.KEPT):
            remove_tree(self.folder / safe_files.KEPT)
        if (self.folder / STATES).exists():
            remove_unlisted_states(self.folder, set().union(*map(side_files, self.committed())))

    def _reveal(self) -> None:
        """See that all parts are there; make those of the last run rows of a table, if that is what they are for."""
        target = self.sink.target
        if target is None or not target.at_end:
            self.publisher.check_complete()
            return
        # What was revealed is the table's, which may have been compacted since.
        revealed = target.revealed()
        self.publisher.check_complete(
            since=len(self.state.done) + 1 if revealed else self.state.runs[-1].shard
        )
        if not revealed and self.durability == "power":
            self.output.place.sync_names()
        schema = None if self.state.schema is None else schema_from(self.state.schema)
        parts = [file for record in self.of_last_run() for file in record.files if file.is_part]
        target.reveal(parts, schema)

    def _swap(self, seconds: float, summary: dict[str, Any]) -> None:
        """Replace the current run, or publish what a further run of it has made.

        Every step may be repeated after a crash. A reader finds the old ``_SUCCESS``, or none, or the new one.
        """
        old = self.output.current()
        if self.state.swapping is None:
            self.state.swapping = Swapping(old or "", seconds, summary)
            self._journal.append(self.state.swapping)
            self._journal.sync()
        failpoints.hit("swap.recorded")
        self.output.remove_success()
        if old is not None and old != self.plan.run:
            self.output.remove_parts(old)
        elif self.state.replaced:
            named = {file.name for record in self.committed() for file in record.files}
            self.output.remove_parts(self.plan.run, but=named)
        failpoints.hit("swap.removed")
        # Parts of earlier runs may be gone where they are a table's: it may have been compacted.
        in_table = self.sink.target is not None and self.sink.target.at_end
        self.publisher.publish(self.of_last_run() if in_table else self.committed())
        self.publisher.settle()
        self.output.place.sync_names()
        if old != self.plan.run:
            self.output.point("current", self.plan.run)
        failpoints.hit("swap.pointed")
        self.output.point("next", None)
        if old is not None and old != self.plan.run:
            self.output.remove_run(old)
        self.hidden = False

    def committed(self) -> Iterator[CommitRecord]:
        """Read the records that count back from the journal."""
        return journals.read(self.folder / "journal").lasting()

    def states(self, shards: Sequence[Shard]) -> Iterator[tuple[bytes | SideFile, ...]]:
        """Read the metric states of committed shards from the journal, in the order of the shards."""
        for record in journals.read(self.folder / "journal").in_order([shard.place for shard in shards]):
            if record.states:
                yield record.states

    def _write_manifest(self) -> str:
        totals = RunTotals(self.state.runs)
        files = []
        for record in self.committed():
            totals.add(record)
            files += [(file.name, file) for file in record.files]
        files.sort()
        self.runs = totals.listed(self.plan.run, self.state.codes)
        lines = (
            msgspec.json.encode({"name": name, "rows": file.rows, "size": file.size, "crc32": file.crc32})
            for name, file in files
        )
        data = b"".join(line + b"\n" for line in lines)
        self.output.save(self.plan.run, "manifest", data)
        failpoints.hit("finish.manifest")
        return hashlib.sha256(data).hexdigest()

    def close(self) -> None:
        """Close the journal; unsynced commits are lost and will be done again."""
        self.publisher.close()
        self._journal.close()


def bind_sink(
    sink: Sink,
    output: Output,
    plan: SavedPlan,
    durability: Durability,
    runs: Sequence[RunEntry] = (),
) -> Sink:
    """Return the sink for one run of this output: the last of ``runs``, whose name its parts have."""
    staging = output.folder(plan.run) / "staging"
    name = runs[-1].name(plan.run) if runs else plan.run
    return sink.bind(run=name, staging=str(staging), digits=plan.digits(), durability=durability)


def begin(
    output: Output, plan: SavedPlan, sink: Sink, *, durability: Durability, pointer: str
) -> ShardCommitter:
    """Start a new run: its plan and an empty journal are on disk before the first attempt."""
    journal = None
    try:
        folder = output.make(plan.run)
        write_plan(output, plan, named=False)
        journal = output.place.create_journal(plan.run, durability)
        journal.append(Opened(plan.run, plan.headrace))
        journal.append(Revision(0, plan.code))
        journal.sync()
        sync_folder(folder)
        sync_folder(output.home)  # the run is durable before a pointer names it
        output.point(pointer, plan.run)
        if durability == "power":
            output.place.sync_made()
        failpoints.hit("run.opened")
    except BaseException:
        if journal is not None:
            journal.close()
        with contextlib.suppress(OSError, OutputWriteFailed):  # the first error is the one to report
            output.forget(plan.run)
        raise
    state = JournalState(bytearray(len(plan.shards)), code=plan.code, codes={0: plan.code})
    state.runs = [RunEntry(1, 0, plan.created, len(plan.files))]
    if plan.input is not None:
        state.reach(plan.input)
    sink = bind_sink(sink, output, plan, durability)
    return ShardCommitter(output, plan, sink, journal, state, hidden=pointer == "next", empty=True)
