"""What an ONNX file says of itself, read without any library: is it one, and which files lie beside it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

from millrace.errors import ModelUnreadable

# Field numbers of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_IR_VERSION, _GRAPH, _INITIALIZER, _EXTERNAL_DATA, _KEY, _VALUE = 1, 7, 5, 13, 1, 2
_OPSETS = 8

Bytes = bytes | memoryview


def looks_like_onnx(path: str) -> bool:
    """Say whether a file's fields are those of an ONNX model; never raises."""
    try:
        kinds = {(number, isinstance(value, int)) for number, value in _fields(_mapped(path))}
    except (OSError, ValueError):
        return False
    return {(_IR_VERSION, True), (_GRAPH, False), (_OPSETS, False)} <= kinds


def external_files(path: str) -> list[str]:
    """Return the names of the files beside ``path`` that hold weights of its graph, sorted.

    Only the fields' headers are touched, so that this is quick for gigabytes. Raises ``ModelUnreadable`` for a
    file that is cut off or is no ONNX model.
    """
    try:
        return external_names(_mapped(path))
    except OSError as error:
        raise ModelUnreadable(f"The model at {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ModelUnreadable(
            f"The file {path} is not a whole ONNX model: {error}. Copy or export it again."
        ) from error


def external_names(model: Bytes) -> list[str]:
    """Return the names of the files that a serialized model wants beside it; raises ``ValueError``."""
    names: set[str] = set()
    graphs = 0
    for graph in _messages(model, _GRAPH):
        graphs += 1
        for tensor in _messages(graph, _INITIALIZER):
            for entry in _messages(tensor, _EXTERNAL_DATA):
                pair = {
                    number: bytes(value) for number, value in _fields(entry) if not isinstance(value, int)
                }
                if pair.get(_KEY) == b"location":
                    names.add(pair.get(_VALUE, b"").decode())
    if not graphs:
        raise ValueError("it has no graph")
    return sorted(names)


def _mapped(path: str) -> memoryview:
    if os.path.getsize(path) == 0:
        raise ValueError("it is empty")
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # closed with its last view


def _messages(message: Bytes, wanted: int) -> Iterator[memoryview]:
    for number, value in _fields(message):
        if number == wanted:
            if isinstance(value, int):
                raise ValueError(f"field {wanted} is a number")
            yield value


def _fields(message: Bytes) -> Iterator[tuple[int, int | memoryview]]:
    """Walk the fields of a protobuf message: https://protobuf.dev/programming-guides/encoding/ ."""
    view = memoryview(message)
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field has no number")
        if kind == 0:
            value, at = _varint(view, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(view, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field has the unknown kind {kind}")
        if at + size > len(view):
            raise ValueError("it is cut off")
        yield number, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(view):
            raise ValueError("it is cut off")
        byte = view[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number has too many bytes")
