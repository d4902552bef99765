"""Values that the driver stores for workers: what was put, calls on their way, and what calls returned.

Each has a memory file of its own, if it has big buffers; a worker that needs it gets the descriptor, once.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from headrace.engines.references import (
    OutOfBandPickle,
    Ref,
    collecting_references,
    holder_of,
    resolving_references,
)
from headrace.errors import ExecutorClosed

# `out_of_band_pickle` imports cloudpickle and numpy: imported in functions, after the first workers have started.

Message = tuple[Any, ...]


class StoredObject:
    """One value, pickled. It lives as long as anybody refers to it: a ``Ref``, a future, a call under way.

    ``store`` gave it its number. ``links`` are the values, futures and actors that it refers to, each with a
    ``number`` and a ``reference()``. ``known`` are the workers that were
    sent it; ``once``: they need it for one call, and forget it by themselves. ``size``: how many bytes it takes.
    """

    __slots__ = ("__weakref__", "_is_alive", "known", "links", "number", "once", "size", "store")

    def __init__(self, number: int, size: int, store: ObjectStore, *, once: bool = False) -> None:
        self.number = number
        self.size = size
        self.store = store
        self.once = once
        self.links: tuple[Any, ...] = ()
        self.known: set[int] = set()
        self._is_alive = True

    def __del__(self) -> None:
        try:  # noqa: SIM105 - modules are gone when the interpreter ends
            self._free()
        except AttributeError:  # it was not made, or the interpreter ends
            pass

    def value(self) -> Any:
        """Unpickle the value, with its buffers where they lie."""
        raise NotImplementedError

    def reference(self) -> Any:
        """Return a ``Ref`` to it."""
        return Ref(self)

    def to_send(self) -> AbstractContextManager[tuple[Message, Any]]:
        """Return the message that takes it to a worker, and what goes with it: Ray's references."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the memory now."""
        self._free()

    def in_message(self) -> Message | None:
        """Return the message that takes it to a worker, if nothing has to go with it."""
        return None

    def with_linked(self) -> Iterator[StoredObject]:
        """Yield the stored values that it refers to, each after those that this one refers to, and then itself."""
        for link in self.links:
            if isinstance(link, StoredObject):
                yield from link.with_linked()
        yield self

    def _free(self) -> None:
        if self._is_alive:
            self._is_alive = False
            self.store.release(self.number, self.known)

    def _check_alive(self) -> None:
        if not self._is_alive:
            raise ExecutorClosed(
                "This value is gone: the executor that it was put to is shut down. Use it before, and run a Dataset "
                "whose steps use it before, too."
            )


class FileObject(StoredObject):
    """A value with its big buffers in a memory file, or where there are too many of these, in ordinary memory."""

    __slots__ = ("_packed",)

    def __init__(
        self, number: int, packed: OutOfBandPickle, store: ObjectStore, *, once: bool = False
    ) -> None:
        from headrace.engines.out_of_band_pickle import KeptPickle

        self._packed = KeptPickle(packed)
        super().__init__(number, self._packed.size, store, once=once)

    def value(self) -> Any:
        """See ``StoredObject``."""
        self._check_alive()
        with resolving_references(self.links):
            return self._packed.load()

    def in_message(self) -> Message | None:
        """See ``StoredObject``."""
        self._check_alive()
        if self._packed.needs_file:
            return None
        with self.to_send() as (message, _):
            return message

    @contextlib.contextmanager
    def to_send(self) -> Iterator[tuple[Message, None]]:
        """See ``StoredObject``: the descriptor is in the message."""
        self._check_alive()
        links = tuple(linked.number for linked in self.links)
        with self._packed.to_send() as packed:
            yield ("value", self.number, msgspec.structs.replace(packed, links=links)), None

    def _free(self) -> None:
        super()._free()
        self._packed.close()


class ObjectStore:
    """Makes ``StoredObject`` values, and calls ``on_release(number, workers)`` when nobody refers to one any more."""

    _numbers = itertools.count()  # of all stores: a reference of another one is noticed

    def __init__(self, on_release: Callable[[int, set[int]], None]) -> None:
        self._on_release = on_release
        self._all: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._put: weakref.WeakSet[StoredObject] = weakref.WeakSet()
        self._adding = threading.Lock()

    def put(self, value: Any, *, once: bool = False) -> tuple[StoredObject, list[Any]]:
        """Pickle and store a value; return it, and the references in it: the caller sets ``links``."""
        with collecting_references() as references:
            packed = self._pack(value)
        stored = self._add(packed, once)
        with self._adding:
            self._put.add(stored)
        return stored, references

    def add_packed(self, packed: Any, *, number: int | None = None, once: bool = False) -> StoredObject:
        """Store what a worker sent; ``number``: the name that it has there."""
        stored = self._add(packed, once, number)
        if packed.links:
            stored.links = tuple(self._linked(number) for number in packed.links)
        return stored

    def name(self, thing: Any, number: int | None = None) -> int:
        """Give something that is no stored value a number, by which references to it travel."""
        number = next(self._numbers) if number is None else number
        self._all[number] = thing
        return number

    def find(self, number: int) -> Any:
        """Return what has a number; None if nobody in this process refers to it any more."""
        return self._all.get(number)

    def close(self) -> None:
        """Free all that was put. What workers returned belongs to those who refer to it."""
        with self._adding:
            put = list(self._put)
        for stored in put:
            stored.close()

    def release(self, number: int, known: set[int]) -> None:
        """Nobody refers to a value any more. Runs wherever the last reference goes, so it does little."""
        if known:
            self._on_release(number, known)

    def _linked(self, number: int) -> Any:
        found = self.find(number)
        if found is None:
            return _released(self)
        if isinstance(found, Future):
            found.shared = True  # type: ignore[attr-defined]
        return holder_of(found) if not isinstance(found, StoredObject) else found

    def _add(self, packed: Any, once: bool, number: int | None = None) -> StoredObject:
        stored = self._stored(next(self._numbers) if number is None else number, packed, once)
        self._all[stored.number] = stored
        return stored

    def _pack(self, value: Any) -> Any:
        from headrace.engines.out_of_band_pickle import pack

        return pack(value)

    def _stored(self, number: int, packed: Any, once: bool) -> StoredObject:
        return FileObject(number, packed, self, once=once)


@contextlib.contextmanager
def lending(kind: type[ObjectStore]) -> Iterator[list[StoredObject]]:
    """While a pool pickles what its workers host: collect the stored values that the user's steps refer to.

    They are there when the block ends, in the order of the references. Those of another ``kind`` of store are put
    into one of this kind.
    """
    values: list[StoredObject] = []
    with collecting_references(for_step=True) as references:
        yield values
        store = kind(_keep) if references else None
        values += [_lent(each, store) for each in references]


def _lent(reference: Any, store: Any) -> StoredObject:
    holder = Future.result(reference) if isinstance(reference, Future) else reference.holder
    if isinstance(holder, StoredObject) and all(
        type(each.store) is type(store) for each in holder.with_linked()
    ):
        holder._check_alive()
        if all(isinstance(link, StoredObject) for each in holder.with_linked() for link in each.links):
            return holder
    stored: StoredObject
    stored, references = store.put(holder.value())
    stored.links = tuple(_lent(each, store) for each in references)
    return stored


def _keep(number: int, workers: set[int]) -> None:
    """The workers that have the value end with their pool."""


def _released(store: ObjectStore) -> StoredObject:
    """Return a value that is not there any more."""
    stored = FileObject(-1, OutOfBandPickle(b""), store)
    stored.close()
    return stored
