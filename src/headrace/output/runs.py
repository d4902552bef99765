"""An output folder as it lies there: its runs, what their journals say, and the rows that were set aside.

No lock is kept, nothing is swept; but for ``begin_record``, everything here only reads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.arrow.batch import schema_from
from headrace.core.files import safe_files
from headrace.core.rejected import COLUMNS, rejected_schema
from headrace.core.stores.addresses import Options
from headrace.core.work import HOME, REJECTED, SUCCESS, CommitRecord, Shard, StagedFile
from headrace.errors import ArgumentError, JournalDamaged, NothingMatched, nearest
from headrace.observers.record import EVENTS
from headrace.observers.record_reader import listed
from headrace.output import journal as journals
from headrace.output.journal_state import JournalState
from headrace.output.layout import read_plan
from headrace.output.names import check_names, place_of, read_pointer
from headrace.output.places.place import Place, looked_at
from headrace.output.recover import replay
from headrace.plan.physical import SavedPlan
from headrace.sources.memory import table_of


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run of an output: its plan, and what its journal says was committed. ``torn``: bytes after the last whole
    record, of a driver that was killed while it wrote. ``hidden``: it is to take another's place. ``marked``:
    ``_SUCCESS`` is there."""

    name: str
    folder: Path
    hidden: bool
    plan: SavedPlan
    state: JournalState
    records: tuple[CommitRecord, ...]
    torn: int
    leaving: frozenset[str] = frozenset()  # parts that count no more, and may be there still
    marked: bool = False

    @property
    def finished(self) -> bool:
        """True if the journal says that everything is published."""
        return self.state.finished

    @property
    def complete(self) -> bool:
        """True if it is what readers see."""
        return self.finished and self.standing

    @property
    def standing(self) -> bool:
        """True if readers see parts of this run: all, or those before a further run's."""
        return (self.finished or self.state.hidden) and not self.hidden and self.marked

    @property
    def waits(self) -> bool:
        """True if it is complete, and waits to be published."""
        return self.state.withheld is not None and not self.finished

    def before_further_run(self) -> SavedRun:
        """Return the run as it was when it had last finished, where a further run is not complete."""
        first = self.state.runs[-1]
        files = self.plan.files[: len(self.plan.files) - first.files]
        plan = msgspec.structs.replace(self.plan, shards=self.plan.shards[: first.shard], files=files)
        contents = journals.read(self.folder / "journal").before(first.number)
        return _replayed(self.folder, plan, contents, hidden=False, marked=self.marked)

    def in_order(self) -> list[CommitRecord]:
        """Return the records in the order of their rows, without those that later ones are to replace."""
        places = [shard.place for shard in self.plan.shards]
        return sorted(
            (each for each in self.records if each.shard not in self.state.replaced),
            key=lambda each: places[each.shard] if each.shard < len(places) else (each.shard,),
        )

    def place_of(self, file: StagedFile, output: Place) -> str:
        """Return the name under which a file lies: its own, or that under which it waits to get it."""
        return file.name if self.finished else place_of(self.name, file, output)

    @property
    def shards(self) -> list[Shard]:
        """The shards, without those that were replaced."""
        return [shard for shard in self.plan.shards if shard.index not in self.state.replaced]

    @property
    def counted(self) -> bool:
        """True if the plan knows how many rows there are to read."""
        return all(shard.rows >= 0 for shard in self.plan.shards)


def pointer(root: Path, name: str) -> str | None:
    """Return the run that ``current`` or ``next`` names; raises ``JournalDamaged`` if that is no run's name."""
    return read_pointer(root / HOME / name)


def named_run(root: Path) -> str:
    """Return the run that ``current`` names; "" if it names none, or is damaged."""
    with contextlib.suppress(JournalDamaged):
        return pointer(root, "current") or ""
    return ""


def is_output(root: Path) -> bool:
    """Say whether a folder is, or is to be, an output of ours."""
    return (root / HOME).is_dir()


def check_is_folder(root: Path) -> None:
    """Raise ``NothingMatched`` where there is no folder."""
    if root.is_file():
        raise NothingMatched(f"{str(root)!r} is a file, and not a folder.")
    if not root.is_dir():
        names = os.listdir(root.parent) if root.parent.is_dir() else []
        raise NothingMatched(f"There is no folder {str(root)!r}.{nearest(root.name, names)}")


def check_is_output(root: Path) -> None:
    """Raise ``NothingMatched`` for a folder that no run has written to."""
    if is_output(root):
        return
    check_is_folder(root)
    marked = (root / SUCCESS).exists()
    raise NothingMatched(
        f"{str(root)!r} is not an output of Headrace, or not any more: there is no folder {HOME} in it"
        + (f", though there is a file {SUCCESS}" if marked else "")
        + "."
    )


