"""Thrift's compact protocol, as far as Parquet's footers and page headers use it.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

A *shape* says which fields a struct may have, and which of them are structs or lists of structs; all others stay the
bytes that they are, and are written again as they were read. Whatever does not fit the shape is ``NotUnderstood``:
who meets a field that it does not know cannot say what changes its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Struct: TypeAlias = "dict[int, tuple[int, Any]]"
"""Fields by their numbers: each its type, and its bytes, or a struct, or a list of structs, as the shape has it."""

Shape: TypeAlias = "Mapping[int, Any]"
"""Fields by their numbers: the type of a plain one, a shape for a struct, a list with a shape for a list of these."""

_DEEPEST = 16
_BOOLEANS = (TRUE, FALSE)
_INTEGERS = (I32, I64)
_LIMITS = {I16: 1 << 15, I32: 1 << 31, I64: 1 << 63}


class NotUnderstood(ValueError):
    """Bytes that are not what they should be; says why, as the end of a sentence."""


def read_struct(data: bytes, at: int, shape: Shape) -> tuple[Struct, int]:
    """Return the struct that begins at ``at``, and where it ends; in time and memory linear in its bytes."""
    try:
        return _struct(data, at, shape)
    except IndexError:
        raise NotUnderstood("it is cut off") from None


def skip(data: bytes, at: int, type_: int) -> int:
    """Return where the value of this type ends that begins at ``at``."""
    try:
        return _skipped(data, at, type_, _DEEPEST)
    except IndexError:
        raise NotUnderstood("it is cut off") from None


def write_struct(struct: Struct) -> bytes:
    """Return the bytes of a struct, its fields in the order of their numbers."""
    pieces: list[bytes] = []
    _write(struct, pieces)
    return b"".join(pieces)


# ---------------------------------------------------------------- plain values


def number(field: tuple[int, Any] | None, default: int = 0) -> int:
    """Return the integer of a field; ``default`` if there is no such field."""
    if field is None:
        return default
    data = field[1]
    if len(data) == 1:
        value: int = data[0]
        return value >> 1 ^ -(value & 1)
    value, _ = _varint(data, 0)
    value = value >> 1 ^ -(value & 1)
    limit = _LIMITS[field[0]]
    if not -limit <= value < limit:  # which others would cut to another number
        raise NotUnderstood(f"{value} is not an integer of the type {field[0]}")
    return value


def of_number(type_: int, value: int) -> tuple[int, bytes]:
    """Return a field of an integer type."""
    limit = _LIMITS[type_]
    if not -limit <= value < limit:
        raise NotUnderstood(f"{value} is not an integer of the type {type_}")
    return type_, varint(value << 1 if value >= 0 else (-value << 1) - 1)


def binary(field: tuple[int, Any] | None) -> bytes | None:
    """Return the bytes of a binary field; None if there is no such field."""
    if field is None:
        return None
    return _binary(field[1], 0)[0]


def of_binary(value: bytes) -> tuple[int, bytes]:
    """Return a binary field."""
    return BINARY, varint(len(value)) + value


def binaries(field: tuple[int, Any] | None) -> list[bytes]:
    """Return the values of a list of binaries."""
    if field is None:
        return []
    kind, count, at = _list_header(field[1], 0)
    if kind != BINARY:
        raise NotUnderstood("a list holds other things than texts")
    values = []
    for _ in range(count):
        value, at = _binary(field[1], at)
        values.append(value)
    return values


def of_binaries(values: Sequence[bytes]) -> tuple[int, bytes]:
    """Return a field with a list of binaries."""
    return LIST, _of_list(BINARY, len(values)) + b"".join(varint(len(value)) + value for value in values)


def varint(value: int) -> bytes:
    """Return an integer of no sign, seven bits in each byte."""
    if value < 128:
        return bytes((value,))
    made = bytearray()
    while value >= 128:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


# ---------------------------------------------------------------- reading


def _struct(data: bytes, at: int, shape: Shape) -> tuple[Struct, int]:
    found: Struct = {}
    before = 0
    while header := data[at]:
        at += 1
        type_ = header & 15
        if header >> 4:
            before += header >> 4
        else:
            value, at = _varint(data, at)
            before = value >> 1 ^ -(value & 1)
        if before in found:
            raise NotUnderstood(f"field {before} comes twice")
        wanted = shape.get(before)
        if wanted.__class__ is int:
            if type_ != wanted and not (wanted == TRUE and type_ == FALSE):
                raise NotUnderstood(f"field {before} has the type {type_}")
            start = at
            if type_ in _INTEGERS:  # most fields
                while data[at] > 127:
                    at += 1
                at += 1
                if at - start > 10:
                    raise NotUnderstood("a number has too many bytes")
            elif type_ == BINARY and data[at] < 128:
                at += data[at] + 1
                if at > len(data):
                    raise NotUnderstood("it is cut off")
            else:
                at = _skipped(data, at, type_, _DEEPEST)
            found[before] = type_, data[start:at]
        elif wanted is None:
            raise NotUnderstood(f"it has a field {before}, which is not known here")
        elif wanted.__class__ is list:
            structs, at = _structs(data, at, type_, wanted[0])
            found[before] = type_, structs
        else:
            if type_ != STRUCT:
                raise NotUnderstood(f"field {before} is no struct")
            struct, at = _struct(data, at, wanted)
            found[before] = type_, struct
    return found, at + 1


def _structs(data: bytes, at: int, type_: int, shape: Shape) -> tuple[list[Struct], int]:
    if type_ != LIST:
        raise NotUnderstood("what should be a list is none")
    kind, count, at = _list_header(data, at)
    if kind != STRUCT and count:
        raise NotUnderstood("a list holds other things than structs")
    structs = []
    for _ in range(count):
        struct, at = _struct(data, at, shape)
        structs.append(struct)
    return structs, at


def _skipped(data: bytes, at: int, type_: int, depth: int) -> int:
    """Return where a value ends."""
    if type_ in _BOOLEANS:
        return at
    if type_ in (I16, I32, I64):
        return _varint(data, at)[1]
    if type_ in (I8, DOUBLE):
        at += 1 if type_ == I8 else 8
        if at > len(data):
            raise NotUnderstood("it is cut off")
        return at
    if type_ == BINARY:
        return _binary_end(data, at)[1]
    if not depth:
        raise NotUnderstood("it is nested too deeply")
    if type_ == LIST:
        kind, count, at = _list_header(data, at)
        if kind in _BOOLEANS:
            return at + count  # each is a byte, as `_list_header` has seen
        for _ in range(count):
            if kind in _INTEGERS and data[at] < 128:
                at += 1
            else:
                at = _skipped(data, at, kind, depth - 1)
        return at
    if type_ != STRUCT:
        raise NotUnderstood(f"a value has the type {type_}")
    while header := data[at]:
        at += 1
        if not header >> 4:
            at = _varint(data, at)[1]
        kind = header & 15
        if kind in _INTEGERS and data[at] < 128:  # most of what there is
            at += 1
        elif kind == BINARY and data[at] < 128:
            at += data[at] + 1
        elif kind not in _BOOLEANS:
            at = _skipped(data, at, kind, depth - 1)
    return at + 1  # beyond the end of the data, its next byte is missed there


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Return of what type how many values follow, and where the first begins. Each takes a byte at least."""
    header = data[at]
    at += 1
    count = header >> 4
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:
        raise NotUnderstood("a list is longer than all there is")
    return header & 15, count, at


