"""An output in a folder: its driver holds a lock, and gives parts their names by renaming them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from headrace.core import process
from headrace.core.files import hive, safe_files
from headrace.core.files.safe_files import write_failed
from headrace.core.files.staged import Uploads
from headrace.core.target_ports import Moment, Sink
from headrace.core.work import FLEET, HOME, REJECTED, Durability, StagedFile
from headrace.errors import ForeignOutput, OutputWriteFailed, RunLocked, UnreadableFile
from headrace.output.journal import Contents, Journal
from headrace.output.names import check_foreign
from headrace.output.publishing import (
    HELD,
    FolderNotes,
    FolderPublisher,
    Notes,
    Publisher,
    foreign_entry,
    remove_file,
    remove_tree,
    sync_folder,
    write_whole,
)

_PATIENCE = 0.1  # seconds: a process that only looks at a lock holds it for an instant
_LOCK_ATTEMPTS = 100


class Folder:
    """A ``Place`` that is a folder."""

    copied = False
    renames = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        self._first_made: Path | None = None
        self._lock = -1

    # ------------------------------------------------------------ who holds it

    def look(self) -> None:
        """All is there to be read, by those who may."""
        try:
            os.scandir(self.root / HOME).close()
        except PermissionError as error:
            raise UnreadableFile(
                f"The runs of {self.root} cannot be looked at, as its folder {HOME} cannot be read: "
                f"{error.strerror}. Ask as the user who wrote the output; the files of its rows are not affected."
            ) from error
        except OSError:
            return  # it is not there: no output of ours

    def take(self) -> None:
        """Take the lock, which makes the folder; what its last driver was writing when it was killed is removed."""
        above = (*reversed(self.root.parents), self.root)
        self._first_made = next((path for path in above if not path.exists()), None)
        _check_foreign(self.root)
        try:
            self._take_lock()
            for entry in (self.root / HOME).iterdir():
                if entry.suffix == safe_files.TEMPORARY and not safe_files.is_folder(entry):
                    entry.unlink(missing_ok=True)
        except OSError as error:
            self.close(forget=self._lock < 0)
            raise OutputWriteFailed(
                f"The output folder {self.root} cannot be written: {error.strerror}. Choose another folder, or "
                "change its permissions."
            ) from error

    def _take_lock(self) -> None:
        home = self.root / HOME
        path = home / "lock"
        if home.is_symlink():
            raise ForeignOutput(
                f"{home} is a link to {os.path.realpath(home)}. Headrace would remove files there, so "
                "nothing was touched: replace the link with the folder itself, or choose another output."
            )
        for attempts_left in reversed(range(_LOCK_ATTEMPTS)):
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                safe_files.make_folder(home, 0o700)  # plans and journals are private
                lock = safe_files.opened(path, os.O_RDWR | os.O_CREAT)
            except (FileNotFoundError, FileExistsError):
                if not attempts_left:
                    raise
                continue  # a driver that ends has just removed the folder
            except safe_files.NotOurs as error:
                raise foreign_entry(error) from error
            try:
                taken = process.lock(lock, patience=_PATIENCE)
            except OSError:
                os.close(lock)
                raise
            if not taken:
                holder = _holder(lock)
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

    def writer(self) -> str | None:
        """Say who holds the lock, without taking it."""
        try:
            opened = safe_files.opened(self.root / HOME / "lock", os.O_RDONLY)
        except OSError:
            return None
        try:
            if _is_listed(opened) or not process.lock(opened, shared=True):
                return _holder(opened)
        except OSError:
            return None
        finally:
            os.close(opened)
        return None

    def sign(self) -> str:
        return HELD if self.writer() is not None else ""

    def close(self, *, forget: bool = False) -> None:
        """Release the lock; with ``forget``, remove the folders that ``take`` made, if they are empty."""
        if self._lock >= 0 and forget:
            remove_tree(self.root / HOME)
        if forget and self._first_made is not None:
            _remove_empty(self.root, self._first_made)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ------------------------------------------------------------ names

    def at(self, name: str = "") -> Path | str:
        return self.root / name

    def naming(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def visible(self) -> list[str]:
        return list(hive.entries(self.root))

    def listed(self, folder: str) -> Mapping[str, int]:
        top = self.root / folder
        return {
            os.path.relpath(path, self.root): path.lstat().st_size
            for above, _, names in (os.walk(top) if safe_files.is_folder(top) else ())
            for path in (Path(above, name) for name in names)
        }

    def folders(self, folder: str) -> set[str]:
        return {entry.name for entry in (self.root / folder).iterdir() if safe_files.is_folder(entry)}

    def size_of(self, name: str) -> int:
        with contextlib.suppress(OSError):
            return safe_files.size(self.root / name)
        return -1

    def opened(self, name: str) -> AbstractContextManager[Path]:
        return contextlib.nullcontext(self.root / name)

    # ------------------------------------------------------------ small files

    def write(self, name: str, data: bytes, *, named: bool = True) -> None:
        write_whole(self.root / name, data, named=named)

    def remove(self, names: Collection[str]) -> None:
        gone = [name for name in names if os.path.lexists(self.root / name)]
        for name in gone:
            remove_file(self.root / name)
        hive.remove_empty(self.root, gone)
        if any(name.startswith(f"{REJECTED}/") for name in gone):
            with contextlib.suppress(OSError):
                (self.root / REJECTED).rmdir()
        for folder in {parent for name in gone for parent in Path(name).parents}:
            if safe_files.is_folder(self.root / folder):
                sync_folder(self.root / folder)

    def remove_below(self, folder: str) -> None:
        remove_tree(self.root / folder)

    def sync_names(self) -> None:
        """Sync all folders of parts. They may reach the disk in any order."""
        for folder in (REJECTED, *hive.folders(self.root)):
            if safe_files.is_folder(self.root / folder):
                sync_folder(self.root / folder)
        sync_folder(self.root)

    def sync_made(self) -> None:
        folder = self.root
        sync_folder(folder)
        while self._first_made is not None and folder != self._first_made.parent:
            folder = folder.parent
            sync_folder(folder)

    def notes(self, folder: str) -> Notes:
        _check_foreign(self.root)
        return FolderNotes(self.root, folder)

    # ------------------------------------------------------------ a run

    def show(self, run: str) -> None:
        """Others read it where it is made."""

    def create_journal(self, run: str, durability: Durability) -> Journal:
        return Journal.create(self._journal(run), durability)

    def open_journal(self, run: str, durability: Durability) -> tuple[Journal, Contents]:
        """Open the file; the lock keeps others from appending to it."""
        return Journal.open(self._journal(run), durability)

    def _journal(self, run: str) -> Path:
        return self.root / HOME / run / "journal"

    def publisher(self, sink: Sink, run: str, moment: Moment) -> Publisher:
        """Return what renames staged files; what is hidden stays staged."""
        return FolderPublisher(self.root, sink)

    def adopted(self, run: str, machine: str, file: StagedFile, name: str) -> StagedFile:
        """Give it a second name among the staged files; where the disk knows none, copy it."""
        staged = f"{os.urandom(8).hex()}.staged"
        home = self.root / HOME
        made, path = home / FLEET / machine / file.name, home / run / "staging" / staged
        try:
            os.link(made, path)
        except FileNotFoundError as error:
            raise write_failed(error, made, "find") from error
        except OSError:
            safe_files.create(path, safe_files.content(made))
        return msgspec.structs.replace(file, staged=staged, name=name)

    def uploads(self, run: str) -> Uploads | None:
        return None


def _remove_empty(folder: Path, top: Path) -> None:
    with contextlib.suppress(OSError):
        for each in (folder, *folder.parents):
            each.rmdir()
            if each == top:
                return


def _check_foreign(root: Path) -> None:
    try:
        others = os.listdir(root)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        if not root.exists():  # one of its parents is a file: making the folder raises
            return
        raise ForeignOutput(
            f"The output {root} is a file; an output is a folder. Choose another path."
        ) from error
    except OSError as error:
        raise write_failed(error, root, "list") from error
    check_foreign(str(root), others)


def _holder(lock: int) -> str:
    return os.pread(lock, 100, 0).decode(errors="replace").strip() or "another process"


def _is_listed(opened: int) -> bool:
    """Look in the kernel's list, where there is one: trying would hold the lock when a driver may start."""
    with contextlib.suppress(OSError):
        found = os.fstat(opened)
        inode = f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} "
        locks = Path("/proc/locks").read_text()
        return any("FLOCK" in line and inode in line for line in locks.splitlines())
    return False