def load(root: Path, name: str, *, hidden: bool = False) -> SavedRun:
    """Read a run; raises ``JournalDamaged`` where what is there cannot be trusted."""
    folder, marked = root / HOME / name, (root / SUCCESS).exists()
    plan, contents = read_plan(folder), journals.read(folder / "journal")
    return _replayed(folder, plan, contents, hidden=hidden, marked=marked)


def _replayed(
    folder: Path, plan: SavedPlan, contents: journals.Contents, *, hidden: bool, marked: bool
) -> SavedRun:
    plan, state = replay(plan, contents.notes())
    records = tuple(check_names(contents.in_force(), folder.name, folder))
    for record in records:
        state.add(record)
    torn, leaving = contents.torn, contents.leaving()
    return SavedRun(folder.name, folder, hidden, plan, state, records, torn, leaving, marked)


def current_run(root: Path) -> SavedRun | None:
    """Read the run whose parts are in the folder; None if there is none yet."""
    name = pointer(root, "current")
    return load(root, name) if name is not None else None


def next_run(root: Path) -> SavedRun | None:
    """Read the hidden run of an overwrite that is not complete."""
    name = pointer(root, "next")
    return load(root, name, hidden=True) if name is not None else None


def begun_runs(root: Path) -> list[SavedRun]:
    """Read the runs of an output: first the one that is to take the place of the other."""
    return [run for run in (next_run(root), current_run(root)) if run is not None]


def shown_run(root: Path) -> SavedRun | None:
    """Read the run that readers see: the last one that is complete; None if there is none."""
    run = current_run(root)
    if run is None or not run.standing:
        return None
    return run if run.finished else run.before_further_run()


def waiting_run(root: Path) -> SavedRun | None:
    """Read the run that is complete and waits to be published; None if there is none."""
    return next((run for run in begun_runs(root) if run.waits), None)


def begin_record(folder: Path, number: int) -> None:
    """Let a run of an output that has earlier ones begin a record of its own; theirs become ``events-1.jsonl``, ….

    Called by each driver of the run; only the first finds the record of the run before.
    """
    if number == 1 or (folder / f"events-{number - 1}.jsonl").exists():
        return
    with contextlib.suppress(OSError):
        os.rename(folder / EVENTS, folder / f"events-{number - 1}.jsonl")


def success_of(root: Path, run: str, number: int = 1) -> Mapping[str, Any] | None:
    """Return the content of ``_SUCCESS``, if it is there, belongs to this run, and names so many of its runs."""
    success = _success(root)
    if success is None or success.get("run") != run:
        return None
    return success if number == 1 or len(listed(success, "runs")) >= number else None


def unreadable_success(root: Path) -> str:
    """Say that ``_SUCCESS`` is not what a run has written; "" if it is not there, or as it should be."""
    there = os.path.lexists(root / SUCCESS)
    return f"{SUCCESS} cannot be read" if there and _success(root) is None else ""


def _success(root: Path) -> dict[str, Any] | None:
    try:
        success = msgspec.json.decode(safe_files.read(root / SUCCESS))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return success if isinstance(success, dict) else None


# ------------------------------------------------------------ rejected rows


_AT_ONCE = 8


def rejected_rows(path: str | os.PathLike[str], options: Options = ()) -> pa.Table:
    """Read the rejected rows of an output in their order; of one that waits for its first publishing, those of it.

    Files are mapped, not copied; objects of a store are fetched.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"read_rejected takes the folder that was written to, not {path!r}.")
    with looked_at(path, options) as output:
        check_is_output(output.root)
        published = (name for name in output.listed(REJECTED) if name.startswith(f"{REJECTED}/part-"))
        names = sorted(name for name in published if name.endswith(".arrow")) or _waiting(output)
        if not names:
            return rejected_schema(_columns(output.root)).empty_table()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-rejected") as threads:
            tables = list(threads.map(partial(_table, output), names))
    return pa.concat_tables(tables, promote_options="permissive")


def _waiting(output: Place) -> list[str]:
    """Return the files of rejected rows of an output of which nothing is published yet; none of another output."""
    run = next_run(output.root) if pointer(output.root, "current") is None else None
    if run is None:
        return []
    files = (file for record in run.records for file in record.files if not file.is_part)
    return [run.place_of(file, output) for file in files]


def _columns(root: Path) -> pa.Schema:
    """Return the source's schema, if a run without rejected rows has left it."""
    try:
        run = named_run(root) or pointer(root, "next") or ""
        return schema_from(safe_files.content(root / HOME / run / COLUMNS))
    except (OSError, ValueError, pa.ArrowException):
        return pa.schema([])


def _table(output: Place, name: str) -> pa.Table:
    with output.opened(name) as path:
        return table_of(path, output.at(name))
