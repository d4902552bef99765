"""A file that is one JSON array, or one object over several lines, as lines: each element becomes one.

They are read as any other line is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from headrace.errors import UnreadableFile
from headrace.sources import text
from headrace.sources.text import Head

_ON_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")  # JSON has no ends of lines within a string


def is_array(head: Head) -> bool:
    """Say whether a file's first bytes are those of an array."""
    return head.data[text.skip_mark(head.data) :].lstrip().startswith(b"[")


_GOES_ON = (b"{", b"[", b",", b":")
_OBJECT_BYTES = 1 << 30  # a bigger file is no single object


def is_object(path: str, head: Head) -> bool:
    """Say whether a file is one object over several lines; it is read for this if its first line ends within one."""
    first, end, _ = head.data[text.skip_mark(head.data) :].lstrip().partition(b"\n")
    if not (first.startswith(b"{") and end and first.rstrip().endswith(_GOES_ON)):
        return False
    if os.path.getsize(path) > _OBJECT_BYTES:
        return False
    try:
        msgspec.json.decode(_content(path), type=dict[str, msgspec.Raw], strict=True)
    except (UnreadableFile, msgspec.MsgspecError, RecursionError):
        return False
    return True


def lines_of(path: str) -> bytes:
    """Return the elements of a file, plain or compressed, a line each. All of it is in memory."""
    data = _content(path)
    if data[:1_000_000].lstrip().startswith(b"{"):
        return bytes(data).translate(_ON_ONE_LINE) + b"\n"
    try:
        elements = msgspec.json.decode(data, type=list[msgspec.Raw], strict=True)
    except (msgspec.MsgspecError, RecursionError) as error:
        rows = _rows_of_arrays(data)
        if rows is not None:
            return rows
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UnreadableFile(
            f"Cannot read {path!r}: it begins with '[', so all of it should be one JSON array, and {reason}. Repair "
            "the file, or write one object or one array per line."
        ) from error
    return b"".join(bytes(each).translate(_ON_ONE_LINE) + b"\n" for each in elements)


def _rows_of_arrays(data: bytes) -> bytes | None:
    """Return lines that are an array each as objects, whose fields are ``0``, ``1``, …; None if they are not."""
    rows = []
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            elements = msgspec.json.decode(line, type=list[msgspec.Raw], strict=True)
        except (msgspec.MsgspecError, RecursionError):
            return None
        fields = (b'"%d":%s' % (place, bytes(each)) for place, each in enumerate(elements))
        rows.append(b"{" + b",".join(fields) + b"}\n")
    return b"".join(rows)


def _content(path: str) -> bytes:
    try:
        with text.open_stream(path) as stream:
            data = stream.read()
    except MemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise text.unreadable(path, error) from error
    return bytes(data)[text.skip_mark(data) :]


def heads(lines: bytes, size: int) -> Iterator[Head]:
    """Yield the first bytes, then eight times as many, and so on up to all."""
    while True:
        yield Head(lines[:size], len(lines) <= size)
        if len(lines) <= size:
            return
        size *= 8
