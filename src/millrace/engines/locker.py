"""A worker's side of kept values: what it was lent, made again when first asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from millrace.engines.links import Holder, arriving
from millrace.engines.parcel import unpack

_NOT_YET = object()


class Loan:
    """One value that this worker was lent. References to it keep it, whatever the driver says."""

    __slots__ = ("_fd", "_links", "_lock", "_pickled", "_places", "_value", "number")

    def __init__(
        self, number: int, pickled: bytes, places: Sequence[tuple[int, int]], links: Sequence[Holder], fd: int
    ) -> None:
        self.number = number
        self._pickled = pickled
        self._places = places
        self._links = links
        self._fd = fd
        self._value: Any = _NOT_YET
        self._lock = threading.Lock()

    def value(self) -> Any:
        """Return the value, made again the first time."""
        with self._lock:
            if self._value is _NOT_YET:
                fd, self._fd = self._fd, -1
                with arriving(self._links):
                    self._value = unpack(self._pickled, self._places, fd)
                self._pickled = b""
            return self._value

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class Locker:
    """All that a worker was lent, by number. One thread adds and forgets, another asks."""

    def __init__(self) -> None:
        self._loans: dict[int, Loan] = {}

    def add(
        self, number: int, pickled: bytes, places: Sequence[tuple[int, int]], links: Sequence[int], fd: int
    ) -> None:
        """Take a value in; what it refers to came before it."""
        holders = [self._loans.get(link) or Missing(link) for link in links]
        self._loans[number] = Loan(number, pickled, places, holders, fd)

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
