"""A pickled value whose big buffers lie in memory that every worker maps.

Protocol 5 passes each buffer (Arrow, numpy, torch, …) out of band; they are written end to end to one anonymous
memory file. Workers get its descriptor over their socket and map it privately: one copy per machine, a write gets a
page of its own, and the kernel frees all of it with the last process, however that ends.
"""

from __future__ import annotations

import contextlib
import functools
import io
import mmap
import os
import pickle
import sys
import warnings
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import cloudpickle
import msgspec

from headrace.core import pickles
from headrace.engines.references import OutOfBandPickle, collecting_references, is_plain, resolving_references

if TYPE_CHECKING:
    import numpy as np


_ALIGN = 64
SMALL = 64 << 10


class PickledSizes(msgspec.Struct, frozen=True):
    """The memory that a value takes in workers, in bytes: what all of them share, and what each has of its own."""

    shared: int
    private: int


def pack(value: Any) -> OutOfBandPickle:
    """Pickle ``value`` with its buffers in a fresh memory file."""
    if is_plain(value):
        return OutOfBandPickle(pickle.dumps(value, protocol=5))
    pickled, buffers = pickle_apart(value)
    if not buffers:
        return OutOfBandPickle(pickled)
    fd = memory_file()
    places, at = [], 0
    for buffer in buffers:
        with buffer.raw() as view:
            _write_all(fd, view, at)
            places.append((at, view.nbytes))
            at += -(-view.nbytes // _ALIGN) * _ALIGN
        buffer.release()
    os.ftruncate(fd, max(at, 1))
    return OutOfBandPickle(pickled, tuple(places), fd)


def apart(value: Any) -> tuple[bytes, list[np.ndarray[Any, np.dtype[np.uint8]]]]:
    """Pickle ``value``; its big buffers come beside it, as arrays of bytes that lie where they are."""
    import numpy as np

    pickled, buffers = pickle_apart(value)
    return pickled, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]


