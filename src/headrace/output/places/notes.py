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
from headrace.core.work import HOME
from headrace.output.small_files import sync_folder

HELD = "held"
"""Whoever holds an output surely lives: nobody has to look whether it gives signs of life."""


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
    """Files of a folder of this machine, or of one that all machines see."""

    def __init__(self, root: Path, folder: str) -> None:
        self._folder = root / HOME / folder
        try:
            root.mkdir(parents=True, exist_ok=True)
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
