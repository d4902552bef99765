"""What a journal says, in sum: which shards are done, totals, the runs of the output."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.core.table_changes import HELD
from headrace.core.work import CommitRecord, Faults, Ledger, Timings
from headrace.output.journal_records import (
    Divided,
    Finished,
    Grown,
    Lowered,
    Reached,
    Record,
    Renewed,
    Revision,
    Revoked,
    Settled,
    Swapping,
    Withheld,
)
from headrace.output.run_list import RunEntry
from headrace.output.saved_plan import divided, grown
from headrace.plan.physical import InputVersion, SavedPlan


class JournalState(msgspec.Struct):
    """What a journal says: which shards are done, and totals."""

    done: bytearray
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    timings: Timings = msgspec.field(default_factory=Timings)
    passed: list[int] = []
    schema: bytes | None = None
    files: int = 0
    code: dict[str, str] = {}
    revision: int = 0
    codes: dict[int, dict[str, str]] = {}  # by revision
    finished: bool = False
    seconds: float = 0.0
    swapping: Swapping | None = None
    withheld: Withheld | None = None  # all is done, and requirements were not met
    bytes: int = 0
    faults: Faults = msgspec.field(default_factory=Faults)
    ceilings: dict[str, int] = {}
    shard_too_big: bool = False  # a shard did not fit into memory
    runs: list[RunEntry] = []  # of the output; the last may not have finished
    hidden: bool = False  # the last of several runs has not finished, and its parts are not published
    replaced: set[int] = set()  # shards whose rows a further run makes, or has made, again
    versions: list[InputVersion] = []  # of the input that runs have read, the oldest first

    @property
    def shards(self) -> int:
        """How many shards are done, without those that were replaced."""
        return sum(self.done) - len(self.replaced)

    def totals(self) -> dict[str, int]:
        """Return what is in the output, as ``_SUCCESS`` has it."""
        return {
            "rows": self.ledger.written,
            "files": self.files,
            "bytes": self.bytes,
            "shards": self.shards,
        }

    def add(self, record: CommitRecord) -> None:
        """Add a committed shard. One number beyond the last is a part without rows, for the schema.

        One that is replaced does not count any more: totals are those of the output as it will be.
        """
        if record.shard in self.replaced:
            return
        if record.shard < len(self.done):
            self.done[record.shard] = 1
        self.ledger += record.ledger
        self.timings += record.timings
        parts = [file for file in record.files if file.is_part]
        self.bytes += sum(file.size for file in parts)
        self.files += len(parts)
        self.faults += record.faults
        if record.passed:
            before = self.passed or [0] * len(record.passed)
            self.passed = [a + b for a, b in zip(before, record.passed, strict=True)]

    def recount(self, records: Iterable[CommitRecord]) -> None:
        """Make totals anew from the records that count."""
        self.ledger, self.timings, self.faults, self.passed = Ledger(), Timings(), Faults(), []
        self.files = self.bytes = 0
        for record in records:
            self.add(record)

    def take(self, record: Record, plan: SavedPlan) -> SavedPlan:
        """Take in what changes the run, and return its plan as it is then.

        Commits are added one by one, when their files are there.
        """
        if isinstance(record, Revoked | Grown | Finished):
            self.withheld = None
        if isinstance(record, Settled):
            self.schema = record.schema
        elif isinstance(record, Lowered):
            self.ceilings[record.step] = record.rows
        elif isinstance(record, Revision):
            self.revision, self.code = record.number, record.code
            self.codes[record.number] = record.code
        elif isinstance(record, Finished):
            self.finished = True
            self.end(record)
        elif isinstance(record, Revoked):
            self.finished, self.swapping = False, None
        elif isinstance(record, Swapping):
            self.swapping = record
        elif isinstance(record, Withheld):
            self.withheld = record
        elif isinstance(record, Divided):
            plan = divided(plan, record)
            self.shard_too_big = self.shard_too_big or not record.early
        elif isinstance(record, Grown):
            plan = grown(plan, record)
            self._grow(record)
        elif isinstance(record, Reached):
            self.reach(record.input)
        self.done.extend(bytes(max(0, len(plan.shards) - len(self.done))))
        return plan

    def _grow(self, record: Grown) -> None:
        if record.number:
            self.runs.append(RunEntry(record.number, record.shards[0].index, record.at, 0))
        self.runs[-1].files += len(record.files)
        if isinstance(record, Renewed):
            self.replaced.update(record.replaces)
            self.runs[-1].again += record.again
        self.hidden = record.hidden
        self.finished, self.swapping = False, None

    def reach(self, version: InputVersion) -> None:
        """Take in up to where the input was read; by the last run, if it has not ended."""
        self.versions.append(version)
        if not self.runs[-1].ended:
            self.runs[-1].input = {name: each for name, each in version.position.items() if name != HELD}

    def end(self, record: Finished) -> None:
        """Take in that the last run has finished, or is about to."""
        self.seconds += record.seconds
        self.hidden = False
        self.runs[-1].seconds += record.seconds
        self.runs[-1].ended = record.at or self.runs[0].began
