"""The records of a journal, and what they say in sum: which shards are done, totals, the runs of the output.

``tests/museum/format.md`` lists the records.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.core.table_changes import HELD
from headrace.core.work import HOME, CommitRecord, Faults, Ledger, Shard, StagedFile, Timings
from headrace.plan.physical import InputVersion, SavedPlan

FORMAT = 1
"""The version of an output's format, see docs/reference/output-format.md. A higher one is refused."""


class Opened(msgspec.Struct, frozen=True, tag="opened", array_like=True):
    """The first record: which run this journal belongs to, and the version that writes from here on.

    Another version that goes on with the run adds one of its own.
    """

    run: str
    headrace: str = ""
    format: int = FORMAT


class Revision(msgspec.Struct, frozen=True, tag="revision", array_like=True):
    """From here on shards are made by other code; ``code`` maps each function to its fingerprint."""

    number: int
    code: dict[str, str]


class Settled(msgspec.Struct, frozen=True, tag="settled", array_like=True):
    """The output schema, as Arrow IPC bytes. The last one counts."""

    schema: bytes


class Lowered(msgspec.Struct, frozen=True, tag="lowered", array_like=True):
    """Memory did not suffice for more than ``rows`` rows at a time in ``step``."""

    step: str
    rows: int


class Revoked(msgspec.Struct, frozen=True, tag="revoked", array_like=True):
    """A committed shard whose files are gone: it counts no more and is run again."""

    shard: int


class Divided(msgspec.Struct, frozen=True, tag="divided", array_like=True):
    """A shard is done in these parts: the first has its number, the others new ones.

    It did not fit into memory; or, ``early``, its first part was closed before its end, as the whole took long.
    """

    parts: tuple[Shard, ...]
    early: bool = False


class Grown(msgspec.Struct, frozen=True, tag="grown", array_like=True):
    """Input files that are new since the plan become further shards, after the others. The run is not finished.

    ``number``: they begin the output's run of this number; 0: they join the last one, which had not finished.
    ``hidden``: its parts stay out of sight until all are there, as ``_SUCCESS`` speaks of those before it.
    """

    files: tuple[tuple[str, int, int], ...]
    shards: tuple[Shard, ...]
    number: int = 0
    hidden: bool = False
    at: float = 0.0


class Renewed(Grown, frozen=True, tag="renewed", array_like=True):
    """As ``Grown``, and the rows of some shards are made again: by the first of ``shards``, one for each.

    What is replaced stays in force until ``Swapping``; not at all where the new parts are not ``hidden``.
    ``again``: of how many input files they are.
    """

    replaces: tuple[int, ...] = ()
    again: int = 0


class Reached(msgspec.Struct, frozen=True, tag="reached", array_like=True):
    """What is new up to this version of the input was taken in by the records before."""

    input: InputVersion


class Swapping(msgspec.Struct, frozen=True, tag="swapping", array_like=True):
    """All parts are there; from here on this run takes the place of ``old``.

    ``seconds`` and ``summary`` are what its driver was about to finish with, should another have to do it.
    """

    old: str
    seconds: float
    summary: dict[str, Any]


class Withheld(msgspec.Struct, frozen=True, tag="withheld", array_like=True):
    """All parts are there, and the run is not revealed, as what ``summary`` says is not as it was required.

    The last one counts, until a shard is revoked or more input is taken in. ``seconds`` and ``summary`` are what the
    run is finished with if somebody publishes it all the same.
    """

    seconds: float
    summary: dict[str, Any]


class Finished(msgspec.Struct, frozen=True, tag="finished", array_like=True):
    """Everything is published; ``seconds`` is the wall time of the driver that finished it, ``at`` when that was."""

    seconds: float
    at: float = 0.0


_Note = Opened | Revision | Settled | Lowered | Revoked | Divided | Grown | Renewed | Reached
Record = _Note | CommitRecord | Swapping | Withheld | Finished


# ------------------------------------------------------------ runs


Code = Mapping[str, str]


class RunEntry(msgspec.Struct):
    """One run of an output: its number, its first shard, when it began and ended, how many input files it took in.

    ``again``: of how many files that were read before it makes the rows again. ``input``: the ``position`` of an
    input that has versions, up to which it has read. ``ended`` is 0 until it has finished; times are seconds since
    1970.
    """

    number: int
    shard: int
    began: float
    files: int
    ended: float = 0.0
    seconds: float = 0.0
    again: int = 0
    input: dict[str, Any] = {}

    def name(self, first: str) -> str:
        """Return the run's name: the first gives its name to the parts and to all later ones.

        >>> RunEntry(1, 0, 0.0, 3).name("k3f9a2xq"), RunEntry(2, 8, 0.0, 1).name("k3f9a2xq")
        ('k3f9a2xq', 'k3f9a2xq-2')
        """
        return first if self.number == 1 else f"{first}-{self.number}"


def run_at(entries: Sequence[RunEntry], shard: int) -> RunEntry:
    """Return the run of an output that a shard is of.

    >>> run_at([RunEntry(1, 0, 0.0, 3), RunEntry(2, 8, 0.0, 1)], 7).number
    1
    """
    return entries[bisect_right(entries, shard, key=lambda entry: entry.shard) - 1]


