"""A worker's side of kept values: what it was lent, made anew whenever it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from millrace.engines.links import Holder, arriving


class Packed(Protocol):
    """A value as it came, from which it can be made any number of times."""

    def make(self) -> Any:
        """Return the value; nobody else has any part of it."""
        ...

    def close(self) -> None:
        """Nobody will ask any more."""
        ...


class Loan:
    """One value that this worker was lent. References to it keep it, whatever the driver says."""

    __slots__ = ("_links", "_packed", "number")

    def __init__(self, number: int, links: Sequence[Holder], packed: Packed) -> None:
        self.number = number
        self._links = links
        self._packed = packed

    def value(self) -> Any:
        """Return the value, made anew: a call never sees what another has changed in it."""
        with arriving(self._links):
            return self._packed.make()

    def __del__(self) -> None:
        self._packed.close()


class Locker:
    """All that a worker was lent, by number. One thread adds and forgets, another asks."""

    def __init__(self) -> None:
        self._loans: dict[int, Loan] = {}

    def add(self, number: int, links: Sequence[int], packed: Packed) -> None:
        """Take a value in; what it refers to came before it."""
        holders = [self._loans.get(link) or Missing(link) for link in links]
        self._loans[number] = Loan(number, holders, packed)

    def forget(self, number: int) -> None:
        """The driver has no use for a value any more."""
        self._loans.pop(number, None)

    def value(self, number: int, once: bool) -> Any:
        """Return a value; ``once``: it will not be asked for again."""
        return (self._loans.pop(number) if once else self._loans[number]).value()


class Missing:
    """Stands for a value that was gone before a reference to it came here."""

    def __init__(self, number: int) -> None:
        self.number = number

    def value(self) -> Any:
        """Raise."""
        raise LookupError("The value of this Ref is gone: the driver let go of it before this call.")
