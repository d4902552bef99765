"""Values that an executor's driver stores for workers, in Ray's object store; small ones travel with the calls."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from headrace.engines.object_store import Message, ObjectStore, StoredObject
from headrace.engines.out_of_band_pickle import SMALL, apart
from headrace.engines.ray.mapped import private
from headrace.engines.ray.messages import first_line
from headrace.engines.references import resolving_references
from headrace.errors import NodeLost


@dataclass(frozen=True, slots=True)
class RayPickle:
    """What was put or returned: pickled here, or ``reference`` is to a pickle and its buffers in Ray's store."""

    pickled: bytes
    reference: Any
    size: int
    links: tuple[int, ...] = ()


class RayObject(StoredObject):
    """A value in the object store, or a small one in the driver."""

    __slots__ = ("_packed",)

    def __init__(self, number: int, packed: RayPickle, store: ObjectStore, *, once: bool = False) -> None:
        super().__init__(number, packed.size, store, once=once)
        self._packed: RayPickle | None = packed

    def value(self) -> Any:
        """See ``StoredObject``. Raises ``NodeLost`` if it went with the machine that it lay on."""
        self._check_alive()
        assert self._packed is not None
        pickled, buffers = self._packed.pickled, []
        if self._packed.reference is not None:
            try:
                pickled, buffers = ray.get(self._packed.reference)
            except ray.exceptions.RayError as error:
                raise NodeLost(
                    f"The value is lost, with the machine that it lay on: {first_line(error)}. Make the call again."
                ) from error
        with resolving_references(self.links):
            return pickle.loads(pickled, buffers=private(buffers))

    def in_message(self) -> Message | None:
        """See ``StoredObject``."""
        self._check_alive()
        assert self._packed is not None
        links = tuple(linked.number for linked in self.links)
        return ("value", self.number, self._packed.pickled, links) if self._packed.reference is None else None

    @contextlib.contextmanager
    def to_send(self) -> Iterator[tuple[Message, dict[int, Any]]]:
        """See ``StoredObject``: with Ray's reference, by number."""
        self._check_alive()
        assert self._packed is not None
        links = tuple(linked.number for linked in self.links)
        message = ("value", self.number, self._packed.pickled, links)
        yield message, {} if self._packed.reference is None else {self.number: self._packed.reference}

    def close(self) -> None:
        """See ``StoredObject``."""
        super().close()
        self._packed = None


def lent(values: Sequence[StoredObject]) -> tuple[tuple[int, ...], list[tuple[Message, dict[int, Any]]]]:
    """Return the numbers of values that a pool's workers need, and the messages that take them there."""
    messages = []
    for each in dict.fromkeys(linked for value in values for linked in value.with_linked()):
        with each.to_send() as message:
            messages.append(message)
    return tuple(value.number for value in values), messages


class RayObjectStore(ObjectStore):
    """See ``ObjectStore``."""

    def _pack(self, value: Any) -> RayPickle:
        pickled, buffers = apart(value)
        size = len(pickled) + sum(buffer.nbytes for buffer in buffers)
        if size <= SMALL:
            return RayPickle(pickled, None, size)
        return RayPickle(b"", ray.put((pickled, buffers)), size)

    def _small(self, pickled: bytes) -> Any:
        return RayPickle(pickled, None, len(pickled))

    def _stored(self, number: int, packed: Any, once: bool) -> StoredObject:
        return RayObject(number, packed, self, once=once)
