"""TFRecord files: records between their length and checksums; and the message ``tf.train.Example`` in them.

The framing is TensorFlow's (core/lib/io/record_writer.h): the length, 8 bytes, and its checksum, 4; the record, and
its checksum, 4. A checksum is CRC32C, turned by 15 bits and with a constant added.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from headrace.core.files.artifacts import require

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_MOST = (1 << 31) - 1  # bytes of a message


class Readable(Protocol):
    """What can be read from its start."""

    def read(self, size: int, /) -> bytes:
        """Read so many bytes, fewer only at the end."""
        ...


class Damage(NamedTuple):
    """What is wrong where a record should be; ``ends``: what is behind it cannot be read."""

    reason: str
    ends: bool


def needs_libraries(verb: str) -> None:
    """Raise ``MissingLibrary`` unless what reads and writes these files is installed."""
    require("google_crc32c", "tfrecords", verb)
    require("google.protobuf", "tfrecords", verb)


def checksum(data: bytes) -> bytes:
    """Return the four bytes that stand behind ``data``.

    >>> import pytest; _ = pytest.importorskip("google_crc32c")
    >>> checksum(b"123456789").hex()
    'e5b08ac7'
    """
    import google_crc32c

    crc = google_crc32c.value(data)
    return _CHECKSUM.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(record: bytes) -> bytes:
    """Return a record with its length and checksums."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, checksum(length), record, checksum(record)))


def begins_a_record(head: bytes) -> bool:
    """Say whether 12 bytes are a length and its checksum."""
    return len(head) == 12 and checksum(head[:8]) == head[8:]


def records(file: Readable) -> Iterator[bytes | Damage]:
    """Yield each record of a file from its start; what is damaged is yielded as such, in its turn."""
    while head := file.read(12):
        if len(head) < 12:
            yield Damage("the file was cut short, in the length of a record", True)
            return
        if not begins_a_record(head):
            yield Damage("its length is damaged, by its checksum; what comes after it was not read", True)
            return
        (length,) = _LENGTH.unpack(head[:8])
        if length > _MOST:
            yield Damage(
                f"it has {length:,} bytes, more than a message may; what comes after it was not read", True
            )
            return
        record, check = file.read(length), file.read(4)
        if len(record) < length or len(check) < 4:
            yield Damage(f"the file was cut short, in a record of {length:,} bytes", True)
            return
        yield record if checksum(record) == check else Damage("it is damaged, by its checksum", False)


@functools.cache
def example_class() -> Any:
    """Return the class of ``tf.train.Example``, as core/example/example.proto and feature.proto define it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    one, many, message = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    for name, type_ in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(name="value", number=1, type=type_, label=many)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, of) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), 1
    ):
        feature.field.add(
            name=name, number=number, type=message, type_name=f".tensorflow.{of}", label=one, oneof_index=0
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=message, type_name=".tensorflow.Feature", label=one)
    of = ".tensorflow.Features.FeatureEntry"
    features.field.add(name="feature", number=1, type=message, type_name=of, label=many)
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type=message, type_name=".tensorflow.Features", label=one)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
