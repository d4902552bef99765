"""A worker's side of kept values: what it was lent, made again when first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from millrace.engines.links import Holder, arriving

_NOT_YET = object()


class Loan:
    """One value that this worker was lent. References to it keep it, whatever the driver says.

    ``make`` makes the value again; ``unused`` is called instead if nobody ever asked for it.
    """

    __slots__ = ("_links", "_lock", "_make", "_unused", "_value", "number")

    def __init__(
        self,
        number: int,
        links: Sequence[Holder],
        make: Callable[[], Any],
        unused: Callable[[], None] | None,
    ) -> None:
        self.number = number
        self._links = links
        self._make: Callable[[], Any] | None = make
        self._unused = unused
        self._value: Any = _NOT_YET
        self._lock = threading.Lock()

    def value(self) -> Any:
        """Return the value, made again the first time."""
        with self._lock:
            if self._value is _NOT_YET:
                assert self._make is not None
                self._unused = None
                with arriving(self._links):
                    self._value = self._make()
                self._make = None
            return self._value

    def __del__(self) -> None:
        if self._unused is not None:
            self._unused()


class Locker:
    """All that a worker was lent, by number. One thread adds and forgets, another asks."""

    def __init__(self) -> None:
        self._loans: dict[int, Loan] = {}

    def add(
        self,
        number: int,
        links: Sequence[int],
        make: Callable[[], Any],
        unused: Callable[[], None] | None = None,
    ) -> None:
        """Take a value in; what it refers to came before it."""
        holders = [self._loans.get(link) or Missing(link) for link in links]
        self._loans[number] = Loan(number, holders, make, unused)

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
