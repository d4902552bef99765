"""References to stored values: how they travel inside of other values, and what a worker keeps of them.

A reference goes into a pickle as a number: the place in the list of all that were met on the way. Where it is
unpickled, that list holds what has the values there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from headrace.core.human import size
from headrace.errors import NotPicklable

T = TypeVar("T")


class Holder(Protocol):
    """What has a stored value, or can unpickle it again; ``number`` names it in driver and workers."""

    number: int

    def value(self) -> Any:
        """Return the value."""
        ...

    def reference(self) -> Any:
        """Return what stands for it in the user's hands: a ``Ref``, a future, the handle of an actor."""
        ...


class Shown:
    """How errors of calls are shown where references are awaited; programs for Ray want them to be Ray's, too."""

    error: Callable[[BaseException], BaseException] = staticmethod(lambda error: error)


class Ref(Generic[T]):
    """A value that was ``put``: one copy of its big buffers per machine, however many workers use it.

    Passed as an argument of a call it delivers the value; inside a list, tuple or dict it arrives as a ``Ref``. Each
    call gets a value of its own, made again from what was put: lists, dicts, frames and models may be changed, and
    nobody else sees it. Big buffers, such as a model's weights, are not copied for that; only pages that are written
    to are. Arrays are read-only, also in lists, tuples and dicts: copy one to write to it. What is costly to make
    again belongs into an actor, which keeps it. When the last ``Ref`` is collected, the memory is free.

    A Dataset's step may use it, too, as an argument or as a variable of its function. It arrives there as a ``Ref``:
    ``get()`` returns the value. The executor must not be shut down before the run ends.

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
        """Return the value, made anew by each call, with its buffers where they lie; in a worker, wait for it.

        Raises ``ExecutorClosed`` if the executor that it was put to is shut down.
        """
        return read_only(self._holder.value())  # type: ignore[no-any-return]

    @property
    def holder(self) -> Holder:
        """What has the value in this process."""
        return self._holder

    def hex(self) -> str:
        """Return its name: the same for all references to the value, in the driver and in workers. Raises nothing.

        >>> import headrace as hr
        >>> with hr.connect(workers=1) as executor:
        ...     len(executor.put(1).hex())
        56
        """
        return f"{self._holder.number:056x}"

    def future(self) -> Future[T]:
        """Return a future of the value. What ``executor.get`` would raise, its ``result()`` raises.

        >>> import headrace as hr
        >>> with hr.connect(workers=1) as executor:
        ...     executor.put(1).future().result()
        1
        """
        future: Future[T] = Future()
        later = getattr(self._holder, "when_done", None)
        if later is None:
            future.set_result(self.get())
        else:
            later(lambda: settle(future, self.get))
        return future

    def as_future(self) -> Awaitable[T]:
        """Return it as a future of the event loop that runs.

        Raises ``RuntimeError`` where none runs.

        Examples
        --------
        >>> import asyncio
        >>> import headrace as hr
        >>> async def fetch(executor):
        ...     return await executor.put(1).as_future()
        >>> with hr.connect(workers=1) as executor:
        ...     asyncio.run(fetch(executor))
        1
        """
        import asyncio

        return asyncio.wrap_future(self.future(), loop=asyncio.get_running_loop())

    def __await__(self) -> Generator[Any, None, T]:
        return self.as_future().__await__()

    def __repr__(self) -> str:
        bytes_ = getattr(self._holder, "size", None)
        return f"<Ref {self.hex()[-12:]}{f': {size(bytes_)}' if bytes_ is not None else ''}>"

    def _repr_html_(self) -> str:
        """Show in a notebook how big the value is; it is not made for that."""
        from headrace.core.tables import card

        bytes_ = getattr(self._holder, "size", None)
        known = [("size", size(bytes_))] if bytes_ is not None else []
        return card("Ref", [("name", self.hex()[-12:]), *known, ("value", "get() returns it")])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other._holder.number == self._holder.number

    def __hash__(self) -> int:
        return hash(self._holder.number)

    def __reduce__(self) -> Any:
        return reduce_reference(self)

    def __identified_by__(self) -> T:
        """Return what a step that uses it is identified by: the value. So the same value put again is the same."""
        return self.get()


def holder_of(reference: Any) -> Any:
    """Return what has the value of a ``Ref`` or a future, or what stands for an actor."""
    return reference._link() if hasattr(type(reference), "_link") else reference.holder


def settle(future: Future[Any], get: Callable[[], Any]) -> None:
    """Have a future end as ``get`` does."""
    try:
        value = get()
    except BaseException as error:
        future.set_exception(Shown.error(error))
    else:
        future.set_result(value)


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
            waiting += [item for item in each if type(item) not in ATOMS]
        elif kind is dict:
            waiting += [item for item in each.values() if type(item) not in ATOMS]
        elif kind.__module__ == "numpy" and kind.__name__ == "ndarray" and each.flags.writeable:
            each.flags.writeable = False
    return value


class _Pickling(threading.local):
    """What the pickling, or the unpickling, that this thread is at has met."""

    references: list[Any] | None = None
    for_step = False
    holders: Sequence[Any] = ()


_pickling = _Pickling()


# In a worker: the references that were unpickled, which may outlive the call that brought them.
restored: list[weakref.ref[Any]] | None = None


def keep_restored() -> None:
    """In a worker: remember references that are unpickled, until ``taken_restored``."""
    global restored
    restored = []


def taken_restored() -> list[Any]:
    """Return the references that were unpickled since the last time, and are alive."""
    global restored
    if not restored:
        return []
    taken, restored = restored, []
    return [alive for each in taken if (alive := each()) is not None]


@contextlib.contextmanager
def collecting_references(*, for_step: bool = False) -> Iterator[list[Any]]:
    """While a value is pickled: collect the references in it.

    ``for_step``: it is, or belongs to, a Dataset's step, whose workers can use values, and cannot call actors.
    """
    before = _pickling.references, _pickling.for_step
    _pickling.references, _pickling.for_step = [], for_step or _pickling.for_step
    try:
        yield _pickling.references
    finally:
        _pickling.references, _pickling.for_step = before


def collects_references() -> bool:
    """Say whether what this thread pickles goes to a worker, or comes from one."""
    return _pickling.references is not None


@contextlib.contextmanager
def resolving_references(holders: Sequence[Any]) -> Iterator[None]:
    """While a value is unpickled: the references in it are to what ``holders`` have, in their order."""
    before, _pickling.holders = _pickling.holders, holders
    try:
        yield
    finally:
        _pickling.holders = before


def reduce_reference(reference: Any, *described: Any) -> Any:
    """Reduce a reference to its place in the list; for ``__reduce__``.

    ``described``: what else its holder needs in a worker, to stand for it.
    """
    if _pickling.references is None:
        raise NotPicklable(
            f"A {type(reference).__name__} means something only to its executor: pass it to a call or to a step of a "
            "Dataset, or as a part of what is put; to store or send it elsewhere, get its value first."
        )
    if _pickling.for_step and described:
        raise NotPicklable(
            "A step of a Dataset cannot call an actor. Give the class itself as the step, so that each worker "
            "constructs it once, or give what the actor's methods return."
        )
    _pickling.references.append(reference)
    return _restored, (len(_pickling.references) - 1, *described)


def _restored(place: int, *described: Any) -> Any:
    reference = _pickling.holders[place].reference(*described)
    if restored is not None:
        restored.append(weakref.ref(reference))
    return reference


ATOMS = frozenset({int, float, bool, str, bytes, type(None)})
_MOST = 64  # items of one container
_LONGEST = 1 << 13  # bytes or characters of one item
_SIMPLE = frozenset({int, float, bool, type(None)})


def is_plain(value: Any, depth: int = 3) -> bool:
    """Say whether a value is small and plain: it has no buffers, references, classes or functions in it.

    >>> is_plain([1, "a", {"b": None}]), is_plain(range(3)), is_plain([[[[1]]]])
    (True, False, False)
    """
    kind = type(value)
    if kind in _SIMPLE:
        return True
    if kind is str or kind is bytes:
        return len(value) <= _LONGEST
    if kind is dict:
        return is_plain(list(value), depth) and is_plain(list(value.values()), depth)
    if (kind is not tuple and kind is not list) or not depth or len(value) > _MOST:
        return False
    for each in value:  # noqa: SIM110 - a generator takes twice as long, and this is done for each call
        if not is_plain(each, depth - 1):
            return False
    return True


# ---------------------------------------------------------------- what a worker was sent


class OutOfBandPickle(msgspec.Struct, frozen=True):
    """What travels to a worker: the pickle, and where its buffers lie in the memory file ``fd``.

    ``fd`` is -1 if there are none; the sender owns it and closes it. ``links``: the numbers of stored values that it
    refers to.
    """

    pickled: bytes
    places: tuple[tuple[int, int], ...] = ()
    fd: int = -1
    links: tuple[int, ...] = ()

    def close(self) -> None:
        """Close the sender's descriptor; mappings stay."""
        if self.fd >= 0:
            os.close(self.fd)


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
