"""Where an output lies. What differs between a folder and an object store is said by its ``Place``, nowhere else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from headrace.core.files.staged import Uploads
from headrace.core.files.storage import Storage, output_at
from headrace.core.stores.addresses import Options
from headrace.core.target_ports import Moment, Sink
from headrace.core.work import Durability, StagedFile
from headrace.output.journal import Contents, Journal
from headrace.output.places.folder import Folder
from headrace.output.publishing import Notes, Publisher


class Place(Protocol):
    """The files of one output, by their names from the output on, and who holds it.

    One that is looked at is not held; then only what reads is called. What is written or removed is so once the
    method returns, unless its driver was replaced: then ``RunLocked`` is raised, and nothing has changed.
    """

    name: str
    """What messages call the output."""

    copied: bool
    """``root`` is a copy of the small files, and the output is elsewhere."""

    renames: bool
    """Parts get their names once a record names them, from the holder alone.

    Else they are put before the record, and a driver that was replaced without knowing it may still put some.
    """

    @property
    def root(self) -> Path:
        """A folder of this machine that has the small files: the output itself, or a copy of them."""

    # ------------------------------------------------------------ who holds it

    def look(self) -> None:
        """Get ready to be read, and no more. Raises ``NothingMatched`` where nobody has written."""

    def take(self) -> None:
        """Hold the output. Raises ``RunLocked`` if another driver does, ``ForeignOutput`` if it is none of ours."""

    def writer(self) -> str | None:
        """Return who holds it, such as ``process 17 on host``; None if nobody does."""

    def sign(self) -> str:
        """Return a text that another replaces every few seconds while somebody holds it; "" if nobody does.

        ``HELD`` where it is known that somebody does.
        """

    def close(self, *, forget: bool = False) -> None:
        """Let go of the output; ``forget``: nothing of it is to be left. More than once changes nothing."""

    # ------------------------------------------------------------ names

    def at(self, name: str = "") -> Path | str:
        """Return where a file is for others; without a name, the output."""

    def naming(self) -> AbstractContextManager[None]:
        """Let errors name the output as others know it."""

    def visible(self) -> list[str]:
        """Return the names that a reader finds, also in folders ``key=value``."""

    def listed(self, folder: str) -> Mapping[str, int]:
        """Return names and bytes of all files in a folder and those in it; ``folder`` has no slash at its end."""

    def folders(self, folder: str) -> set[str]:
        """Return the names of the folders in a folder."""

    def size_of(self, name: str) -> int:
        """Return the bytes that a file has; -1 if there is none."""

    def opened(self, name: str) -> AbstractContextManager[Path]:
        """Return where a file can be read, meanwhile; there is nothing if the output has none of that name."""

    # ------------------------------------------------------------ small files

    def write(self, name: str, data: bytes, *, named: bool = True) -> None:
        """Write a small file, at once or not at all, if nobody has changed it but this driver.

        ``named`` False: whoever calls syncs its folder.
        """

    def remove(self, names: Collection[str]) -> None:
        """Remove files, as far as they are there, for good, and folders ``key=value`` that are empty then."""

    def remove_below(self, folder: str) -> None:
        """Remove a folder with all that is in it."""

    def sync_names(self) -> None:
        """Make the names of published files, and the removal of others, outlive a loss of power."""

    def sync_made(self) -> None:
        """Make the folders that were made for this output outlive a loss of power."""

    def notes(self, folder: str) -> Notes:
        """Return files of ours that many machines add to, in a folder of that name; whoever holds the output.

        Raises ``ForeignOutput`` where others have written.
        """

    # ------------------------------------------------------------ a run

    def show(self, run: str) -> None:
        """Let others read, from now on, what the folder of a run has for people: its record, its report."""

    def create_journal(self, run: str, durability: Durability) -> Journal:
        """Make the journal of a new run."""

    def open_journal(self, run: str, durability: Durability) -> tuple[Journal, Contents]:
        """Open a journal for going on, and return it with what it holds; nobody else appends to it from now on."""

    def publisher(self, sink: Sink, run: str, moment: Moment) -> Publisher:
        """Return what brings staged files of a run to where readers find them; ``moment``: when it is asked to."""

    def adopted(self, run: str, machine: str, file: StagedFile, name: str) -> StagedFile:
        """Return a file that a machine of a fleet has made as one of a run, with another name; nobody sees it yet."""

    def uploads(self, run: str) -> Uploads | None:
        """Return what workers have to know that do not see ``root``; None: they cannot do without it."""


def place_at(path: str | os.PathLike[str], options: Options | None = None) -> Place:
    """Return the place of an output, which is neither looked at nor held yet."""
    storage = output_at(path, options or ())
    make: Callable[[Storage], Place] = storage.pick(lambda each: Folder(Path(each.path)), _store)
    return make(storage)


def _store(storage: Storage) -> Place:
    from headrace.output.places.store import Store  # only where outputs lie in stores

    return Store(storage.path, storage.options)


@contextlib.contextmanager
def looked_at(path: str | os.PathLike[str], options: Options | None = None) -> Iterator[Place]:
    """Return an output for looking at it, whoever holds it; of one in a store, the small files are copied.

    Raises ``NothingMatched`` for a place in a store where no run has written.
    """
    place = place_at(path, options)
    try:
        place.look()
        with place.naming():
            yield place
    finally:
        place.close()
