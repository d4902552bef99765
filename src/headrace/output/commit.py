"""Commit records into the journal, then reveal what they name.

The order is the promise: staged and synced by the worker, journalled (that is the commit), synced, revealed at the
moment that is the run's. Whatever a crash leaves between two of these steps, ``recover`` finishes or undoes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from headrace.core import failpoints
from headrace.core.arrow.batch import schema_from
from headrace.core.failures import errors_of_publishing
from headrace.core.metric_states import STATES, side_files
from headrace.core.target_ports import Moment, Sink, Target
from headrace.core.work import CommitRecord, Durability, Shard, StagedFile
from headrace.output import journal as journals
from headrace.output import journal_state as notes
from headrace.output.journal_state import JournalState, RunEntry, RunTotals, predecessors
from headrace.output.layout import Output, write_plan
from headrace.output.names import is_of
from headrace.output.publishing import remove_unlisted, sync_folder
from headrace.plan.physical import InputVersion, SavedPlan

DATABASE = "table"  # kinds of sinks
LAKES = ("Delta table", "Iceberg table", "Lance table")
TABLES = (DATABASE, *LAKES)

Committed = Callable[[], Iterator[CommitRecord]]
"""Reads the records that count back from the journal."""


class Revealing:
    """Reveals the parts of one run, and makes them rows of a table, if that is what they are for.

    ``moment`` is the one value that says when. Whatever a method does, doing it again changes nothing. ``sink`` is
    bound to the run.
    """

    def __init__(self, output: Output, run: str, sink: Sink, state: JournalState, moment: Moment) -> None:
        self.moment = moment
        self.publisher = output.place.publisher(sink, run, moment)
        self._output = output
        self._run = run
        self._sink = sink
        self._state = state

    @property
    def aside(self) -> bool:
        """True if no reader is to see anything of the run before it is complete."""
        return self.moment is Moment.END

    def reveal(self, records: Iterable[CommitRecord]) -> None:
        """Show readers what was journalled, unless they are to see it at the end."""
        if self.moment is Moment.COMMIT:
            self.publisher.publish(records)
        elif self.moment is Moment.TRANSACTION:
            for record in records:
                self._reveal_rows([record])
                self.publisher.publish([record])

    def take_over(self, committed: Committed) -> None:
        """Reveal the whole run, in place of the current one or as a further run of it."""
        replaced, in_table = bool(self._state.replaced), self._sink.target is not None
        kept = {file.name for record in committed() for file in record.files} if replaced else None
        self.moment = moment_of(self._sink)  # which is now
        with self._output.taken_over(self._run, None if in_table else kept):
            if self.moment is Moment.TRANSACTION:  # one for all rows: readers have those before, or all
                self._reveal_rows(self._at_end(committed))
            self.publisher.publish(self._at_end(committed))
            self.publisher.settle()
            if in_table and kept is not None:  # until the table has the rows, it may refuse them
                self._output.remove_parts(self._run, but=kept)

    def complete(self, committed: Committed, mark: bytes, *, lasting: bool) -> None:
        """See that all parts are there, and that a table has all rows; then ``mark`` the output as complete.

        ``lasting``: names and mark outlive a loss of power.
        """
        target = self._sink.target
        # What was revealed is the table's, which may have been compacted since.
        revealed = target is not None and target.revealed()
        self.publisher.check_complete(() if revealed else self._at_end(committed))
        if lasting:
            self._output.place.sync_names()
        if target is not None:
            if self.moment is not Moment.TRANSACTION:
                self._reveal_rows(self._at_end(committed))
            with errors_of_publishing(self._sink):
                target.finish(self._state.ledger.written)
        self.publisher.finish(mark, lasting=lasting)

    def close(self) -> None:
        """End what is under way, and let go of the table."""
        self.publisher.close()
        if self._sink.target is not None:
            with errors_of_publishing(self._sink):
                self._sink.target.close()

    def _reveal_rows(self, records: Iterable[CommitRecord]) -> None:
        assert self._sink.target is not None
        schema = None if self._state.schema is None else schema_from(self._state.schema)
        with errors_of_publishing(self._sink):
            self._sink.target.reveal(parts_of(records), schema)

    def _at_end(self, committed: Committed) -> Iterator[CommitRecord]:
        """Return what is revealed at the end; files of earlier runs may be gone if a table has all of each."""
        if not has_all_or_none(self._sink.target):
            return committed()
        name = self._state.runs[-1].name(self._run)
        return (with_files_of(name, record) for record in committed())


def moment_of(sink: Sink, *, aside: bool = False) -> Moment:
    """Return when a run is revealed; ``aside``: it is to take the place of what is there once it is complete."""
    if aside:
        return Moment.END
    return Moment.COMMIT if sink.target is None else sink.target.moment


def bind_sink(
    sink: Sink, output: Output, plan: SavedPlan, durability: Durability, runs: Sequence[RunEntry] = ()
) -> Sink:
    """Return the sink for one run of this output: the last of ``runs``, whose name its parts have."""
    staging = output.folder(plan.run) / "staging"
    name = runs[-1].name(plan.run) if runs else plan.run
    source = plan.described.get("source")
    return sink.bind(
        run=name, staging=str(staging), digits=plan.digits(), durability=durability, source=source
    )


def has_all_or_none(target: Target | None) -> bool:
    """Say whether parts become rows of a table in one commit: it has all parts of a run, or none."""
    return target is not None and not target.by_part


def parts_of(records: Iterable[CommitRecord], run: str = "") -> list[StagedFile]:
    """Return the parts that records name; maybe those of one ``run`` of the output."""
    parts = (file for record in records for file in record.files if file.is_part)
    return [file for file in parts if not run or is_of(file.name, run)]


def with_files_of(run: str, record: CommitRecord) -> CommitRecord:
    """Return a record with its files of one run: to rows that a table has, a further one may have added some."""
    return msgspec.structs.replace(record, files=tuple(f for f in record.files if is_of(f.name, run)))


# ------------------------------------------------------------ journalled, then revealed


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
        journal: journals.Journal,
        state: JournalState,
        *,
        moment: Moment,
    ) -> None:
        self.output = output
        self.plan = plan
        self.state = state
        self.sink = sink
        self.revealing = Revealing(output, plan.run, sink, state, moment)
        self.folder = output.folder(plan.run)
        self.empty = True  # nothing was committed
        self.gated = False  # what is committed from now on waits until somebody has looked at all of it
        self._journal = journal
        self.left_out: tuple[str, ...] = ()  # input files that came after the run was planned
        self.gone: tuple[str, ...] = ()  # input files that are not there any more; their rows stay
        self.on_published: Callable[[CommitRecord], None] = lambda record: None
        # With others who write parts of the output.
        self.agreed: Callable[[bytes], bytes] = lambda schema: schema

    def note(self, *records: notes.Record, synced: bool = True) -> None:
        """Record something, and take in what it changes; it is durable then, if ``synced``."""
        for record in records:
            self._journal.append(record)
            self.plan = self.state.take(record, self.plan)
        if synced:
            self._journal.sync()

    def settle(self, schema: bytes) -> bytes:
        """Record the output schema, and make it durable before another writer opens; return the one that counts."""
        schema = self.agreed(schema)
        self.note(notes.Settled(schema))
        return schema

    @property
    def ceilings(self) -> dict[str, int]:
        """How many rows at a time fit into memory, by the labels of steps."""
        return self.state.ceilings

    def lower(self, step: str, rows: int) -> None:
        """Record how many rows at a time fit into memory; it is durable from the next ``commit_accepted`` on."""
        self.note(notes.Lowered(step, rows), synced=False)

    def divide(self, parts: Sequence[Shard], *, early: bool = False) -> None:
        """Record that a shard is done in parts.

        If it does not fit into memory, that is durable at once, for a later driver. ``early``: the first
        part is done and about to be committed; ``commit_accepted`` makes both durable, this record first.
        """
        self.note(notes.Divided(tuple(parts), early), synced=not early)
        failpoints.hit("shard.divided")

    def extend(self, shards: Sequence[Shard]) -> None:
        """Record that the run has further shards, of its own input; durable with the commits that follow."""
        self.note(notes.Grown((), tuple(shards), at=time.time()), synced=False)

    def grow(
        self,
        files: Sequence[tuple[str, int, int]],
        shards: Sequence[Shard],
        replaces: Sequence[int] = (),
        again: int = 0,
        reached: InputVersion | None = None,
        *,
        together: bool = False,
    ) -> None:
        """Record that later input files are taken in as further shards; a finished run becomes unfinished.

        If it had finished, they begin a further run of the output, which is revealed once it is complete. The first
        of the shards may take the places of those that are done, ``replaces``, of ``again`` files. ``reached``: the
        version of the input that has these files. ``together``: it becomes durable with the commits that follow.
        """
        state = self.state
        beyond = [record for record in self.committed() if record.shard >= len(self.plan.shards)]
        number = len(state.runs) + 1 if state.runs[-1].ended else 0
        aside = state.finished and (self.gated or not beyond)
        if beyond and not self.revealing.aside:
            self.output.remove_success()
        about = tuple(files), tuple(shards), number, aside or state.hidden, time.time()
        grown_by = notes.Renewed(*about, tuple(replaces), again) if replaces else notes.Grown(*about)
        # The part without rows: there may be rows now.
        gone = [notes.Revoked(record.shard) for record in beyond]
        until = [] if reached is None else [notes.Reached(reached)]
        self.note(*gone, grown_by, *until, synced=not together)
        for record in beyond:
            self.output.place.remove([file.name for file in record.files])
        if beyond or replaces:
            state.recount(self.committed())
        self.output.make(self.plan.run)
        self.sink = bind_sink(self.sink, self.output, self.plan, self.durability, state.runs)
        moment = Moment.END if aside else self.revealing.moment
        self.revealing.close()
        self.revealing = Revealing(self.output, self.plan.run, self.sink, state, moment)

    def save_plan(self, **changed: Any) -> None:
        """Save the plan with other values of some of its fields."""
        self.plan = msgspec.structs.replace(self.plan, **changed)
        write_plan(self.output, self.plan)

    def of_last_run(self) -> Iterator[CommitRecord]:
        """Read the records of the last run back from the journal."""
        first = self.state.runs[-1].shard
        return (record for record in self.committed() if record.shard >= first)

    def accept(self, record: CommitRecord) -> None:
        """Accept a shard's record; it counts from the next ``commit_accepted`` on."""
        self.state.add(record)
        self.revealing.publisher.add(record)

    @property
    def pending(self) -> bool:
        """True while committed shards wait for ``commit_accepted``."""
        return self.revealing.publisher.pending

    def revoke(self, records: Sequence[CommitRecord]) -> list[CommitRecord]:
        """Take back commits whose files are gone, so that their shards are run again.

        Not those with files from before, which a table may have: what they were then is in force again, and returned.
        """
        if not self.revealing.aside or any(record.shard < self.state.runs[-1].shard for record in records):
            self.output.remove_success()
        run = self.state.runs[-1].name(self.plan.run)
        mixed = [record.shard for record in records if with_files_of(run, record) != record]
        found = predecessors(self.plan.shards, self.state.replaced, mixed)
        last = journals.read(self.folder / "journal").last_of({*found.values()})
        earlier = [msgspec.structs.replace(last[old], shard=new) for new, old in found.items()]
        self.note(*(notes.Revoked(record.shard) for record in records), *earlier)
        return earlier

    def revoke_unread(self, records: Sequence[CommitRecord]) -> None:
        """Take back commits that no reader knows of yet; their shards are run again."""
        self.revoke(records)
        for record in records:
            if record.shard < len(self.state.done):
                self.state.done[record.shard] = 0
            if not self.revealing.aside:  # else it may name files from before, too
                self.output.place.remove([file.name for file in record.files])
        self.revealing.publisher.drop(file for record in records for file in record.files)
        self.state.recount(self.committed())

    def commit_accepted(self, *, wait: bool = True) -> None:
        """Make commits durable, then reveal them; without ``wait``, only those whose files are ready."""
        records = self.revealing.publisher.ready(wait=wait)
        if self.durability == "power" and any(record.files for record in records):
            sync_folder(self.folder / "staging")
        self.note(*records)
        self.empty = self.empty and not records
        self.revealing.reveal(records)
        for record in records:
            self.on_published(record)

    @property
    def durability(self) -> Durability:
        """Whether commits survive a loss of power, or only of processes."""
        return self._journal.durability

    def withhold(self, seconds: float, summary: dict[str, Any]) -> None:
        """Everything is committed, and is not to be revealed: keep what ``finish`` would be called with."""
        self.commit_accepted()
        self.note(notes.Withheld(seconds, summary))
        failpoints.hit("finish.withheld")

    def finish(self, seconds: float, summary: dict[str, Any]) -> None:
        """Everything is committed: write the manifest, reveal what is not yet, write ``_SUCCESS``.

        A further run's manifest takes the place of the one that ``_SUCCESS`` names: it is written once that is gone.
        """
        self.commit_accepted()
        state, further = self.state, self.state.hidden
        ended = notes.Finished(seconds, time.time())
        state.end(ended)
        totals = RunTotals(state.runs)
        manifest = totals.manifest(self.committed())
        if not further:
            self._save_manifest(manifest)
        if self.revealing.aside:
            if state.swapping is None:
                self.note(notes.Swapping(self.output.current() or "", seconds, summary))
            failpoints.hit("swap.recorded")
            self.revealing.take_over(self.committed)
        if further:
            self._save_manifest(manifest)
        mark = totals.mark(self.plan.run, state.totals(), state.codes, manifest, summary)
        self.revealing.complete(self.committed, mark, lasting=self.durability == "power")
        state.finished = True
        self._journal.append(ended)
        self._journal.sync()
        failpoints.hit("finish.closed")
        self.output.tidy(self.plan.run)
        if (self.folder / STATES).exists():
            remove_unlisted(self.folder / STATES, set().union(*map(side_files, self.committed())))

    def _save_manifest(self, manifest: bytes) -> None:
        self.output.save(self.plan.run, "manifest", manifest)
        failpoints.hit("finish.manifest")

    def committed(self) -> Iterator[CommitRecord]:
        """Read the records that count back from the journal."""
        return journals.read(self.folder / "journal").lasting()

    def abandon(self) -> None:
        """Give up what was noted and is not durable yet; nothing more is committed."""
        self._journal.abandon()

    def close(self) -> None:
        """Close the journal; unsynced commits are lost and will be done again."""
        self.revealing.close()
        self._journal.close()
