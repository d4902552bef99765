"""Small files of an output that are only ever added, by any number of machines, whoever holds the output.

``add`` is the one move of a fleet: of all who add a file of one name, one is first, and all see whose it is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.files.safe_files import write_failed
from headrace.core.stores.writing import ABSENT, StoreWriter, Taken
from headrace.core.work import HOME
from headrace.output.small_files import sync_folder


class Notes(Protocol):
    """The files of one folder of an output, by their names in it. What was added never changes."""

    def add(self, name: str, data: bytes) -> bool:
        """Add a file; False if one of that name is there, with other bytes."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return what a file has; None if there is none."""
        ...

    def names(self) -> list[str]:
        """Return the names of all files."""
        ...


class FolderNotes:
    """Files of a folder of this machine, or of one that all machines see. The output at ``root`` is there."""

    def __init__(self, root: Path, folder: str) -> None:
        self._folder = root / HOME / folder
        try:
            safe_files.make_folder(root / HOME, 0o700)
            for each in reversed([self._folder, *self._folder.parents][: len(Path(folder).parts)]):
                safe_files.make_folder(each, 0o700)
        except OSError as error:
            raise write_failed(error, self._folder, "make") from error

    def add(self, name: str, data: bytes) -> bool:
        """Write it under another name, and link it: the link fails where there is a file."""
        path = self._folder / name
        made = self._folder / f".{name}-{os.urandom(6).hex()}{safe_files.TEMPORARY}"
        try:
            safe_files.create(made, data)
            failpoints.hit("note.add")
            try:
                os.link(made, path)
            except FileExistsError:
                return self.read(name) == data
            finally:
                os.unlink(made)
            sync_folder(self._folder)
        except FileNotFoundError:  # the fleet is over, and its folder is gone
            return False
        except OSError as error:
            raise write_failed(error, path, "write") from error
        failpoints.hit("note.added")
        return True

    def read(self, name: str) -> bytes | None:
        """Read the file."""
        with contextlib.suppress(FileNotFoundError):
            return safe_files.content(self._folder / name)
        return None

    def names(self) -> list[str]:
        """List the folder."""
        try:
            return [name for name in os.listdir(self._folder) if not name.startswith(".")]
        except FileNotFoundError:
            return []


class StoreNotes:
    """Objects, each put on the condition that there is none of its name."""

    def __init__(self, objects: StoreWriter, folder: str) -> None:
        self._objects = objects
        self._prefix = f"{HOME}/{folder}/"

    def add(self, name: str, data: bytes) -> bool:
        """Put it; where there is one, it may be ours, if only the answer was lost."""
        failpoints.hit("note.add")
        try:
            self._objects.put(self._prefix + name, data, when=ABSENT)
        except Taken:
            return self.read(name) == data
        failpoints.hit("note.added")
        return True

    def read(self, name: str) -> bytes | None:
        """Get the object."""
        found = self._objects.get(self._prefix + name)
        return None if found is None else found[0]

    def names(self) -> list[str]:
        """List the objects."""
        return [name.removeprefix(self._prefix) for name, _ in self._objects.names(self._prefix)]
