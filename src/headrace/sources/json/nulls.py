"""Keeping Arrow's JSON reader from what ends the process.

It looks into an empty stack when the first value of a block is ``null`` (apache/arrow#47409, pyarrow 25). A block
begins behind the last line end of what was read before, so it is enough to look there.
"""

from __future__ import annotations

import re

import pyarrow as pa

_NULL = b"null"
_FIRST = re.compile(rb"[ \t\r\n]*(.{0,4})", re.DOTALL)


def refuse_null(data: bytes, start: int = 0) -> bytes:
    """Return the first four bytes of the first value, fewer at the end; raise ``ArrowInvalid`` if it is ``null``."""
    found = _FIRST.match(data, start)
    assert found is not None
    if found[1] == _NULL:
        raise pa.ArrowInvalid("it is null, not an object")
    return found[1]


class NullGuard:
    """A stream for Arrow that raises ``ArrowInvalid`` before a block which begins with ``null``."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._begins: bytes | None = b""  # the start of the next block's first value; None: it is no null

    def read(self, size: int) -> bytes:
        """Read on."""
        data: bytes = self._stream.read(size)
        if self._begins is not None:
            self._look(refuse_null(self._begins + data[:4] if self._begins else data))
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            self._look(refuse_null(data, end))
        return data

    def close(self) -> None:
        """The stream is another's to close."""

    def _look(self, start: bytes) -> None:
        self._begins = start if len(start) < len(_NULL) and _NULL.startswith(start) else None
