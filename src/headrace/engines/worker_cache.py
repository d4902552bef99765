"""A worker's side of stored values: what it was sent, unpickled anew whenever it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.engines.references import Holder, resolving_references


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

    __slots__ = ("_links", "_packed", "number")

    def __init__(self, number: int, links: Sequence[Holder], packed: Packed) -> None:
        self.number = number
        self._links = links
        self._packed = packed

    def value(self) -> Any:
        """Return the value, made anew: a call never sees what another has changed in it."""
        with resolving_references(self._links):
            return self._packed.load()

    def __del__(self) -> None:
        self._packed.close()


class WorkerCache:
    """All that a worker was sent, by number. One thread adds and forgets, another asks."""

    def __init__(self) -> None:
        self._objects: dict[int, CachedObject] = {}

    def add(self, number: int, links: Sequence[int], packed: Packed) -> None:
        """Add a value; what it refers to came before it."""
        holders = [self._objects.get(link) or MissingObject(link) for link in links]
        self._objects[number] = CachedObject(number, holders, packed)

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

    def value(self) -> Any:
        """Raise ``LookupError``."""
        raise LookupError("The value of this Ref is gone: the driver released it before this call.")