class _Totals(msgspec.Struct):
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    parts: int = 0
    bytes: int = 0
    revisions: set[int] = msgspec.field(default_factory=set)


class RunTotals:
    """Adds up commit records by the run that they belong to."""

    def __init__(self, entries: Sequence[RunEntry]) -> None:
        self._entries = entries
        self._totals = [_Totals() for _ in entries]

    def add(self, record: CommitRecord) -> None:
        """Add a shard's record to its run."""
        totals = self._totals[run_at(self._entries, record.shard).number - 1]
        totals.ledger += record.ledger
        totals.revisions.add(record.revision)
        for file in record.files:
            if file.is_part:
                totals.parts += 1
                totals.bytes += file.size

    def manifest(self, records: Iterable[CommitRecord]) -> bytes:
        """Add up records, and list the files that they name, a line of JSON for each."""
        files: list[StagedFile] = []
        for record in records:
            self.add(record)
            files += record.files
        files.sort(key=lambda file: file.name)
        return b"".join(msgspec.json.encode(manifest_entry(file)) + b"\n" for file in files)

    def mark(
        self,
        first: str,
        totals: Mapping[str, int],
        codes: Mapping[int, Code],
        manifest: bytes,
        summary: Mapping[str, Any],
    ) -> bytes:
        """Return the content of ``_SUCCESS``; ``totals`` of the output, ``first`` of its runs."""
        success = {
            "format": FORMAT,
            "run": first,
            **totals,
            "manifest": f"{HOME}/{first}/manifest",
            "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
            "runs": self.listed(first, codes),
            **summary,
        }
        return msgspec.json.format(msgspec.json.encode(success), indent=2) + b"\n"

    def listed(self, first: str, codes: Mapping[int, Code]) -> list[dict[str, Any]]:
        """Return the runs as ``_SUCCESS`` names them. ``code`` has a digest for each version of the functions that
        made rows of the run: the same digest, the same functions."""
        return [
            {
                "run": entry.name(first),
                "began": time_text(entry.began),
                "ended": time_text(entry.ended),
                "seconds": round(entry.seconds, 3),
                "input_files": entry.files,
                **({"input_files_again": entry.again} if entry.again else {}),
                **({"input": entry.input} if entry.input else {}),
                "rows_read": totals.ledger.read,
                "rows": totals.ledger.written,
                "rejected": totals.ledger.rejected,
                "files": totals.parts,
                "bytes": totals.bytes,
                "code": [digest_of(codes.get(number, {})) for number in sorted(totals.revisions)],
            }
            for entry, totals in zip(self._entries, self._totals, strict=True)
        ]


def manifest_entry(file: StagedFile) -> dict[str, Any]:
    """Return what the manifest says of a file."""
    return {"name": file.name, "rows": file.rows, "size": file.size, "crc32": file.crc32}


def digest_of(code: Code) -> str:
    """Return a short digest of a plan's functions.

    >>> digest_of({}) == digest_of({}), len(digest_of({"0: the code of map(f)": "7a"}))
    (True, 16)
    """
    return hashlib.sha256(msgspec.json.encode(code, order="sorted")).hexdigest()[:16]


def time_text(seconds: float) -> str | None:
    """Return a moment in UTC as text; None for 0.

    >>> time_text(1_790_000_000.0), time_text(0.0)
    ('2026-09-21T14:13:20Z', None)
    """
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
        return {"rows": self.ledger.written, "files": self.files, "bytes": self.bytes, "shards": self.shards}

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
        for file in record.files:
            if file.is_part:
                self.bytes += file.size
                self.files += 1
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


# ------------------------------------------------------------ shards that came to a plan later


def divided(plan: SavedPlan, record: Divided) -> SavedPlan:
    """Return the plan with a shard in parts; unchanged if it was saved with them."""
    first, *others = record.parts
    if others[0].index < len(plan.shards):
        return plan
    shards = [*plan.shards, *others]
    shards[first.index] = first
    return msgspec.structs.replace(plan, shards=shards)


def grown(plan: SavedPlan, record: Grown) -> SavedPlan:
    """Return the plan with further files and shards; unchanged if it was saved with them."""
    if record.shards[0].index < len(plan.shards):
        return plan
    return msgspec.structs.replace(
        plan, files=[*plan.files, *record.files], shards=[*plan.shards, *record.shards]
    )


def successors(shards: Sequence[Shard], older: Sequence[int]) -> dict[int, Shard]:
    """Return, for each of some shards, a further one of the same rows and place."""
    old = sorted((shards[number] for number in older), key=lambda shard: shard.place)
    made = (Shard(len(shards) + i, each.splits, each.name or str(each.index)) for i, each in enumerate(old))
    return {each.index: shard for each, shard in zip(old, made, strict=True)}


def predecessors(shards: Sequence[Shard], replaced: Iterable[int], newer: Collection[int]) -> dict[int, int]:
    """Return, for some shards, the one of the same rows that each was to replace: of several, the last.

    >>> shards = [Shard(0, ()), Shard(1, ())]
    >>> predecessors([*shards, *successors(shards, [1]).values()], [1], [0, 2])
    {2: 1}
    """
    older = sorted(replaced)
    return {
        new: old for old in older for new in newer if old < new and shards[old].place == shards[new].place
    }
