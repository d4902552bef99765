"""The output folder: whose it is, who holds it, and which run is in force.

::

    OUT/part-00007-k3f9a2xq.parquet     published parts
    OUT/part-00008.1-k3f9a2xq.parquet   of a shard that was divided
    OUT/day=1/part-00007-k3f9a2xq.parquet   with partition_by
    OUT/_SUCCESS                        the output is complete
    OUT/_rejected/part-00007-k3f9a2xq.arrow   rejected rows
    OUT/_headrace/lock                  held by the driver that works here
    OUT/_headrace/current               names the run whose parts are in OUT
    OUT/_headrace/next                  names the hidden run of mode="overwrite" that will take its place
    OUT/_headrace/<run>/plan            the saved plan
    OUT/_headrace/<run>/journal         the only truth about what is done
    OUT/_headrace/<run>/staging/        what attempts write; dropped when the run ends
    OUT/_headrace/<run>/manifest        the published files, once complete
    OUT/_headrace/<run>/events.jsonl    what happened, for people; nothing is decided by it
    OUT/_headrace/<run>/report.html     the same as a page
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Container
from pathlib import Path

from headrace.core import waiting
from headrace.core.files import hive, safe_files
from headrace.core.ports import Sink
from headrace.core.uploading.names import Uploads
from headrace.core.work import HOME as HOME
from headrace.core.work import REJECTED, Durability
from headrace.core.work import SUCCESS as SUCCESS
from headrace.errors import ForeignOutput, JournalDamaged, OutputWriteFailed, RunLocked
from headrace.output.journal import Contents, Journal
from headrace.output.names import check_run, read_pointer, run_of
from headrace.output.publishing import FilePublisher, Publisher
from headrace.output.small_files import (
    failed,
    foreign_entry,
    remove_file,
    remove_tree,
    sync_folder,
    write_whole,
)

_PATIENCE = 0.1  # seconds: a process that only looks at a lock holds it for an instant
_LOCK_ATTEMPTS = 100


def new_run_name() -> str:
    """Return a fresh run name: eight random characters."""
    alphabet = "abcdefghijkmnpqrstuvwxyz23456789"
    return "".join(alphabet[byte % 32] for byte in os.urandom(8))


class OutputFolder:
    """An output folder under our lock. Close it, or the lock stays until the process ends."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / HOME
        self._first_made = _first_missing(root)
        self._lock = -1
        _check_foreign(root)
        try:
            self._take_lock()
            self._remove_abandoned()
        except JournalDamaged:
            self.close()
            raise
        except OSError as error:
            self.close(forget=True)
            raise OutputWriteFailed(
                f"The output folder {root} cannot be written: {error.strerror}. Choose another folder, or "
                "change its permissions."
            ) from error

    def __str__(self) -> str:
        return str(self.root)

    def named(self) -> contextlib.AbstractContextManager[None]:
        """Let errors name the output as others know it."""
        return contextlib.nullcontext()

    def place(self, name: str = "") -> Path | str:
        """Return where a file of the output is for others; without a name, the output."""
        return self.root / name

    def _take_lock(self) -> None:
        path = self.home / "lock"
        if self.home.is_symlink():
            raise ForeignOutput(
                f"{self.home} is a link to {os.path.realpath(self.home)}. Headrace would remove files there, so "
                "nothing was touched: replace the link with the folder itself, or choose another output."
            )
        for attempts_left in reversed(range(_LOCK_ATTEMPTS)):
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                safe_files.make_folder(self.home, 0o700)  # plans and journals are private
                lock = safe_files.opened(path, os.O_RDWR | os.O_CREAT)
            except (FileNotFoundError, FileExistsError):
                if not attempts_left:
                    raise
                continue  # a driver that ends has just removed the folder
            except safe_files.NotOurs as error:
                raise foreign_entry(error) from error
            try:
                taken = waiting.lock(lock, patience=_PATIENCE)
            except OSError:
                os.close(lock)
                raise
            if not taken:
                holder = os.pread(lock, 100, 0).decode(errors="replace").strip() or "another process"
                os.close(lock)
                raise RunLocked(
                    f"The output folder {self.root} is being written by {holder}. Wait until it ends (or end "
                    "it), then run again; two drivers never share an output."
                )
            if safe_files.is_at(path, lock):
                self._lock = lock
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
                return
            os.close(lock)  # the file that we locked was removed meanwhile, so others lock another one
        raise RunLocked(
            f"Other runs write to the output folder {self.root} all the time. Run again when they are done."
        )

    def _remove_abandoned(self) -> None:
        """Drop run folders that no pointer names (their driver died before it began, or after it was swapped)
        and small files that were being written."""
        named = {self.current(), self.next()}
        entries = list(self.home.iterdir())
        if named == {None}:
            self._check_pointer([entry.name for entry in entries])
        for entry in entries:
            if safe_files.is_folder(entry) and entry.name not in named:
                remove_tree(entry)
            elif entry.suffix == safe_files.TEMPORARY:
                entry.unlink(missing_ok=True)

    def _check_pointer(self, names: Collection[str]) -> None:
        """Refuse an output in which parts of a run stand that no pointer names: it was there, and is lost."""
        for run in {run_of(name) for name in self.parts()} & set(names):
            raise JournalDamaged(
                f"{self.home / 'current'} is missing, but {self.root} holds files of the run {run}. Nothing was "
                f"touched: write {run} into that file and run again, or remove the whole output."
            )

    def sync_made(self) -> None:
        """Make the names of the folders that were made for this output survive a loss of power."""
        folder = self.root
        sync_folder(folder)
        while self._first_made is not None and folder != self._first_made.parent:
            folder = folder.parent
            sync_folder(folder)

    # ------------------------------------------------------------ pointers

    def current(self) -> str | None:
        """The run whose parts are in the folder."""
        return self._read("current")

    def next(self) -> str | None:
        """The hidden run that will take the place of the current one."""
        return self._read("next")

    def _read(self, pointer: str) -> str | None:
        return read_pointer(self.home / pointer)

    def point(self, pointer: str, run: str | None) -> None:
        """Make ``pointer`` name ``run`` (None: remove it), at once or not at all."""
        path = self.home / pointer
        if run is None:
            remove_file(path)
            sync_folder(self.home)
        else:
            write_whole(path, f"{run}\n".encode())

    # ------------------------------------------------------------ runs

    def folder(self, run: str) -> Path:
        """The folder that holds a run's plan, journal and staging."""
        return self.home / check_run(run, self.home)

    def make(self, run: str) -> Path:
        """Make a run's folder and its staging folder, as far as they are not there."""
        folder = self.folder(run)
        self.check_folders(run)
        try:
            safe_files.make_folder(folder, 0o700)
            safe_files.make_folder(folder / "staging", 0o700)
        except OSError as error:
            raise failed("make", folder, error) from error
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
        write_whole(self.folder(run) / name, data, named=named)

    def create_journal(self, run: str, durability: Durability) -> Journal:
        """Make the journal of a new run."""
        return Journal.create(self.folder(run) / "journal", durability)

    def open_journal(self, run: str, durability: Durability) -> tuple[Journal, Contents]:
        """Open a run's journal for going on, and return it with what it holds."""
        return Journal.open(self.folder(run) / "journal", durability)

    def publisher(self, sink: Sink, run: str, *, hidden: bool) -> Publisher:
        """Return what brings staged files of a run to where readers find them."""
        return FilePublisher(sink)

    def uploads(self, run: str) -> Uploads | None:
        """Return what workers have to know that do not see the folder; None: they cannot do without it."""
        return None

    def remove_run(self, run: str) -> None:
        """Remove a run's folder."""
        remove_tree(self.folder(run))

    def sweep_parts(self, run: str, named: Container[str], *, finished: bool) -> None:
        """Remove parts of a run that no record names, when it is opened again; ``finished``: nothing is to do."""
        self.remove_parts(run, but=named)

    def is_marked(self, run: str) -> bool:
        """Say whether the marks of a finished run are there: its manifest and ``_SUCCESS``."""
        return (self.folder(run) / "manifest").exists() and (self.root / SUCCESS).exists()

    def parts(self) -> list[str]:
        """Names in the folder, and in those for values, that may be parts: everything that is not hidden."""
        return list(hive.entries(self.root))

    def rejected(self) -> list[str]:
        """Names, from the folder on, of files that may hold rejected rows."""
        rejected = self.root / REJECTED
        return (
            [f"{REJECTED}/{name}" for name in os.listdir(rejected)] if safe_files.is_folder(rejected) else []
        )

    def remove_success(self) -> None:
        """Remove ``_SUCCESS`` durably: only then may the files that it covers be removed."""
        if os.path.lexists(self.root / SUCCESS):
            remove_file(self.root / SUCCESS)
            sync_folder(self.root)

    def forget(self, run: str) -> None:
        """Remove a run: its published parts (``_SUCCESS`` goes first), its pointer, its folder."""
        if self.current() == run:
            self.remove_success()
        self.remove_parts(run)
        for pointer in ("next", "current"):
            if self._read(pointer) == run:
                self.point(pointer, None)
        self.remove_run(run)

    def remove_named(self, names: Collection[str]) -> None:
        """Remove files of these names, as far as they are there."""
        for name in names:
            remove_file(self.root / name)
        hive.remove_empty(self.root, names)

    def remove_parts(self, run: str, *, but: Container[str] = ()) -> None:
        """Remove what a run has published, except what is named in ``but``, for good."""
        published = [*self.parts(), *self.rejected()]
        found = [name for name in published if is_part(name.removeprefix(f"{REJECTED}/"), {run})]
        gone = [name for name in found if name not in but]
        self.remove_named(gone)
        with contextlib.suppress(OSError):
            (self.root / REJECTED).rmdir()
        if gone:
            self.sync_published()

    def sync_published(self) -> None:
        """Make the names of published files, and the removal of others, durable: before what names them
        changes. Folders may reach the disk in any order."""
        if safe_files.is_folder(self.root / REJECTED):
            sync_folder(self.root / REJECTED)
        for folder in hive.folders(self.root):
            sync_folder(self.root / folder)
        sync_folder(self.root)

    def close(self, *, forget: bool = False) -> None:
        """Release the lock; with ``forget``, remove the folders that this object made, if they are empty."""
        if self._lock >= 0 and forget and self.current() is None and self.next() is None:
            remove_tree(self.home)
        if forget and self._first_made is not None:
            _remove_empty(self.root, self._first_made)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def is_part(name: str, runs: Collection[str]) -> bool:
    """Say whether a file name is that of a part of one of ``runs``."""
    return run_of(name) in runs


