"""What an output holds, wherever it lies, which run is in force, and its saved plan.

::

    OUT/part-00007-k3f9a2xq.parquet     published parts
    OUT/part-00008.1-k3f9a2xq.parquet   of a shard that was divided
    OUT/day=1/part-00007-k3f9a2xq.parquet   with partition_by
    OUT/_SUCCESS                        the output is complete
    OUT/_rejected/part-00007-k3f9a2xq.arrow   rejected rows
    OUT/_headrace/lock                  held by the driver that works here; in a store, renewed every few seconds
    OUT/_headrace/current               names the run whose parts are in OUT
    OUT/_headrace/next                  names the hidden run of mode="overwrite" that will take its place
    OUT/_headrace/queries/              rows that were made before the run, which reads them; dropped when it ends
    OUT/_headrace/fleet/notes/          while many machines work: the plan, and who has which part of it
    OUT/_headrace/fleet/<machine>/      an output of its own, with what one of them has made so far
    OUT/_headrace/<run>/plan            the saved plan
    OUT/_headrace/<run>/journal         the only truth about what is done; in a store, journal/0000000001, …
    OUT/_headrace/<run>/states/         big states of metrics, named by what is in them
    OUT/_headrace/<run>/staging/        what attempts write; dropped when the run ends
    OUT/_headrace/<run>/parts/          in a store only: parts that no reader is to see yet
    OUT/_headrace/<run>/manifest        the published files, once complete
    OUT/_headrace/<run>/events.jsonl    what happened, for people; nothing is decided by it
    OUT/_headrace/<run>/report.html     the same as a page
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Container, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.files.safe_files import writing
from headrace.core.files.staged import PARTS
from headrace.core.stores.addresses import Options
from headrace.core.work import FLEET, HOME, NOTES, REJECTED, SUCCESS
from headrace.errors import ForeignOutput, JournalDamaged
from headrace.output.names import (
    check_run,
    first_names,
    is_part,
    other_version,
    parts_there,
    read_pointer,
    run_of,
)
from headrace.output.places.place import Place, place_at
from headrace.output.publishing import foreign_entry, remove_tree
from headrace.plan.physical import SavedPlan

_ADDED = re.compile(r"more-\d+(/|$)")  # outputs that programs for Ray have added beside the rows

QUERIES = "queries"
KEEP = "keep"  # a file in that folder: somebody wants to look at it


def new_run_name() -> str:
    """Return a fresh run name: eight random characters."""
    alphabet = "abcdefghijkmnpqrstuvwxyz23456789"
    return "".join(alphabet[byte % 32] for byte in os.urandom(8))


def open_output(path: str | os.PathLike[str], options: Options | None = None) -> Output:
    """Open an output for writing; raises ``RunLocked`` if another driver holds it."""
    place = place_at(path, options)
    place.take()
    return Output(place)


class Output:
    """An output that we hold, wherever it lies. Close it, or nobody else gets it until this process ends.

    ``place`` was taken. What runs have left there that nobody goes on with is removed.
    """

    def __init__(self, place: Place, *, held: bool = True) -> None:
        """``held`` False: the place is looked at, so nothing is tidied."""
        self.place = place
        self.held = held
        self.root = place.root
        self.home = place.root / HOME
        self.queries = self.home / QUERIES
        try:
            with place.naming():
                if held:
                    self._remove_abandoned()
        except BaseException:
            place.close()
            raise

    def __str__(self) -> str:
        return self.place.name

    def _remove_abandoned(self) -> None:
        """Drop runs that no pointer names: their driver died before it began, or after it was swapped."""
        named = {self.current(), self.next()}
        runs = self.place.folders(HOME) - {QUERIES, FLEET}
        if named == {None}:
            self._check_pointer(runs)
        for run in runs - named:
            self.place.remove_below(f"{HOME}/{run}")

    def _check_pointer(self, runs: set[str]) -> None:
        """Refuse an output in which parts of a run stand that no pointer names: it was there, and is lost."""
        for run in {run_of(name) for name in self.place.visible()} & runs:
            raise JournalDamaged(
                f"{self.home / 'current'} is missing, but {self.root} holds files of the run {run}. Nothing was "
                f"touched: write {run} into that file and run again, or remove the whole output."
            )

    # ------------------------------------------------------------ pointers

    def current(self) -> str | None:
        """The run whose parts are in the output."""
        return read_pointer(self.home / "current")

    def next(self) -> str | None:
        """The hidden run that will take the place of the current one."""
        return read_pointer(self.home / "next")

    def point(self, pointer: str, run: str | None) -> None:
        """Make ``pointer`` name ``run`` (None: remove it), at once or not at all."""
        if run is None:
            self.place.remove([f"{HOME}/{pointer}"])
        else:
            self.place.write(f"{HOME}/{pointer}", f"{run}\n".encode())

    # ------------------------------------------------------------ runs

    def folder(self, run: str) -> Path:
        """The folder of this machine that holds a run's plan, journal and staging."""
        return self.home / check_run(run, self.home)

    def make(self, run: str) -> Path:
        """Make a run's folder and its staging folder, as far as they are not there."""
        folder = self.folder(run)
        self.check_folders(run)
        with writing(folder, "make"):
            safe_files.make_folder(folder, 0o700)
            safe_files.make_folder(folder / "staging", 0o700)
        self.place.show(run)
        return folder

    def check_folders(self, run: str) -> None:
        """Refuse an output where a link leads elsewhere what a run writes or removes."""
        folder = self.folder(run)
        for path in (
            folder,
            folder / "staging",
            folder / "states",
            folder / safe_files.KEPT,
            self.root / REJECTED,
        ):
            try:
                safe_files.check_folder(path)
            except safe_files.NotOurs as error:
                raise foreign_entry(error) from error

    def save(self, run: str, name: str, data: bytes, *, named: bool = True) -> None:
        """Write a small file of a run, at once or not at all. ``named`` False: the caller syncs the folder."""
        self.place.write(f"{HOME}/{check_run(run, self.home)}/{name}", data, named=named)

    def is_marked(self, run: str) -> bool:
        """Say whether the marks of a finished run are there: its manifest and ``_SUCCESS``."""
        return (self.folder(run) / "manifest").exists() and (self.root / SUCCESS).exists()

    def forget(self, run: str) -> None:
        """Remove a run: its published parts (``_SUCCESS`` goes first), its pointer, its folder."""
        if self.current() == run:
            self.remove_success()
        self.remove_parts(run)
        for pointer in ("next", "current"):
            if read_pointer(self.home / pointer) == run:
                self.point(pointer, None)
        self.place.remove_below(f"{HOME}/{check_run(run, self.home)}")

    @contextlib.contextmanager
    def taken_over(self, run: str, kept: Container[str] | None) -> Iterator[None]:
        """Put a run in the place of the current one; within, its parts are published.

        If it is the current one, a further run of it is: ``kept`` are the parts that stay, None: all. Every step may
        be repeated after a crash. A reader finds the old ``_SUCCESS``, or none, or the new one.
        """
        old = self.current()
        self.remove_success()
        if old not in (None, run):
            self.remove_parts(str(old))
        elif kept is not None:
            self.remove_parts(run, but=kept)
        failpoints.hit("swap.removed")
        yield
        self.place.sync_names()
        if old != run:
            self.point("current", run)
        failpoints.hit("swap.pointed")
        self.point("next", None)
        if old not in (None, run):
            self.place.remove_below(f"{HOME}/{old}")

    def tidy(self, run: str) -> None:
        """Remove what a run that has finished does not need any more, if the output is ours."""
        if not self.held:
            return
        for folder in (self.folder(run) / "staging", self.folder(run) / safe_files.KEPT, self.queries):
            if safe_files.is_folder(folder) and not (folder / KEEP).exists():
                remove_tree(folder)
        if FLEET in self.place.folders(HOME):
            self.place.remove([f"{HOME}/{FLEET}/{NOTES}/plan"])  # nobody joins any more
            self.place.remove_below(f"{HOME}/{FLEET}")

    # ------------------------------------------------------------ parts

    def remove_success(self) -> None:
        """Remove ``_SUCCESS`` durably: only then may the files that it covers be removed."""
        self.place.remove([SUCCESS])

    def remove_parts(self, run: str, *, but: Container[str] = ()) -> None:
        """Remove what a run has published, except what is named in ``but``, for good."""
        self.place.remove(parts_there(self.place, {run}, but=but))

    def sweep_parts(self, run: str, named: Container[str], *, finished: bool) -> None:
        """Remove parts of a run that no record names, when it is opened again; ``finished``: nothing is to do.

        Where parts are put before their record, those of an unfinished run are replaced, or removed at its end. A
        driver that was replaced and does not know it could else remove what its successor has just put there.
        """
        if self.place.renames or finished:
            self.remove_parts(run, but=named)
            self.place.remove([*self.place.listed(f"{HOME}/{run}/{PARTS}")])

    def check_parts(self, runs: Collection[str]) -> None:
        """Refuse an output in which files stand that none of ``runs`` made."""
        others = (name for name in self.place.visible() if not is_part(name, runs))
        foreign = sorted(name for name in others if not _ADDED.match(name))
        if foreign:
            raise ForeignOutput(
                f"The output folder {self} holds files that Headrace did not write ({first_names(foreign)}). A "
                "reader of the folder would take them for predictions. Move them away, then run again."
            )

    def close(self, *, forget: bool = False) -> None:
        """Let the output go; with ``forget``, remove what this object made if no run is in it, or before one."""
        empty = self.current() is None and self.next() is None
        made = safe_files.is_folder(self.queries) and any(map(safe_files.is_folder, self.queries.iterdir()))
        self.place.close(forget=forget and empty and not made)


# ------------------------------------------------------------ saved plans


def sealed(data: bytes) -> bytes:
    """Return bytes with their hash in front."""
    return hashlib.sha256(data).digest() + data


def unsealed(data: bytes) -> bytes | None:
    """Return the bytes behind their hash; None if that is another one.

    >>> unsealed(sealed(b"plan")), unsealed(sealed(b"plan")[:-1])
    (b'plan', None)
    """
    return data[32:] if hashlib.sha256(memoryview(data)[32:]).digest() == data[:32] else None


def write_plan(output: Output, plan: SavedPlan, *, named: bool = True) -> None:
    """Save a run's plan, sealed. ``named`` False: the caller syncs its folder."""
    output.save(plan.run, "plan", sealed(plan.encode()), named=named)


def read_plan(folder: Path) -> SavedPlan:
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
