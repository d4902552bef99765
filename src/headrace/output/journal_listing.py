"""What a journal holds, record by record, for people who look for a fault. A damaged one is listed up to the damage.

Everything here only reads; nothing that lies in an output is executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.files import safe_files
from headrace.core.work import CommitRecord, Shard, SideFile, Split
from headrace.errors import JournalDamaged
from headrace.output.journal import (
    Divided,
    Finished,
    Grown,
    Lowered,
    Opened,
    Reached,
    Record,
    Renewed,
    Revision,
    Revoked,
    Settled,
    Swapping,
)
from headrace.output.journal_frames import HEAD, frames, valid_end, valid_length
from headrace.output.saved_plan import read_plan_at

_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a journal: the byte at which its frame begins, its length, its kind, and what it says.

    ``record`` is None if this version cannot decode it.
    """

    offset: int
    length: int
    kind: str
    fields: dict[str, Any]
    record: Record | None


@dataclass(frozen=True, slots=True)
class JournalListing:
    """A journal: its entries in order, the bytes behind them, and what is wrong with it.

    ``torn``: bytes behind the last record that were never synced, of a driver that was killed or that is writing now.
    ``damage``: where it is damaged, and why; empty if it is not.
    """

    path: Path
    size: int
    entries: tuple[Entry, ...]
    torn: int
    damage: str

    @property
    def committed(self) -> dict[int, CommitRecord]:
        """The commit records that count, by shard: those that were not revoked later, and are not replaced."""
        found: dict[int, CommitRecord] = {}
        for entry in self.entries:
            if isinstance(entry.record, CommitRecord):
                found.setdefault(entry.record.shard, entry.record)
            elif isinstance(entry.record, Revoked):
                found.pop(entry.record.shard, None)
            elif isinstance(entry.record, Renewed):
                for shard in entry.record.replaces:
                    found.pop(shard, None)
        return found


def list_journal(path: Path) -> JournalListing:
    """Read a journal. Raises ``JournalDamaged`` if there is no file that can be read; damage inside is listed."""
    try:
        data = safe_files.mapped(path)
    except OSError as error:
        raise JournalDamaged(
            f"The journal {path} cannot be read: {error.strerror}. Restore it from a copy."
        ) from error
    shards, files = _planned(path.parent)
    entries = [_entry(data, offset, end, shards, files) for offset, end in frames(data)]
    end, damage = valid_end(data), ""
    try:
        valid_length(path, data)
    except JournalDamaged as error:
        damage = str(error)
    return JournalListing(path, len(data), tuple(entries), 0 if damage else len(data) - end, damage)


def _planned(folder: Path) -> tuple[dict[int, Shard], list[str]]:
    """Return the shards and the input files of a run's plan; none if it cannot be read."""
    try:
        plan = read_plan_at(folder)
    except JournalDamaged:
        return {}, []
    return {shard.index: shard for shard in plan.shards}, [name for name, *_ in plan.files]


def _entry(data: memoryview, offset: int, end: int, shards: dict[int, Shard], files: list[str]) -> Entry:
    """Return the record in a frame. ``shards`` are those up to there, and grow, as do ``files``, the inputs."""
    try:
        record = _decoder.decode(data[offset + HEAD.size : end])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Entry(offset, end - offset, "unknown", {"error": str(error)}, None)
    kind = str(type(record).__struct_config__.tag)
    return Entry(offset, end - offset, kind, _fields(record, shards, files), record)


def _fields(record: Record, shards: dict[int, Shard], files: list[str]) -> dict[str, Any]:
    match record:
        case CommitRecord():
            return _commit(record, shards.get(record.shard), files)
        case Opened():
            return {"run": record.run, "headrace": record.headrace}
        case Revision():
            return {"revision": record.number, "code": record.code}
        case Settled():
            return {"schema": _schema(record.schema)}
        case Lowered():
            return {"step": record.step, "rows": record.rows}
        case Revoked():
            return {"shard": record.shard, "name": _name(record.shard, shards.get(record.shard))}
        case Divided():
            return {"parts": [_shard(part, shards) for part in record.parts], "early": record.early}
        case Grown():
            files += [name for name, *_ in record.files]
            added = [{"name": name, "size": size} for name, size, _ in record.files]
            listed = [_shard(shard, shards) for shard in record.shards]
            found = {"run": record.number or None, "files": added, "shards": listed, "hidden": record.hidden}
            return {**found, "replaces": list(record.replaces)} if isinstance(record, Renewed) else found
        case Reached():
            return {"input": record.input.position}
        case Swapping():
            return {"replaces": record.old, "seconds": record.seconds}
        case Finished():
            return {"seconds": record.seconds}


def _commit(record: CommitRecord, shard: Shard | None, files: list[str]) -> dict[str, Any]:
    ledger = record.ledger
    return {
        "shard": record.shard,
        "name": _name(record.shard, shard),
        "attempt": record.attempt,
        "revision": record.revision,
        "rows_in": ledger.read,
        "rows_out": ledger.written,
        "rows_rejected": ledger.rejected,
        "rows_nulled": ledger.nulled,
        "steps": [{"rows_in": rows_in, "rows_out": rows_out} for rows_in, rows_out in ledger.steps],
        "splits": [_split(split, files) for split in shard.splits] if shard is not None else None,
        "files": [
            {
                "name": file.name,
                "staged": file.staged,
                "rows": file.rows,
                "size": file.size,
                "crc32": f"{file.crc32:08x}",
            }
            for file in record.files
        ],
        "metric_states": [
            {"file": state.sha256, "size": state.size}
            if isinstance(state, SideFile)
            else {"size": len(state)}
            for state in record.states
        ],
    }


def _shard(shard: Shard, shards: dict[int, Shard]) -> dict[str, Any]:
    shards[shard.index] = shard
    return {"shard": shard.index, "name": shard.label(), "rows": shard.rows if shard.rows >= 0 else None}


def _name(index: int, shard: Shard | None) -> str:
    return shard.label() if shard is not None else str(index)


def _split(split: Split, files: list[str]) -> dict[str, Any]:
    """Return what a split reads: rows of a file, by their numbers if these are known; or of some files."""
    known = split.first >= 0 and split.length >= 0 and split.stop >= -1
    return {
        "file": files[split.file] if 0 <= split.file < len(files) else None,
        "start": split.start,
        "stop": split.stop,
        "first_row": split.first + split.low if known else None,
        "rows": split.length if split.length >= 0 else None,
    }


def _schema(data: bytes) -> list[str] | None:
    """Return the columns of a schema, with their types; None if it cannot be read."""
    from headrace.core.arrow.batch import schema_from

    try:
        return [f"{field.name}: {field.type}" for field in schema_from(data)]
    except JournalDamaged:
        return None
