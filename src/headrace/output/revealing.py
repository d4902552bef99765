"""What a run shows readers, and when: journalled, then revealed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from headrace.core.arrow.batch import schema_from
from headrace.core.failures import errors_of_publishing
from headrace.core.target_ports import Moment, Sink, Target
from headrace.core.work import CommitRecord, Durability, StagedFile
from headrace.output.journal_state import JournalState, RunEntry
from headrace.output.layout import Output
from headrace.output.names import is_of
from headrace.plan.physical import SavedPlan

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
    source = msgspec.json.decode(plan.shape).get("source")
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
