"""Values that an executor's driver keeps for workers, in Ray's object store; small ones travel with the calls."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from millrace.engines.kept import Keeper, Kept
from millrace.engines.links import arriving
from millrace.engines.parcel import SMALL, apart
from millrace.engines.ray.mapped import private
from millrace.engines.ray.words import first_line
from millrace.errors import NodeLost


@dataclass(frozen=True, slots=True)
class Stored:
    """What was put or returned: pickled here, or ``held`` is the object of a pickle and its buffers."""

    pickled: bytes
    held: Any
    size: int
    links: tuple[int, ...] = ()


class RayKept(Kept):
    """A value in the object store, or a small one in the driver."""

    __slots__ = ("_stored",)

    def __init__(self, number: int, stored: Stored, keeper: Keeper, *, once: bool = False) -> None:
        super().__init__(number, stored.size, keeper, once=once)
        self._stored: Stored | None = stored

    def value(self) -> Any:
        """See ``Kept``. Raises ``NodeLost`` if it went with the machine that it lay on."""
        self._check()
        assert self._stored is not None
        pickled, buffers = self._stored.pickled, []
        if self._stored.held is not None:
            try:
                pickled, buffers = ray.get(self._stored.held)
            except ray.exceptions.RayError as error:
                raise NodeLost(
                    f"The value is lost, with the machine that it lay on: {first_line(error)}. Make the call again."
                ) from error
        with arriving(self.links):
            return pickle.loads(pickled, buffers=private(buffers))

    def to_send(self) -> tuple[tuple[Any, ...], dict[int, Any]]:
        """Return the message that takes it to a worker, and the object that goes with it, by number."""
        self._check()
        assert self._stored is not None
        message = ("value", self.number, self._stored.pickled, tuple(kept.number for kept in self.links))
        return message, {} if self._stored.held is None else {self.number: self._stored.held}

    def close(self) -> None:
        """See ``Kept``."""
        super().close()
        self._stored = None


class RayKeeper(Keeper):
    """See ``Keeper``."""

    def _pack(self, value: Any) -> Stored:
        pickled, buffers = apart(value)
        size = len(pickled) + sum(buffer.nbytes for buffer in buffers)
        if size <= SMALL:
            return Stored(pickled, None, size)
        return Stored(b"", ray.put((pickled, buffers)), size)

    def _kept(self, number: int, packed: Any, once: bool) -> Kept:
        return RayKept(number, packed, self, once=once)
