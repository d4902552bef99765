"""Commit records into the journal, then reveal what they name.

The order is the promise: staged and synced by the worker, journalled (that is the commit), synced, revealed at the
moment that is the run's. Whatever a crash leaves between two of these steps, ``recover`` finishes or undoes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from headrace.core import failpoints
from headrace.core.arrow.batch import schema_from
from headrace.core.foreign import errors_of_publishing
from headrace.core.metric_states import STATES, side_files
from headrace.core.ports import Moment, Sink
from headrace.core.uploading.names import is_uploaded
from headrace.core.work import CommitRecord, Durability, Shard, SideFile
from headrace.output import journal as journals
from headrace.output.journal import (
    Divided,
    Finished,
    Grown,
    Journal,
    Lowered,
    Reached,
    Record,
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
from headrace.output.small_files import remove_unlisted_states, sync_folder
from headrace.output.tables import parts_of
from headrace.plan.physical import InputVersion, SavedPlan


class ShardCommitter:
    """Commits and reveals the shards of one run, and finishes it.

    With ``moment`` ``END``, ``finish`` reveals all of them: in place of the run that is in force, or beside the parts
    of earlier runs of this output. ``sink`` is bound to the run.
    """

    def __init__(
        self,
        output: Output,
        plan: SavedPlan,
        sink: Sink,
        journal: Journal,
        state: JournalState,
        *,
        moment: Moment,
    ) -> None:
        self.output = output
        self.plan = plan
        self.state = state
        self.sink = sink
        self.moment = moment
        self.publisher = output.place.publisher(sink, plan.run, moment)
        self.folder = output.folder(plan.run)
        self.empty = True  # nothing was committed
        self._journal = journal
        self.left_out: tuple[str, ...] = ()  # input files that came after the run was planned
        self.gone: tuple[str, ...] = ()  # input files that are not there any more; their rows stay
        self.on_published: Callable[[CommitRecord], None] = lambda record: None

    def _note(self, *records: Record) -> None:
        """Append to the journal; what was appended before is durable then, too."""
        for record in records:
            self._journal.append(record)
        self._journal.sync()

    def settle(self, schema: bytes) -> None:
        """Record the output schema, and make it durable before another writer opens."""
        self.state.schema = schema
        self._note(Settled(schema))

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
        self._note(Revision(self.state.revision, code))

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

        If it had finished, they begin a further run of the output, which is revealed once it is complete. The first
        of the shards may take the places of those that are done, ``replaces``, of ``again`` files. ``reached``: the
        version of the input that has these files.
        """
        state = self.state
        beyond = [record for record in self.committed() if record.shard >= len(self.plan.shards)]
        number = len(state.runs) + 1 if state.runs[-1].ended else 0
        aside = state.finished and not beyond
        if aside:
            self.moment = Moment.END
        elif self.moment is not Moment.END:
            self.output.remove_success()
        about = tuple(files), tuple(shards), number, aside or state.hidden, time.time()
        grown_by = Renewed(*about, tuple(replaces), again) if replaces else Grown(*about)
        gone = [Revoked(record.shard) for record in beyond]  # the part without rows: there may be rows now
        self._note(*gone, grown_by, *([] if reached is None else [Reached(reached)]))
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
        self.publisher.close()
        self.publisher = self.output.place.publisher(self.sink, self.plan.run, self.moment)

    def plan_anew(self, files: Sequence[tuple[str, int, int]], shards: Sequence[Shard]) -> None:
        """Save other shards for the last run, none of which is done; there are as many as before, or more."""
        self.plan = msgspec.structs.replace(self.plan, files=list(files), shards=list(shards))
        write_plan(self.output, self.plan)
        self.state.done.extend(bytes(len(shards) - len(self.state.done)))

    def reach(self, version: InputVersion) -> None:
        """Record up to where the input was read, once what is new until there was taken in."""
        self._note(Reached(version))
        self.state.reach(version)

    def of_last_run(self) -> Iterator[CommitRecord]:
        """Read the records of the last run back from the journal."""
        first = self.state.runs[-1].shard
        return (record for record in self.committed() if record.shard >= first)

    def _to_reveal(self) -> Iterator[CommitRecord]:
        """Read back what is revealed at the end; parts of earlier runs may be gone if a table has all of each."""
        return self.of_last_run() if has_all_or_none(self.sink) else self.committed()

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
        if self.moment is not Moment.END or any(
            record.shard < self.state.runs[-1].shard for record in records
        ):
            self.output.remove_success()
        self.state.finished, self.state.swapping = False, None
        self._note(*(Revoked(record.shard) for record in records))

    def revoke_unread(self, records: Sequence[CommitRecord]) -> None:
        """Take back commits that no reader knows of yet; their shards are run again."""
        self._note(*(Revoked(record.shard) for record in records))
        for record in records:
            self.state.done[record.shard] = 0
            if self.moment is not Moment.END:
                self.output.place.remove([file.name for file in record.files])
            for file in record.files:
                if not is_uploaded(file):
                    (self.folder / "staging" / file.staged).unlink(missing_ok=True)
        self.state.recount(self.committed())

    def commit_accepted(self, *, wait: bool = True) -> None:
        """Make commits durable, then reveal them; without ``wait``, only those whose files are ready."""
        records = self.publisher.ready(wait=wait)
        if self.durability == "power" and any(record.files for record in records):
            sync_folder(self.folder / "staging")
        self._note(*records)
        if records:
            self.empty = False
        self.reveal(records)
        for record in records:
            self.on_published(record)

    def reveal(self, records: Iterable[CommitRecord]) -> None:
        """Show readers what was journalled, unless they are to see it at the end."""
        if self.moment is Moment.COMMIT:
            self.publisher.publish(records)
        elif self.moment is Moment.TRANSACTION:
            for record in records:
                self._reveal_rows([record])
                self.publisher.publish([record])

    def _reveal_rows(self, records: Iterable[CommitRecord]) -> None:
        """Make the parts of records rows of the table, if that is what they are for."""
        if self.sink.target is not None:
            schema = None if self.state.schema is None else schema_from(self.state.schema)
            with errors_of_publishing(self.sink):
                self.sink.target.reveal(parts_of(records), schema)

    @property
    def durability(self) -> Durability:
        """Whether commits survive a loss of power, or only of processes."""
        return self._journal.durability

    def finish(self, seconds: float, summary: dict[str, Any]) -> None:
        """Everything is committed: write the manifest, reveal what is not yet, write ``_SUCCESS``.

        A further run's manifest takes the place of the one that ``_SUCCESS`` names: it is written once that is gone.
        """
        self.commit_accepted()
        state, further = self.state, self.state.hidden
        state.end(seconds)
        totals = RunTotals(state.runs)
        manifest = totals.manifest(self.committed())
        if not further:
            self._save_manifest(manifest)
        if self.moment is Moment.END:
            self._take_over(seconds, summary)
        if further:
            self._save_manifest(manifest)
        self._complete()
        success = {
            "run": self.plan.run,
            "rows": state.ledger.written,
            "files": state.files,
            "bytes": state.bytes,
            "shards": state.shards,
            "manifest": f"_headrace/{self.plan.run}/manifest",
            "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
            "runs": totals.listed(self.plan.run, state.codes),
            **summary,
        }
        self.publisher.finish(msgspec.json.format(msgspec.json.encode(success), indent=2) + b"\n")
        state.finished = True
        self._note(Finished(seconds, state.runs[-1].ended))
        failpoints.hit("finish.closed")
        self.output.tidy(self.plan.run)
        if (self.folder / STATES).exists():
            remove_unlisted_states(self.folder, set().union(*map(side_files, self.committed())))

    def _save_manifest(self, manifest: bytes) -> None:
        self.output.save(self.plan.run, "manifest", manifest)
        failpoints.hit("finish.manifest")

    def _take_over(self, seconds: float, summary: dict[str, Any]) -> None:
        """Reveal all parts, in place of the current run or as a further run of it. It may be done again."""
        state = self.state
        if state.swapping is None:
            state.swapping = Swapping(self.output.current() or "", seconds, summary)
            self._note(state.swapping)
        failpoints.hit("swap.recorded")
        kept = {file.name for record in self.committed() for file in record.files} if state.replaced else None
        self.moment = moment_of(self.sink)  # which is now
        with self.output.taken_over(self.plan.run, kept):
            self.reveal(self._to_reveal())
            self.publisher.settle()

    def _complete(self) -> None:
        """See that all parts are there, to last, and that a table has all rows."""
        target, first = self.sink.target, 0
        if target is not None and has_all_or_none(self.sink):
            # What was revealed is the table's, which may have been compacted since.
            first = len(self.state.done) + 1 if target.revealed() else self.state.runs[-1].shard
        self.publisher.check_complete(since=first)
        if self.durability == "power":
            self.output.place.sync_names()
        if self.moment is not Moment.TRANSACTION:
            self._reveal_rows(self._to_reveal())
        if target is not None:
            with errors_of_publishing(self.sink):
                target.finish(self.state.ledger.written)

    def committed(self) -> Iterator[CommitRecord]:
        """Read the records that count back from the journal."""
        return journals.read(self.folder / "journal").lasting()

    def states(self, shards: Sequence[Shard]) -> Iterator[tuple[bytes | SideFile, ...]]:
        """Read the metric states of committed shards from the journal, in the order of the shards."""
        for record in journals.read(self.folder / "journal").in_order([shard.place for shard in shards]):
            if record.states:
                yield record.states

    def close(self) -> None:
        """Close the journal; unsynced commits are lost and will be done again."""
        self.publisher.close()
        if self.sink.target is not None:
            with errors_of_publishing(self.sink):
                self.sink.target.close()
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


def moment_of(sink: Sink, *, aside: bool = False) -> Moment:
    """Return when a run is revealed; ``aside``: it is to take the place of what is there once it is complete."""
    if aside:
        return Moment.END
    return Moment.COMMIT if sink.target is None else sink.target.moment


def has_all_or_none(sink: Sink) -> bool:
    """Say whether parts become rows of a table in one commit: it has all parts of a run, or none."""
    return sink.target is not None and not sink.target.by_part
