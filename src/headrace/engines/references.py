"""References to stored values, and how they travel inside of other values.

A reference goes into a pickle as a number: the place in the list of all that were met on the way. Where it is
unpickled, that list holds what has the values there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from headrace.errors import NotPicklable

T = TypeVar("T")
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


class Holder(Protocol):
    """What has a stored value, or can unpickle it again."""

    def value(self) -> Any:
        """Return the value."""
        ...


class Ref(Generic[T]):
    """A value that was ``put``: one copy of its big buffers per machine, however many workers use it.

    Passed as an argument of a call it delivers the value; inside a list, tuple or dict it arrives as a ``Ref``. Each
    call gets a value of its own, made again from what was put: lists, dicts, frames and models may be changed, and
    nobody else sees it. Big buffers, such as a model's weights, are not copied for that; only pages that are written
    to are. Arrays are read-only, also in lists, tuples and dicts: copy one to write to it. What is costly to make
    again belongs into an actor, which keeps it. When the last ``Ref`` is collected, the memory is free.

    Pickling it in any other way raises ``NotPicklable``: it means nothing outside of its executor.

    >>> import numpy as np, headrace as hr
    >>> with hr.connect(workers=1) as executor:
    ...     weights = executor.put(np.ones(1_000_000))
    ...     print(executor.submit(np.sum, weights).result(), weights.get().shape)
    1000000.0 (1000000,)
    """

    __slots__ = ("__weakref__", "_holder")

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def get(self) -> T:
        """Return the value, made anew by each call, with its buffers where they lie.

        Raises ``ExecutorClosed`` if the executor that it was put to is shut down.
        """
        return read_only(self._holder.value())  # type: ignore[no-any-return]

    @property
    def holder(self) -> Holder:
        """What has the value in this process."""
        return self._holder

    def __reduce__(self) -> Any:
        return reduce_reference(self)


def read_only(value: Any) -> Any:
    """Return the value; arrays in plain data are read-only from now on: what is written there would reach nobody."""
    waiting, seen = [value], set()
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if kind in (list, tuple):
            waiting += [item for item in each if type(item) not in _PLAIN]
        elif kind is dict:
            waiting += [item for item in each.values() if type(item) not in _PLAIN]
        elif kind.__module__ == "numpy" and kind.__name__ == "ndarray" and each.flags.writeable:
            each.flags.writeable = False
    return value


class _Pickling(threading.local):
    """What the pickling, or the unpickling, that this thread is at has met."""

    references: list[Any] | None = None
    holders: Sequence[Holder] = ()


_pickling = _Pickling()


@contextlib.contextmanager
def collecting_references() -> Iterator[list[Any]]:
    """While a value is pickled: collect the references in it."""
    before, _pickling.references = _pickling.references, []
    try:
        yield _pickling.references
    finally:
        _pickling.references = before


@contextlib.contextmanager
def resolving_references(holders: Sequence[Holder]) -> Iterator[None]:
    """While a value is unpickled: the references in it are to what ``holders`` have, in their order."""
    before, _pickling.holders = _pickling.holders, holders
    try:
        yield
    finally:
        _pickling.holders = before


def reduce_reference(reference: Any) -> Any:
    """Reduce a reference to its place in the list; for ``__reduce__``."""
    if _pickling.references is None:
        raise NotPicklable(
            f"A {type(reference).__name__} means something only to its executor: pass it to a call, or as a part of "
            "what is put; to store or send it elsewhere, get its value first."
        )
    _pickling.references.append(reference)
    return _restored, (len(_pickling.references) - 1,)


def _restored(place: int) -> Ref[Any]:
    return Ref(_pickling.holders[place])
