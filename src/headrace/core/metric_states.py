"""What metrics counted of a shard: written beside its commit record, read again, merged."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core import failpoints
from headrace.core.failures import is_interrupt, name_of, words
from headrace.core.files import safe_files
from headrace.core.model_ports import Accumulator
from headrace.core.work import CommitRecord, Durability, SideFile
from headrace.errors import (
    ArgumentError,
    BadInput,
    HeadraceError,
    JournalDamaged,
    OutputWriteFailed,
    StepError,
)

STATES = "states"
"""The folder, in that of a run, with the states that are too big for its journal."""

MOST_BYTES = 64 << 10  # of a state in a record

States = tuple["bytes | SideFile", ...]


@contextlib.contextmanager
def guarded(name: str, doing: str, *, show_data: bool = True) -> Iterator[None]:
    """Let what a metric raises say which one it was."""
    try:
        yield
    except ArgumentError:  # from the metrics of Dataset.sum and its like: it names the verb and the column
        raise
    except HeadraceError as error:
        raise BadInput(f"accumulate({name}): {error}") from error
    except BaseException as error:
        if is_interrupt(error):
            raise
        said = f": {words(error)}" if show_data else ""
        failed = f"accumulate({name}) failed: {doing}{name_of(error)}{said}."
        raise StepError(failed) from (error if show_data else None)


def stored(states: Sequence[bytes], folder: str, durability: Durability) -> States:
    """Write states that are too big for a record to files of the run; they are there for good afterwards.

    A file is named by what is in it, so whoever writes it, and how often, makes no difference.
    """
    if not folder:
        return tuple(states)
    return tuple(
        state if len(state) <= MOST_BYTES else _side_file(state, Path(folder), durability) for state in states
    )


def _side_file(state: bytes, folder: Path, durability: Durability) -> SideFile:
    import hashlib

    name = hashlib.sha256(state).hexdigest()
    temporary = folder / f"{name}.{os.getpid()}{safe_files.TEMPORARY}"
    try:
        safe_files.make_folder(folder, 0o700)
        temporary.unlink(missing_ok=True)
        safe_files.create(temporary, state, lasting=durability == "power")
        failpoints.hit("state.written")
        temporary.rename(folder / name)
        if durability == "power":
            safe_files.sync_folder(folder)
            safe_files.sync_folder(folder.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OutputWriteFailed(
            f"The state of a metric could not be written to {folder}: {error.strerror}. Make room or fix the disk, "
            "then run the same command again: finished work is kept."
        ) from error
    return SideFile(name, len(state))


def are_there(record: CommitRecord, folder: Path) -> bool:
    """Say whether the files are there that hold a record's big states."""
    for state in record.states:
        if isinstance(state, SideFile):
            try:
                if safe_files.size(folder / STATES / state.sha256) != state.size:
                    return False
            except OSError:
                return False
    return True


def side_files(record: CommitRecord) -> set[str]:
    """Return the names of the files that a record's states are in."""
    return {state.sha256 for state in record.states if isinstance(state, SideFile)}


def merged(
    metrics: Sequence[tuple[str, Accumulator]], records: Iterable[States], folder: Path | None = None
) -> list[Accumulator]:
    """Merge the states of committed shards, which come in their order."""
    totals = [metric.empty() for _, metric in metrics]
    for states in records:
        merge(totals, states, folder)
    return totals


def merge(totals: Sequence[Accumulator], states: States, folder: Path | None = None) -> None:
    """Add what a shard counted to the totals."""
    for total, state in zip(totals, states, strict=True):
        data = _read(state, folder) if isinstance(state, SideFile) else state
        with guarded(type(total).__name__, "merging: "):
            total.merge(total.from_bytes(data))


def _read(state: SideFile, folder: Path | None) -> bytes:
    assert folder is not None
    path = folder / STATES / state.sha256
    try:
        data = safe_files.content(path)
    except OSError as error:
        raise JournalDamaged(_lost(path, f"cannot be read: {error.strerror}")) from error
    import hashlib

    if hashlib.sha256(data).hexdigest() != state.sha256:
        raise JournalDamaged(_lost(path, "is damaged"))
    return data


def _lost(path: Path, how: str) -> str:
    return (
        f"{path}, the state of a metric, {how}. Without it, it is not known what it counted: restore the file from a "
        "copy, or remove it and run the same command again, which does its rows again."
    )


def plain(value: Any) -> Any:
    """Return a result as JSON has it: numbers that are none as null, estimates with their bounds.

    >>> plain({1: (0.5, math.nan)})
    {'1': [0.5, None]}
    """
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        number = float(value) if math.isfinite(value) else None
        if hasattr(value, "low") and hasattr(value, "high"):
            return {"value": number, "low": value.low, "high": value.high}
        return number
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
