"""Writing to object stores: on the condition that nobody else has written, and told apart from one's own lost answer.

A store has no renames and no locks; it has conditions. All that an output promises there rests on two of them: put
this object if there is none of its name, and put it if the present one is the one that I know.
"""

from __future__ import annotations

import contextlib
import mmap
import random
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import IO, Any, Final, NamedTuple, TypeVar

from headrace.core.process import backoff
from headrace.core.stores.addresses import Address, Options, is_passing, reason
from headrace.core.stores.clients import open_store, store_errors
from headrace.errors import ForeignOutput, OutputWriteFailed

T = TypeVar("T")

SINGLE = 1 << 30  # bytes: what is bigger goes up in pieces
PAGE = 1_000  # names that a store lists in an answer
_PIECE = 64 << 20
_TRIES = 8
_LISTED_AT_ONCE = 10_000
_REMOVED_AT_ONCE = 16
_SLOWEST = 1 << 20  # bytes in a second: an upload that is slower is given up, and tried again
_ADVICE = "Finished work is kept: fix the cause, then run the same command again."


class Taken(Exception):
    """The condition of a request does not hold: the object is there already, or is another one."""


class Version(NamedTuple):
    """What tells the present content of an object from any other."""

    e_tag: str | None
    number: str | None = None


class Found(NamedTuple):
    """An object: its size, what was noted with it, its version, and when it was written, by the store's clock."""

    size: int
    notes: Mapping[str, str]
    version: Version
    written: datetime


ABSENT: Final = Version(None)
"""The condition that there is no object of this name."""