def unpack(packed: OutOfBandPickle) -> Any:
    """Unpickle the value; its buffers are private views of the memory file. Closes the descriptor."""
    if packed.fd < 0:
        return pickles.loads(packed.pickled)
    # Mapped writable: a library that writes to a read-only page would take the process down.
    mapped = mmap.mmap(packed.fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    packed.close()
    view = memoryview(mapped)
    return pickles.loads(packed.pickled, [view[at : at + size] for at, size in packed.places])


class KeptPickle:
    """A pickled value in a process that keeps it, unpickled as often as it is asked for. The descriptor is its own.

    Each time its buffers are mapped once more, privately: who writes to them gets pages of its own, and the next call
    gets what was sent. All are views of the one copy in memory. Where there are too many descriptors already,
    this process has a copy in ordinary memory instead.
    """

    _files: set[int] = set()  # noqa: RUF012 - the descriptors, in this process; a lock could be held by who is collected

    def __init__(self, packed: OutOfBandPickle) -> None:
        self._packed = packed
        self._content: bytearray | None = None
        if packed.fd >= 0:
            KeptPickle._files.add(packed.fd)
            if len(KeptPickle._files) > most_files():
                kept = content(packed.fd)
                self.close()
                self._content = kept

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return len(self._packed.pickled) + sum(size for _, size in self._packed.places)

    @property
    def needs_file(self) -> bool:
        """Whether a descriptor has to be sent with it."""
        return self._content is not None or self._packed.fd >= 0

    def load(self) -> Any:
        """Return the value as it was sent."""
        packed = self._packed
        if self._content is not None:
            buffers = [self._content[at : at + size] for at, size in packed.places]
            return pickles.loads(packed.pickled, buffers)
        return unpack(msgspec.structs.replace(packed, fd=os.dup(packed.fd) if packed.fd >= 0 else -1))

    @contextlib.contextmanager
    def to_send(self) -> Iterator[OutOfBandPickle]:
        """Return it with a descriptor, if it needs one."""
        if self._content is None:
            yield self._packed
            return
        fd = memory_file()
        try:
            _write_all(fd, memoryview(self._content), 0)
            yield msgspec.structs.replace(self._packed, fd=fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """It is not asked for any more; what was unpickled stays."""
        self._content = None
        if self._packed.fd >= 0:
            KeptPickle._files.discard(self._packed.fd)
            self._packed.close()
            self._packed = msgspec.structs.replace(self._packed, fd=-1)


def sizes(value: Any) -> PickledSizes:
    """Return how much of ``value`` workers will share: what is unpickled from a buffer and goes on using it.

    Many libraries (trees of scikit-learn, for one) expose buffers but copy them when they are unpickled, so
    the value is unpickled here, from the buffers as they lie, to see which of them it still holds.

    >>> import numpy as np
    >>> sizes([np.zeros(1 << 20), b"abc"]).shared
    8388608
    """
    import numpy as np

    with collecting_references(for_step=True) as references:
        pickled, buffers = pickle_apart(value)
    arrays = [
        np.frombuffer(buffer.raw().toreadonly(), np.uint8) for buffer in buffers
    ]  # the user's own memory
    alive = [weakref.ref(array) for array in arrays]
    nbytes = [array.nbytes for array in arrays]
    try:
        with resolving_references([each.holder for each in references]):
            again = pickles.copy_of(pickled, arrays) if arrays else None
    except Exception:  # it wants to write to them, perhaps
        again = None
    del arrays
    shared = sum(size for ref, size in zip(alive, nbytes, strict=True) if ref() is not None)
    del again
    put = sum({each.holder.number: getattr(each.holder, "size", 0) for each in references}.values())
    return PickledSizes(shared + put, len(pickled) + sum(nbytes) - shared)


def pickle_apart(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle ``value``; big buffers come beside it."""
    buffers: list[pickle.PickleBuffer] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as view:
            if view.nbytes < SMALL:
                return True
        buffers.append(buffer)
        return False

    with io.BytesIO() as file:
        _Pickler(file, in_band).dump(value)
        return file.getvalue(), buffers


def try_pickling(value: Any, most: int = 1 << 20) -> None:
    """Pickle a part of a step and keep nothing of it; stops after ``most`` bytes. Raises what pickling raises.

    >>> try_pickling(open)
    >>> try_pickling(n for n in ())
    Traceback (most recent call last):
    TypeError: cannot pickle 'generator' object
    """
    with contextlib.suppress(_EnoughError), collecting_references(for_step=True):
        _Pickler(_Bounded(most), lambda buffer: False).dump(value)


class _EnoughError(Exception):
    """So many bytes were pickled without an error."""


class _Bounded(io.BytesIO):
    """A file that keeps nothing, and raises after so many bytes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def write(self, data: Any) -> int:
        """Count the bytes."""
        self._left -= len(data)
        if self._left < 0:
            raise _EnoughError
        return len(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, with reducers of our own for some types; they are looked up once, when it is made."""

    def __init__(self, file: io.BytesIO, in_band: Callable[[pickle.PickleBuffer], bool]) -> None:
        self.dispatch_table = ChainMap(
            reducers(), {_CACHE: _reduce_cache}, cloudpickle.Pickler.dispatch_table
        )
        super().__init__(file, protocol=5, buffer_callback=in_band)


_CACHE = type(functools.lru_cache(len))


def _reduce_cache(cached: Any) -> Any:
    """Reduce a cached function to the function where the worker cannot import it: each has a cache of its own."""
    if cached.__module__ not in (None, "__main__") and "<locals>" not in cached.__qualname__:
        return cached.__reduce__()
    parameters = cached.cache_parameters()
    return _cached, (parameters["maxsize"], parameters["typed"], cached.__wrapped__)


def _cached(maxsize: int | None, typed: bool, function: Any) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def memory_file(size: int = 0) -> int:
    """Return a descriptor of ``size`` bytes of memory that belongs to no process and no folder."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("headrace", os.MFD_CLOEXEC)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:  # unlinked from the start
            fd = os.dup(file.fileno())
    if size:
        os.ftruncate(fd, size)
    return fd


def _write_all(fd: int, view: memoryview, at: int) -> None:
    done = 0
    while done < view.nbytes:
        done += os.pwrite(fd, view[done : done + (1 << 30)], at + done)


Reducer = Callable[[Any], Any]


def reducers() -> dict[type, Reducer]:
    """Return the reducers for torch's storages by type; none as long as torch is not imported."""
    torch = sys.modules.get("torch")
    storage = getattr(torch, "storage", None)
    if torch is None or not hasattr(storage, "TypedStorage") or not hasattr(torch, "frombuffer"):
        return {}
    return {
        torch.Tensor: _reduce_tensor,
        torch.UntypedStorage: _reduce_untyped,
        torch.storage.TypedStorage: _reduce_typed,
    }


def _reduce_tensor(tensor: Any) -> Any:
    """Reduce as torch does, and mend what it gets wrong: dtypes such as float8 are made again from a typed
    storage, but given as one without a type."""
    import torch

    function, args, *rest = tensor.__reduce_ex__(5)
    if function is torch._utils._rebuild_tensor_v3 and isinstance(args[0], torch.UntypedStorage):
        args = (_typed(args[0], torch.uint8), *args[1:])
    return (function, args, *rest)


def _reduce_typed(storage: Any) -> Any:
    """Reduce a storage that knows its dtype to the one without, which pickle knows again by its identity."""
    untyped = storage._untyped_storage
    if untyped.device.type != "cpu":
        return storage.__reduce__()
    return _typed, (untyped, storage.dtype)


def _reduce_untyped(storage: Any) -> Any:
    import torch

    if storage.device.type != "cpu":
        return storage.__reduce__()
    if not storage.nbytes():
        return torch.UntypedStorage, (0,)
    flat = torch.empty(0, dtype=torch.uint8).set_(storage)
    return _untyped, (pickle.PickleBuffer(flat.numpy()),)


def _typed(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _untyped(buffer: Any) -> Any:
    import torch

    with warnings.catch_warnings():  # what is small came in band, as bytes that nobody else can see
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


FEWEST_FILES = 64


def most_files() -> int:
    """Return how many memory files a process should have open for values: a fourth of the descriptors it may have."""
    return max(FEWEST_FILES, _descriptors() // 4)


def content(fd: int) -> bytearray:
    """Return all that is in a file."""
    read = bytearray(os.fstat(fd).st_size)
    view, at = memoryview(read), 0
    while at < len(read):
        at += os.preadv(fd, [view[at : at + (1 << 30)]], at)
    return read


def _descriptors() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
