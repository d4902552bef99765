"""The journal of a run in a store: objects with numbers, each put on the condition that there is none of it.

An object holds ``MAGIC``, the token of the driver that wrote it, and frames of the journal; that of a driver that
begins holds none. As every driver puts the number after the last that it knows, one that does not know that another
has begun cannot append any more: the condition fails, and what stands there has another token.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from headrace.core import failpoints
from headrace.core.stores.writing import ABSENT, StoreWriter, Taken
from headrace.core.work import HOME
from headrace.errors import JournalDamaged, RunLocked
from headrace.output.journal_frames import MAGIC
from headrace.output.places.lease import Lease

_HEAD = b"headrlog"
_TOKEN = 16
_AT_ONCE = 16
_TRIES = 20


class NumberedObjects:
    """The objects of one run's journal: a log, whose copy is a file of this machine."""

    def __init__(self, store: StoreWriter, run: str, lease: Lease | None = None) -> None:
        self._store = store
        self._folder = f"_headrace/{run}/journal/"
        self._lease = lease
        self._next = 1

    def read(self, *, listed: int = 0) -> bytes:
        """Return the frames of all objects from the next on. ``listed``: how many a listing has, maybe too few."""
        frames: list[bytes] = []
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-journal") as threads:
            known = range(self._next, listed + 1)
            for number, data in zip(known, threads.map(self._object, known), strict=True):
                if data is None:
                    raise JournalDamaged(
                        f"{self._store.url(self._name(number))} is gone, and later objects of the journal are there. "
                        "Without it, it is not known which work is finished: restore it from a copy, or write to "
                        "another place."
                    )
                frames.append(self._frames(number, data))
        self._next = max(self._next, listed + 1)
        while (data := self._object(self._next)) is not None:  # a listing may be old; this is not
            frames.append(self._frames(self._next, data))
            self._next += 1
        return b"".join(frames)

    def append(self, frames: bytes) -> None:
        """Put the next object; raises ``RunLocked`` if another driver has put one of this number."""
        assert self._lease is not None
        data = _HEAD + self._lease.token.encode() + frames.removeprefix(MAGIC)
        name = self._name(self._next)
        failpoints.hit("store.append")
        try:
            self._lease.ensure()
            self._store.put(name, data, when=ABSENT)
        except Taken:
            there = self._store.get(name)
            if there is None or there[0] != data:  # ours, if only the answer was lost
                self._lease.check()
                raise self._lease.fenced() from None
        self._next += 1
        failpoints.hit("store.appended")

    def claim(self) -> bytes:
        """Put an object without frames; return the frames that another driver has put since the journal was read.

        What that one put before ours counts; whatever it puts from then on fails.
        """
        late: list[bytes] = []
        for _ in range(_TRIES):
            try:
                self.append(b"")
            except RunLocked:
                assert self._lease is not None
                self._lease.check()  # it is ours: the other one does not know that yet
                late.append(self.read())
            else:
                return b"".join(late)
        raise RunLocked(
            f"{self._store.url(self._folder)} is written by another run again and again. Run again when it is done."
        )

    def _object(self, number: int) -> bytes | None:
        found = self._store.get(self._name(number))
        return None if found is None else found[0]

    def _name(self, number: int) -> str:
        return f"{self._folder}{number:010}"

    def _frames(self, number: int, data: bytes) -> bytes:
        if data[: len(_HEAD)] != _HEAD or len(data) < len(_HEAD) + _TOKEN:
            raise JournalDamaged(
                f"{self._store.url(self._name(number))} is damaged: it is not a part of a journal. Restore it from a "
                "copy, or write to another place."
            )
        return data[len(_HEAD) + _TOKEN :]


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
