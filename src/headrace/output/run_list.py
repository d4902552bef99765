"""The runs of one output: the first, and each that took in files which were new since the one before.

They share a plan and a journal; a run's shards are those from its first on, up to the next run's. The entries here
come from the journal's records and stand in ``_SUCCESS``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.core.work import HOME, CommitRecord, Ledger, StagedFile
from headrace.output.journal_records import FORMAT

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