def _binary(data: bytes, at: int) -> tuple[bytes, int]:
    start, stop = _binary_end(data, at)
    return data[start:stop], stop


def _binary_end(data: bytes, at: int) -> tuple[int, int]:
    size, at = _varint(data, at)
    if size > len(data) - at:
        raise NotUnderstood("it is cut off")
    return at, at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise NotUnderstood("a number has too many bytes")
    if value >> 64:
        raise NotUnderstood("a number is too big")
    return value, at


# ---------------------------------------------------------------- writing


def _write(struct: Struct, pieces: list[bytes]) -> None:
    before = 0
    for id_ in sorted(struct):
        type_, value = struct[id_]
        if 0 < id_ - before < 16:
            pieces.append(bytes((id_ - before << 4 | type_,)))
        else:
            pieces.append(bytes((type_,)) + of_number(I16, id_)[1])
        before = id_
        if value.__class__ is bytes:
            pieces.append(value)
        elif value.__class__ is dict:
            _write(value, pieces)
        else:
            pieces.append(_of_list(STRUCT, len(value)))
            for each in value:
                _write(each, pieces)
    pieces.append(b"\0")


def _of_list(type_: int, count: int) -> bytes:
    return bytes((count << 4 | type_,)) if count < 15 else bytes((0xF0 | type_,)) + varint(count)
