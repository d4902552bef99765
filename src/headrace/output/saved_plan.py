"""A run's saved plan: its file, and the shards that came to it later."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.files import safe_files
from headrace.core.work import Shard
from headrace.errors import JournalDamaged
from headrace.output.journal_records import Divided, Grown
from headrace.output.layout import Output
from headrace.output.names import other_version
from headrace.plan.physical import SavedPlan


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


def sealed(data: bytes) -> bytes:
    """Return bytes with their hash in front."""
    return hashlib.sha256(data).digest() + data


def unsealed(data: bytes) -> bytes | None:
    """Return the bytes behind their hash; None if that is another one.

    >>> unsealed(sealed(b"plan")), unsealed(sealed(b"plan")[:-1])
    (b'plan', None)
    """
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def write_plan(output: Output, plan: SavedPlan, *, named: bool = True) -> None:
    """Save a run's plan, sealed. ``named`` False: the caller syncs its folder."""
    output.save(plan.run, "plan", sealed(plan.encode()), named=named)


def read_plan(output: Output, run: str) -> SavedPlan:
    """Read a run's saved plan; a damaged one is refused."""
    return read_plan_at(output.folder(run))


def read_plan_at(folder: Path) -> SavedPlan:
    """Read the saved plan in a run's folder."""
    path = folder / "plan"
    try:
        data = safe_files.content(path)
    except OSError as error:
        raise JournalDamaged(_unreadable_plan(f"cannot be read: {error.strerror}", str(path))) from error
    plan = unsealed(data)
    if plan is None:
        raise JournalDamaged(_unreadable_plan("is damaged", str(path)))
    try:
        return SavedPlan.decode(plan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = f"The saved plan {path} is of a form"
        raise JournalDamaged(other_version(what, _writer(plan))) from error


def _writer(data: bytes) -> str | None:
    """Return the version that says it wrote a plan, if it can be read so far."""
    known: Any = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        known = msgspec.msgpack.decode(data)
    return known.get("headrace") if isinstance(known, dict) else None


def _unreadable_plan(how: str, path: str) -> str:
    return (
        f"The saved plan {path} {how}. Without it, it is not known which rows are in which file, so nothing was "
        "changed. Restore the file from a copy, or write to a new folder."
    )
