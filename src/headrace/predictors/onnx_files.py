"""ONNX files, read without any library: whether one is, and which files are beside it."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from itertools import islice

from headrace.core.files.artifacts import NotReadable, inside, open_regular
from headrace.errors import ModelUnreadable

# Field numbers of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_IR_VERSION, _GRAPH, _OPSETS, _FUNCTIONS = 1, 7, 8, 25
_NODE, _INITIALIZER, _SPARSE_INITIALIZER = 1, 5, 15
_NODE_OF_FUNCTION, _ATTRIBUTE = 7, 5
_TENSORS, _GRAPHS, _SPARSE = (5, 10), (6, 11), (22, 23)
_EXTERNAL_DATA, _KEY, _VALUE = 13, 1, 2
_DEEPEST = 50


def looks_like_onnx(path: str) -> bool:
    """Say whether a file's fields are those of an ONNX model; never raises."""
    try:
        kinds = {(number, isinstance(value, int)) for number, value in islice(_fields(mapped(path)), 100_000)}
    except (OSError, ValueError):
        return False
    return {(_IR_VERSION, True), (_GRAPH, False), (_OPSETS, False)} <= kinds


def external_files(path: str) -> list[str]:
    """Return the names of the files beside ``path`` that hold weights of its graph, sorted; all are there.

    Only the fields' headers are touched, so that this is quick for gigabytes. Raises ``ModelUnreadable`` for a
    file that is cut off or is no ONNX model, and for weights that are elsewhere, or are no files.
    """
    try:
        names = external_names(mapped(path))
    except OSError as error:
        raise ModelUnreadable(f"The model at {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ModelUnreadable(
            f"The file {path} is not a whole ONNX model: {error}. Copy or export it again."
        ) from error
    for name in names:
        _check_beside(path, name)
    return names


def _check_beside(path: str, name: str) -> None:
    folder = os.path.dirname(path)
    if not inside(name):
        raise ModelUnreadable(
            f"The model {path} keeps its weights in {name!r}, which is outside of its folder. Export it again, with "
            f"its weights beside it; from people whom you do not know, do not read it at all."
        )
    try:
        regular = stat.S_ISREG(os.stat(os.path.join(folder, name)).st_mode)
    except OSError:
        raise ModelUnreadable(
            f"The model {path} keeps its weights in {name!r} beside it, and that file is not there. Copy "
            f"it to {folder}."
        ) from None
    if not regular:
        raise ModelUnreadable(f"The model {path} keeps its weights in {name!r}, which is not a regular file.")


def external_names(model: Bytes) -> list[str]:
    """Return the names of the files that a serialized model wants beside it; raises ``ValueError``."""
    names: set[str] = set()
    graphs = 0
    for number, value in _fields(model):
        if number in (_GRAPH, _FUNCTIONS) and not isinstance(value, int):
            graphs += number == _GRAPH
            for tensor in _tensors(value, _NODE if number == _GRAPH else _NODE_OF_FUNCTION):
                names.update(_locations(tensor))
    if not graphs:
        raise NotReadable("it has no graph")
    return sorted(names)


def _tensors(body: Bytes, node: int, depth: int = 0) -> Iterator[Bytes]:
    """Yield the tensors of a graph or function, those in the attributes of its nodes and their graphs too."""
    if depth > _DEEPEST:
        raise NotReadable("graphs nest too deep in it")
    for number, value in _fields(body):
        if isinstance(value, int):
            continue
        if number == node:
            for attribute in _messages(value, _ATTRIBUTE):
                yield from _in_attribute(attribute, depth)
        elif node == _NODE and number == _INITIALIZER:
            yield value
        elif node == _NODE and number == _SPARSE_INITIALIZER:
            yield from _in_sparse(value)


def _in_attribute(attribute: Bytes, depth: int) -> Iterator[Bytes]:
    for number, value in _fields(attribute):
        if isinstance(value, int):
            continue
        if number in _TENSORS:
            yield value
        elif number in _GRAPHS:
            yield from _tensors(value, _NODE, depth + 1)
        elif number in _SPARSE:
            yield from _in_sparse(value)


def _in_sparse(sparse: Bytes) -> Iterator[Bytes]:
    for number, value in _fields(sparse):
        if number in (1, 2) and not isinstance(value, int):
            yield value


def _locations(tensor: Bytes) -> Iterator[str]:
    for entry in _messages(tensor, _EXTERNAL_DATA):
        pair = {number: bytes(value) for number, value in _fields(entry) if not isinstance(value, int)}
        if pair.get(_KEY) == b"location":
            yield pair.get(_VALUE, b"").decode()


Bytes = bytes | memoryview


def mapped(path: str) -> memoryview:
    """Map a file; only what is looked at is read. Raises ``OSError``, and ``NotReadable`` for what is no file."""
    with open_regular(path) as file:
        if not file.seek(0, 2):
            raise NotReadable("it is empty")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # closed with its last view


def _messages(message: Bytes, wanted: int) -> Iterator[memoryview]:
    """Yield the messages, or texts, in the field ``wanted``. Raises ``NotReadable`` for what is no message."""
    for number, value in _fields(message):
        if number == wanted:
            if isinstance(value, int):
                raise NotReadable(f"field {wanted} is a number")
            yield value


def _fields(message: Bytes) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and value of each field, in order. Raises ``NotReadable`` for what is no message."""
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
