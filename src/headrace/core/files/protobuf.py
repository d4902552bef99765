"""The fields of protobuf messages, without their schema: https://protobuf.dev/programming-guides/encoding/ ."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from headrace.core.files.model_files import NotReadable, open_regular

Bytes = bytes | memoryview


def mapped(path: str) -> memoryview:
    """Map a file; only what is looked at is read. Raises ``OSError``, and ``NotReadable`` for what is no file."""
    with open_regular(path) as file:
        if not file.seek(0, 2):
            raise NotReadable("it is empty")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # closed with its last view


class Walk:
    """A walk over one file, which ends after ``most`` fields: a graph of 100,000 nodes has some two million."""

    def __init__(self, most: int = 10_000_000) -> None:
        self._left = most

    def messages(self, message: Bytes, wanted: int) -> Iterator[memoryview]:
        """Yield the messages, or texts, in the field ``wanted``. Raises ``NotReadable`` for what is no message."""
        for number, value in self.fields(message):
            if number == wanted:
                if isinstance(value, int):
                    raise NotReadable(f"field {wanted} is a number")
                yield value

    def fields(self, message: Bytes) -> Iterator[tuple[int, int | memoryview]]:
        """Yield the number and value of each field, in order. Raises ``NotReadable`` for what is no message."""
        for field in _fields(message):
            self._left -= 1
            if self._left < 0:
                raise NotReadable("it has more fields than any model")
            yield field


def _fields(message: Bytes) -> Iterator[tuple[int, int | memoryview]]:
    # Stricter than the libraries that read the same file: what one of them might take for another field is refused.
    view = memoryview(message)
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise NotReadable("a field has no number")
        if tag >= 1 << 32:
            raise NotReadable("the number of a field is too big")
        if kind == 0:
            value, at = _varint(view, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(view, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise NotReadable(f"a field has the unknown kind {kind}")
        if at + size > len(view):
            raise NotReadable("it is cut off")
        yield number, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(view):
            raise NotReadable("it is cut off")
        byte = view[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise NotReadable("a number has too many bytes")
