"""A worker's side of stored values: what it was sent, unpickled anew whenever it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

from headrace.engines.references import Ref, resolving_references


class Packed(Protocol):
    """A value as it came, from which it can be made any number of times."""

    def load(self) -> Any:
        """Return the value; nobody else has any part of it."""
        ...

    def close(self) -> None:
        """It will not be loaded any more."""
        ...


class CachedObject:
    """One value that this worker was sent. References to it keep it, whatever the driver says."""

    __slots__ = ("__weakref__", "_links", "_packed", "number")

    def __init__(self, number: int, links: Sequence[Any], packed: Packed) -> None:
        self.number = number
        self._links = links
        self._packed = packed

    def value(self) -> Any:
        """Return the value, made anew: a call never sees what another has changed in it."""
        with resolving_references([each() if isinstance(each, partial) else each for each in self._links]):
            return self._packed.load()

    def reference(self) -> Any:
        """Return a ``Ref`` to it."""
        return Ref(self)

    def __del__(self) -> None:
        self._packed.close()


class WorkerCache:
    """All that a worker was sent, by number. One thread adds and forgets, another asks."""

    def __init__(self) -> None:
        self._objects: dict[int, CachedObject] = {}
        self._others: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._adding = threading.RLock()
        self.stand_in: Callable[[int], Any] = MissingObject

    def add(self, number: int, links: Sequence[int], packed: Packed) -> None:
        """Add a value; what it refers to came before it, unless it is not done yet, or is an actor."""
        there = [self._objects.get(link) for link in links]
        known = [
            partial(self.holder, link) if got is None else got for got, link in zip(there, links, strict=True)
        ]
        self._objects[number] = CachedObject(number, known, packed)

    def holder(self, number: int) -> Any:
        """Return what stands for a number here: the value that came, or what asks the driver for it."""
        with self._adding:
            found = self._objects.get(number) or self._others.get(number)
            if found is None:
                found = self._others[number] = self.stand_in(number)
            return found

    def resolved(self, links: Sequence[int], load: Callable[[], Any]) -> Any:
        """Return what ``load`` unpickles, whose references are to the values with these numbers."""
        with resolving_references([self.holder(link) for link in links]):
            return load()

    def forget(self, number: int) -> None:
        """The driver does not need a value any more."""
        self._objects.pop(number, None)

    def value(self, number: int, once: bool) -> Any:
        """Return a value; ``once``: it will not be asked for again."""
        return (self._objects.pop(number) if once else self._objects[number]).value()


class MissingObject:
    """Stands for a value that was gone before a reference to it came here."""

    def __init__(self, number: int) -> None:
        self.number = number

    def reference(self, *described: Any) -> Any:
        """Return a ``Ref`` to it."""
        return Ref(self)

    def value(self) -> Any:
        """Raise ``LookupError``."""
        raise LookupError("The value of this Ref is gone: the driver released it before this call.")