class StoreWriter:
    """The objects below one address, by names from there on. Safe to use from many threads."""

    def __init__(self, address: Address, options: Options) -> None:
        self.address = address
        self._options = dict(options)
        self._prefix = f"{address.key}/" if address.key else ""

    def url(self, name: str) -> str:
        """Return the address of an object."""
        return str(self.address._replace(key=self._prefix + name))

    # ------------------------------------------------------------ writing

    def put(
        self,
        name: str,
        data: bytes | mmap.mmap,
        *,
        when: Version | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> Version:
        """Write an object, ``when`` there is none (``ABSENT``), it is of this version, or whatever is there (None).

        Raises ``Taken`` where that is not so. After an answer that was lost, it may be raised over our own object.
        """
        import obstore

        mode: Any = "overwrite" if when is None else "create" if when == ABSENT else _condition(when)
        store, key = self._store(len(data)), self._prefix + name
        attributes: Any = dict(notes or {})

        def call() -> Version:
            try:
                done = obstore.put(store, key, data, mode=mode, use_multipart=False, attributes=attributes)
            except _gone() as error:
                if when is None or when == ABSENT or _no_bucket(error):
                    raise
                raise Taken from None  # the one that was to be replaced
            return Version(done["e_tag"], done["version"])

        return self._try("write", name, call)

    def put_once(self, name: str, data: bytes, *, when: Version) -> Version:
        """Write an object on a condition; what is there already is ours, if it has the same bytes.

        Raises ``Taken`` where the condition does not hold and the object is another's.
        """
        try:
            return self.put(name, data, when=when)
        except Taken:
            there = self.get(name)
            if there is None or there[0] != data:
                raise
            return there[1].version

    def put_file(
        self, name: str, file: IO[bytes], size: int, *, when: Version | None, notes: Mapping[str, str]
    ) -> None:
        """Write a file as an object, on a condition; one that is too big for one request goes up in pieces.

        With a condition, they go up aside. None: nobody else writes an object of this name.
        """
        if size > SINGLE:
            if when is None:
                self._put_pieces(name, file, notes)
            else:
                self._put_aside(name, file, when, notes)
        elif not size:
            self.put(name, b"", when=when, notes=notes)
        else:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            try:
                self.put(name, data, when=when, notes=notes)
            finally:
                # A request that was given up may still hold it for a moment.
                with contextlib.suppress(BufferError):
                    data.close()

    def _put_pieces(self, name: str, file: Any, notes: Mapping[str, str]) -> None:
        import obstore

        attributes = dict(notes)

        def call() -> None:
            file.seek(0)
            store = self._store(_PIECE)
            obstore.put(
                store,
                self._prefix + name,
                file,
                use_multipart=True,
                chunk_size=_PIECE,
                max_concurrency=4,
                attributes=attributes,
            )

        self._try("write", name, call)

    def _put_aside(self, name: str, file: Any, when: Version, notes: Mapping[str, str]) -> None:
        """Upload in pieces, which have no condition, under a name aside; look, and have the store copy it."""
        aside = f"_headrace/uploads/{random.getrandbits(64):016x}"
        self._put_pieces(aside, file, notes)
        try:
            self._look_first(name, when)
            self.duplicate(aside, name)
        finally:
            self.remove([aside])
        found = self.look(name)
        if found is None or dict(found.notes) != {**found.notes, **notes}:
            raise Taken

    def _look_first(self, name: str, when: Version) -> None:
        found = self.look(name)
        if (found is not None) if when == ABSENT else (found is None or found.version.e_tag != when.e_tag):
            raise Taken

    def duplicate(self, name: str, to: str) -> None:
        """Have the store copy an object, with what was noted with it."""
        if not self.duplicate_if_there(name, to):
            raise OutputWriteFailed(f"Cannot write {self.url(to)!r}: {self.url(name)!r} is gone. {_ADVICE}")

    def duplicate_if_there(self, name: str, to: str) -> bool:
        """Have the store copy an object, with what was noted with it; False if there is none."""
        import obstore

        store, source, target = self._store(SINGLE), self._prefix + name, self._prefix + to

        def call() -> bool:
            try:
                obstore.copy(store, source, target)
            except _gone() as error:
                if _no_bucket(error):
                    raise
                return False
            return True

        return self._try("write", to, call)

    def remove(self, names: Collection[str]) -> None:
        """Remove objects, as far as they are there."""
        import obstore

        keys = [self._prefix + name for name in names]
        if not keys:
            return
        store = self._store(0)
        if self.address.scheme == "s3":
            self._try("remove", next(iter(names)), lambda: obstore.delete(store, keys))
            return

        def one(name: str) -> None:
            self._try("remove", name, lambda: _delete(store, self._prefix + name))

        with ThreadPoolExecutor(_REMOVED_AT_ONCE, thread_name_prefix="headrace-removing") as threads:
            list(threads.map(one, names))

    # ------------------------------------------------------------ looking

    def look(self, name: str) -> Found | None:
        """Return what is known of an object without its content; None if there is none."""
        import obstore

        store, key = self._store(0), self._prefix + name

        def call() -> Found | None:
            try:
                answer = obstore.get(store, key, options={"head": True})
            except _gone() as error:
                if _no_bucket(error):
                    raise
                return None
            return _found(answer)

        return self._try("look at", name, call)

    def get(self, name: str) -> tuple[bytes, Found] | None:
        """Return the content of an object; None if there is none."""
        import obstore

        store, key = self._store(0), self._prefix + name

        def call() -> tuple[bytes, Found] | None:
            try:
                answer = obstore.get(store, key)
            except _gone() as error:
                if _no_bucket(error):
                    raise
                return None
            found, data = _found(answer), bytes(answer.bytes())
            if len(data) != found.size:
                raise ConnectionError(f"{len(data)} bytes came, not {found.size}")
            return data, found

        return self._try("read", name, call)

    def content(self, name: str) -> bytes | None:
        """Return the bytes of an object; None if there is none."""
        found = self.get(name)
        return None if found is None else found[0]

    def fetch(self, name: str, file: IO[bytes]) -> bool:
        """Write the content of an object to an open file, piece by piece; False if there is none."""
        import obstore

        store, key = self._store(SINGLE), self._prefix + name

        def call() -> bool:
            file.seek(0)
            file.truncate()
            try:
                answer = obstore.get(store, key)
            except _gone() as error:
                if _no_bucket(error):
                    raise
                return False
            for piece in answer.stream(min_chunk_size=1 << 20):
                file.write(piece)
            if file.tell() != answer.meta["size"]:
                raise ConnectionError(f"{file.tell()} bytes came, not {answer.meta['size']}")
            return True

        return self._try("read", name, call)

    def names(self, folder: str = "", *, few: bool = False) -> list[tuple[str, int]]:
        """Return the names of all objects in a folder, and their sizes; ``folder`` ends with a slash, or is empty.

        ``few``: the first of them are enough.
        """
        import obstore

        store, prefix = self._store(0), (self._prefix + folder).rstrip("/") or None

        def call() -> list[tuple[str, int]]:  # from its beginning again, should a page fail
            found: list[tuple[str, int]] = []
            for page in obstore.list(store, prefix, chunk_size=10 if few else _LISTED_AT_ONCE):
                found += [(entry["path"][len(self._prefix) :], entry["size"]) for entry in page]
                if few and found:
                    break
            return found

        return self._try("list", folder, call)

    def names_after(self, name: str) -> list[tuple[str, int]]:
        """Return the next thousand names behind ``name``, which need not be there, and their sizes: one request."""
        import obstore

        store, offset = self._store(0), self._prefix + name if name else None

        def call() -> list[tuple[str, int]]:
            listing = obstore.list(store, self._prefix.rstrip("/") or None, offset=offset, chunk_size=PAGE)
            page = next(iter(listing), ())
            return [(entry["path"][len(self._prefix) :], entry["size"]) for entry in page]

        return self._try("list", "", call)

    # ------------------------------------------------------------ requests

    def _store(self, size: int) -> Any:
        """Return a client that has time enough for ``size`` bytes."""
        usual = float(self._options.get("timeout", 60.0))
        needed = usual
        while needed < usual + size / _SLOWEST:
            needed *= 2
        return open_store(self.address, tuple(sorted({**self._options, "timeout": needed}.items())))

    def _try(self, verb: str, name: str, call: Callable[[], T]) -> T:
        """Call, again after a pause while trying may help."""
        from obstore import exceptions

        for attempt in range(_TRIES):
            try:
                return call()
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
                if "409 Conflict" not in str(error) or attempt + 1 == _TRIES:
                    raise Taken from None
            except exceptions.InvalidPathError:
                raise ForeignOutput(
                    f"Cannot {verb} {self.url(name)!r}: a key there has an empty part or a part '.' or '..', as in "
                    "'a//b', which no run writes. Nothing was touched: choose another output."
                ) from None
            except store_errors() as error:
                if attempt + 1 == _TRIES or not is_passing(error):
                    raise OutputWriteFailed(
                        f"Cannot {verb} {self.url(name)!r}: {reason(error)} {_ADVICE}"
                    ) from None
            time.sleep(backoff(attempt + 1, 0.1, 60.0, spread=0.9))
        raise AssertionError("unreachable")


def _condition(version: Version) -> dict[str, str]:
    named = {"e_tag": version.e_tag, "version": version.number}
    return {name: value for name, value in named.items() if value is not None}


def _found(answer: Any) -> Found:
    meta = answer.meta
    notes = {str(name).lower(): str(value) for name, value in answer.attributes.items()}
    return Found(meta["size"], notes, Version(meta["e_tag"], meta["version"]), meta["last_modified"])


def _gone() -> tuple[type[Exception], ...]:
    from obstore import exceptions

    return FileNotFoundError, exceptions.NotFoundError


def _no_bucket(error: Exception) -> bool:
    return "<Code>NoSuchBucket" in str(error)


def _delete(store: Any, key: str) -> None:
    import obstore

    with contextlib.suppress(*_gone()):
        obstore.delete(store, key)