def _first_missing(path: Path) -> Path | None:
    missing = None
    while not path.exists():
        missing, path = path, path.parent
    return missing


def _remove_empty(folder: Path, top: Path) -> None:
    with contextlib.suppress(OSError):
        while True:
            folder.rmdir()
            if folder == top:
                return
            folder = folder.parent


def _check_foreign(root: Path) -> None:
    try:
        others = sorted(name for name in os.listdir(root) if not name.startswith("."))
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        if not root.exists():  # one of its parents is a file: making the folder raises
            return
        raise ForeignOutput(
            f"The output {root} is a file; an output is a folder. Choose another path."
        ) from error
    except OSError as error:
        raise failed("list", root, error) from error
    if others and HOME not in others:
        raise ForeignOutput(
            f"The output folder {root} holds files that Headrace did not write ({_first_names(others)}). Nothing was "
            "touched: choose an empty or a new folder."
        )


def check_parts(output: OutputFolder, runs: set[str]) -> None:
    """Refuse a folder in which files stand that none of ``runs`` made."""
    foreign = sorted(name for name in output.parts() if not is_part(name, runs))
    if foreign:
        raise ForeignOutput(
            f"The output folder {output} holds files that Headrace did not write ({_first_names(foreign)}). A reader "
            "of the folder would take them for predictions. Move them away, then run again."
        )


def _first_names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
