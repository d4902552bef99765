"""Files of an output: small ones, and those of committed shards, brought to their place, journalled, then revealed.

*When* they are revealed is one value of a run, its ``Moment``. How files come to where readers find them is the
place's: a folder renames them, see here; a store uploads and copies them, see ``places/store_parts.py``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Container, Iterable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from headrace.core import failpoints
from headrace.core.files import hive, safe_files
from headrace.core.files.safe_files import writing
from headrace.core.files.staged import is_uploaded
from headrace.core.target_ports import Sink
from headrace.core.work import HOME, SUCCESS, CommitRecord, StagedFile
from headrace.errors import ForeignOutput

# ------------------------------------------------------------ small files, and folders


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as it can be removed."""
    try:
        folder.rmdir()
    except OSError:
        import shutil  # imports five compression modules, and most folders are empty by then

        shutil.rmtree(folder, ignore_errors=True)


def remove_unlisted(folder: Path, named: Container[str]) -> None:
    """Remove what is in a folder, if it is there, and no record names it: its attempt was never committed."""
    for path in folder.iterdir() if safe_files.is_folder(folder) else ():
        if path.name not in named:
            remove_any(path)


def remove_any(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, where only Headrace writes."""
    if safe_files.is_folder(path):
        remove_tree(path)
    else:
        remove_file(path)


def write_whole(path: Path, data: bytes, *, named: bool = True) -> None:
    """Write a small file so that a reader, a crash or a loss of power leaves all of it or nothing.

    ``named`` False: the caller syncs its folder.
    """
    with writing(path, "write"):
        safe_files.write(path, data)
        failpoints.hit("plan.written")
    if named:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a loss of power, where the file system has such a call."""
    with writing(path, "sync"):
        safe_files.sync_folder(path)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    with writing(path, "remove"):
        path.unlink(missing_ok=True)


def foreign_entry(error: safe_files.NotOurs) -> ForeignOutput:
    """Return the error for an entry of an output that no run has made."""
    return ForeignOutput(
        f"{error.filename} is not opened: {error.strerror}. Headrace would write and remove files in another place, "
        "so nothing was touched: remove it, or choose another output."
    )


FileState = Literal["published", "staged", "missing"]

_MOST_WAITING = 64  # records whose files have not arrived yet


class Publisher:
    """Brings the files of one run from where workers stage them to where readers find them.

    Whatever a method does, doing it again changes nothing. Each place has a subclass; defaults are for one where
    files are staged on the disk that they stay on.
    """

    pause: ClassVar[float] = 0.0
    """Seconds: records that come faster are journalled together."""

    def __init__(self, sink: Sink) -> None:
        self._staging = sink.staging
        self._waiting: deque[tuple[CommitRecord, list[Future[None]]]] = deque()
        self._journalled = time.monotonic()

    def add(self, record: CommitRecord) -> None:
        """Take a record that is to be journalled, and begin what must be done with its files before that."""
        self._waiting.append((record, self.arriving(record)))
        if len(self._waiting) > _MOST_WAITING:
            wait(self._waiting[0][1])

    def arriving(self, record: CommitRecord) -> list[Future[None]]:
        """Begin to bring the files of a record to the place; return what has to end before it is journalled."""
        return []

    def ready(self, *, wait: bool) -> list[CommitRecord]:
        """Return the records that may be journalled now, in the order in which they came; with ``wait`` all."""
        records: list[CommitRecord] = []
        if not wait and time.monotonic() - self._journalled < self.pause:
            return records
        while self._waiting:
            record, arriving = self._waiting[0]
            if not wait and not all(each.done() for each in arriving):
                break
            try:
                for each in arriving:
                    each.result()
            except Exception:
                if records:  # these are journalled first; the next call raises it
                    break
                raise
            records.append(record)
            self._waiting.popleft()
        self._journalled = time.monotonic()
        return records

    def arrive(self) -> None:
        """Wait until the files of all records have come, or raise why one has not."""
        for each in (each for _, arriving in self._waiting for each in arriving):
            each.result()

    def drop(self, files: Iterable[StagedFile]) -> None:
        """Remove files that are staged yet, of records that count no more."""
        for file in (file for file in files if not is_uploaded(file)):
            (Path(self._staging) / file.staged).unlink(missing_ok=True)

    @property
    def pending(self) -> bool:
        """True while records wait for ``ready``."""
        return bool(self._waiting)

    def publish(self, records: Iterable[CommitRecord]) -> None:
        """Begin to give the files of journalled records their final names."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until all that ``publish`` was asked for is done, or raise why it is not."""

    def state(self, file: StagedFile) -> FileState:
        """Say where a committed file is. A file of another size than recorded is missing."""
        raise NotImplementedError

    def check_complete(self, records: Iterable[CommitRecord]) -> None:
        """See that every file of these records is there, under its final name, to last."""

    def finish(self, success: bytes, *, lasting: bool = True) -> None:
        """Put ``_SUCCESS`` in place, at once or not at all, after everything else.

        ``lasting`` False: what it speaks of was not synced, so the mark is not, either.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End what is under way."""


class FolderPublisher(Publisher):
    """Renames files, in a folder of this machine. What workers have uploaded into a store is not there."""

    def __init__(self, root: Path, sink: Sink) -> None:
        super().__init__(sink)
        self._root = root
        self._above = os.fspath(root)

    def publish(self, records: Iterable[CommitRecord]) -> None:
        for record in records:
            for file in record.files:
                if not is_uploaded(file):
                    self._rename(file)

    def _rename(self, file: StagedFile) -> None:
        final = self._root / file.name
        with writing(final, "publish"):
            try:
                hive.make_folders(str(self._root), file.name)
                failpoints.hit("publish.rename")
                os.rename(os.path.join(self._staging, file.staged), final)
                failpoints.hit("publish.renamed")
            except FileNotFoundError:  # it has its name already
                if _size(final) != file.size:
                    raise

    def state(self, file: StagedFile) -> FileState:
        above = self._above
        if hive.has_folders(above, file.name) and _size(os.path.join(above, file.name)) == file.size:
            return "published"
        staged = os.path.join(self._staging, file.staged)
        return "staged" if not is_uploaded(file) and _size(staged) == file.size else "missing"

    def finish(self, success: bytes, *, lasting: bool = True) -> None:
        """Write the file among the staged ones, and rename it."""
        final = self._root / SUCCESS
        temporary = os.path.join(self._staging, f"{SUCCESS}-{os.getpid()}-{os.urandom(4).hex()}.staged")
        with writing(final, "write"):
            safe_files.create(temporary, success, lasting=lasting)
            failpoints.hit("finish.success")
            os.rename(temporary, final)
        if lasting:
            sync_folder(self._root)


def _size(path: str | Path) -> int:
    try:  # for very many files, so it takes no more than that
        return safe_files.size(path)
    except OSError as error:
        raise safe_files.write_failed(error, path, "look at") from error


# ------------------------------------------------------------ notes


HELD = "held"
"""Whoever holds an output surely lives: nobody has to look whether it gives signs of life."""


class Notes(Protocol):
    """The files of one folder of an output, by their names in it. What was added never changes."""

    def add(self, name: str, data: bytes) -> bool:
        """Add a file; False if one of that name is there, with other bytes."""

    def read(self, name: str) -> bytes | None:
        """Return what a file has; None if there is none."""

    def names(self) -> list[str]:
        """Return the names of all files."""


class FolderNotes:
    """Files of a folder of this machine, or of one that all machines see."""

    def __init__(self, root: Path, folder: str) -> None:
        self._folder = root / HOME / folder
        with writing(self._folder, "make"):
            root.mkdir(parents=True, exist_ok=True)
            safe_files.make_folder(root / HOME, 0o700)
            for each in reversed([self._folder, *self._folder.parents][: len(Path(folder).parts)]):
                safe_files.make_folder(each, 0o700)

    def add(self, name: str, data: bytes) -> bool:
        """Write it under another name, and link it: the link fails where there is a file."""
        path = self._folder / name
        made = self._folder / f".{name}-{os.urandom(6).hex()}{safe_files.TEMPORARY}"
        with writing(path, "write"), contextlib.suppress(FileNotFoundError):
            safe_files.create(made, data)
            failpoints.hit("note.add")
            try:
                os.link(made, path)
            except FileExistsError:
                return self.read(name) == data
            finally:
                os.unlink(made)
            sync_folder(self._folder)
            failpoints.hit("note.added")
            return True
        return False  # the fleet is over, and its folder is gone

    def read(self, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return safe_files.content(self._folder / name)
        return None

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [name for name in os.listdir(self._folder) if not name.startswith(".")]
        return []
