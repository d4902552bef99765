"""A pickled value whose big buffers lie in memory that every worker maps.

Protocol 5 hands each buffer (Arrow, numpy, …) out of band; they are laid end to end in one anonymous memory
file. Workers get its descriptor over their socket and map it privately: one copy per machine, a write gets a
page of its own, and the kernel frees all of it with the last process, however that ends.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

_ALIGN = 64
SMALL = 64 << 10


@dataclass(frozen=True, slots=True)
class Parcel:
    """What travels to a worker: the pickle, and where its buffers lie in the memory file ``fd``.

    ``fd`` is -1 if there are none; the sender owns it and closes it.
    """

    pickled: bytes
    places: tuple[tuple[int, int], ...]
    fd: int

    def close(self) -> None:
        """Close the sender's descriptor; mappings stay."""
        if self.fd >= 0:
            os.close(self.fd)


def pack(value: Any) -> Parcel:
    """Pickle ``value`` with its buffers in a fresh memory file."""
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as view:
            if view.nbytes < SMALL:
                return True  # in band
        buffers.append(buffer)
        return False

    pickled = cloudpickle.dumps(value, protocol=5, buffer_callback=keep)
    if not buffers:
        return Parcel(pickled, (), -1)
    fd = _memory_file()
    places, at = [], 0
    for buffer in buffers:
        with buffer.raw() as view:
            _write_all(fd, view, at)
            places.append((at, view.nbytes))
            at += -(-view.nbytes // _ALIGN) * _ALIGN
        buffer.release()
    os.ftruncate(fd, max(at, 1))
    return Parcel(pickled, tuple(places), fd)


def unpack(pickled: bytes, places: Sequence[tuple[int, int]], fd: int) -> Any:
    """Make the value again; its buffers are private views of the memory file. Closes ``fd``."""
    if fd < 0:
        return pickle.loads(pickled)
    # Mapped writable: a library that writes to a read-only page would take the process down.
    mapped = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    os.close(fd)
    view = memoryview(mapped)
    return pickle.loads(pickled, buffers=[view[at : at + size] for at, size in places])


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("millrace", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # unlinked from the start
        return os.dup(file.fileno())


def _write_all(fd: int, view: memoryview, at: int) -> None:
    done = 0
    while done < view.nbytes:
        done += os.pwrite(fd, view[done : done + (1 << 30)], at + done)
