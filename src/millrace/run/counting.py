"""Metrics at work: counted right where rows are written, kept with the shard, merged in the end."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from millrace.core import failpoints, regular
from millrace.core.batch import empty_columns
from millrace.core.ports import Accumulator
from millrace.core.views import lent
from millrace.core.work import CommitRecord, Durability, SideFile
from millrace.errors import BadInput, JournalDamaged, MillraceError, OutputWriteFailed, StepError
from millrace.plan.logical import Accumulate
from millrace.run.beside import beside_name
from millrace.run.failures import is_interrupt, name_of, words
from millrace.run.guard import Where
from millrace.run.output import TEMPORARY, remove_any, sync_folder
from millrace.run.rows import Rows

STATES = "states"
"""The folder, in that of a run, with the states that are too big for its journal."""

MOST_BYTES = 64 << 10  # of a state in a record

States = tuple["bytes | SideFile", ...]


class Counting:
    """The metrics of one attempt. ``show_data``: values may be shown in messages."""

    def __init__(self, steps: Sequence[Accumulate], where: Where, *, show_data: bool = True) -> None:
        self._where = where
        self._show_data = show_data
        self._metrics: list[tuple[Accumulate, str, Accumulator]] = []
        self._tried = False
        for step in steps:
            for name, metric in step.metrics:
                with _guarded(name, "", show_data=show_data):
                    self._metrics.append((step, name, metric.empty()))

    def update(self, rows: Rows) -> None:
        """Count rows that are written now."""
        for step, name, metric in self._metrics:
            batch = lent(_seen(step, metric, rows), "pyarrow", tried=self._tried)
            try:
                with _guarded(name, "", show_data=self._show_data):
                    metric.update(batch)
            except StepError as error:  # looking up which rows these are may be slow: only now
                raise type(error)(f"{error} This was in {self._where(rows)}.") from error.__cause__
        self._tried = True

    def states(self) -> tuple[bytes, ...]:
        """Return what was counted."""
        states = []
        for _, name, metric in self._metrics:
            with _guarded(name, "its state: ", show_data=self._show_data):
                states.append(metric.to_bytes())
        return tuple(states)


@contextlib.contextmanager
def _guarded(name: str, doing: str, *, show_data: bool = True) -> Iterator[None]:
    """Let what a metric raises say which one it was."""
    try:
        yield
    except MillraceError as error:
        raise BadInput(f"accumulate({name}): {error}") from error
    except BaseException as error:
        if is_interrupt(error):
            raise
        said = f": {words(error)}" if show_data else ""
        failed = f"accumulate({name}) failed: {doing}{name_of(error)}{said}."
        raise StepError(failed) from (error if show_data else None)


def _seen(step: Accumulate, metric: Accumulator, rows: Rows) -> pa.RecordBatch:
    """Return the columns that a metric reads, as they were at its step."""
    names = list(dict.fromkeys(metric.columns))
    if not names:
        return empty_columns(len(rows))
    beside = rows.beside
    if beside is None or beside.num_rows != len(rows):
        raise AssertionError("a step lost the columns that metrics read")
    return pa.RecordBatch.from_arrays([beside.column(beside_name(step, name)) for name in names], names=names)


def kept(states: Sequence[bytes], folder: str, durability: Durability) -> States:
    """Write states that are too big for a record to files of the run; they are there for good afterwards.

    A file is named by what is in it, so whoever writes it, and how often, makes no difference.
    """
    if not folder:
        return tuple(states)
    return tuple(
        state if len(state) <= MOST_BYTES else _side_file(state, Path(folder), durability) for state in states
    )


def _side_file(state: bytes, folder: Path, durability: Durability) -> SideFile:
    name = hashlib.sha256(state).hexdigest()
    temporary = folder / f"{name}.{os.getpid()}{TEMPORARY}"
    try:
        regular.make_folder(folder, 0o700)
        temporary.unlink(missing_ok=True)
        regular.create(temporary, state, lasting=durability == "power")
        failpoints.hit("state.written")
        temporary.rename(folder / name)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OutputWriteFailed(
            f"The state of a metric could not be written to {folder}: {error.strerror}. Make room or fix the disk, "
            "then run the same command again: what is committed is kept."
        ) from error
    if durability == "power":
        sync_folder(folder)
        sync_folder(folder.parent)
    return SideFile(name, len(state))


def are_there(record: CommitRecord, folder: Path) -> bool:
    """Say whether the files are there that hold a record's big states."""
    for state in record.states:
        if isinstance(state, SideFile):
            try:
                if regular.size(folder / STATES / state.sha256) != state.size:
                    return False
            except OSError:
                return False
    return True


def side_files(record: CommitRecord) -> set[str]:
    """Return the names of the files that a record's states are in."""
    return {state.sha256 for state in record.states if isinstance(state, SideFile)}


def sweep(folder: Path, named: Container[str]) -> None:
    """Remove files of states that no record names: their attempts were never committed."""
    states = folder / STATES
    if not regular.is_folder(states):
        return
    for path in states.iterdir():
        if path.name not in named:
            remove_any(path)


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
        with _guarded(type(total).__name__, "merging: "):
            total.merge(total.from_bytes(data))


def _read(state: SideFile, folder: Path | None) -> bytes:
    assert folder is not None
    path = folder / STATES / state.sha256
    try:
        data = regular.content(path)
    except OSError as error:
        raise JournalDamaged(_lost(path, f"cannot be read: {error.strerror}")) from error
    if hashlib.sha256(data).hexdigest() != state.sha256:
        raise JournalDamaged(_lost(path, "is damaged"))
    return data


def _lost(path: Path, how: str) -> str:
    return (
        f"{path}, the state of a metric, {how}. What it counted is not known without it: restore the file from a "
        "copy, or remove it and run the same command again, which does the shard anew."
    )
