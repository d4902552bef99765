"""Where the records of CSV end: the offsets at which a file may be cut.

A record ends at a newline outside quotes, so the whole file up to there decides. Telling outside from inside byte by
byte would be slow; counting quotes is fast, but right only if every quote is structural. So each chunk is counted
first, the count is checked, and a chunk with stray quotes (``5" pipe``) is walked quote by quote. The rules are those
of Arrow's parser: a quote opens only at the start of a field; inside, two are one.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import BinaryIO

import numpy as np

from headrace.sources.records import NeverClosed

_CHUNK = 1 << 22
_LINE_END = re.compile(rb"\r\n|\n|\r")


class RecordScanner:
    """Tells record ends from quoted newlines, chunk by chunk, from the start of a record on."""

    def __init__(self, delimiter: bytes, quote: bytes | None) -> None:
        self._quote = quote
        self._starts = delimiter + b"\n\r"
        self._table = np.zeros(256, np.bool_)
        self._table[list(self._starts + (quote or b""))] = True
        self._inside = False
        self._previous = b"\n"
        self._closed = False  # the last byte was a closing quote: one more makes it a doubled quote
        self._chunk = b""
        self._opens: Sequence[int] = ()
        self._closes: Sequence[int] = ()

    def feed(self, chunk: bytes) -> None:
        """Go on to the next bytes; offsets are counted from their start."""
        self._chunk = chunk
        if self._quote is None or self._quote not in chunk:
            self._opens, self._closes = ([-1], [len(chunk)]) if self._inside else ([], [])
            self._closed = False
        elif not self._count_quotes():
            self._walk_quotes()
        self._previous = chunk[-1:]

    def end_from(self, position: int) -> int | None:
        """Return the offset behind the first newline at or after ``position`` that ends a record."""
        while True:
            newline = self._chunk.find(b"\n", position)
            if newline < 0:
                return None
            quoted = self._quoted(newline)
            if quoted is None:
                return newline + 1
            position = self._closes[quoted]

    def last_end(self) -> int | None:
        """Return the offset behind the last newline that ends a record."""
        position = len(self._chunk)
        while True:
            newline = self._chunk.rfind(b"\n", 0, max(0, position))
            if newline < 0:
                return None
            quoted = self._quoted(newline)
            if quoted is None:
                return newline + 1
            position = self._opens[quoted]

    def first_end(self) -> int | None:
        """Return the offset behind the first record, if also a bare carriage return ends one."""
        for match in _LINE_END.finditer(self._chunk):
            if self._quoted(match.start()) is None:
                return match.end()
        return None

    def records(self, data: bytes) -> list[bytes]:
        """Cut ``data``, as long as what was fed, at every record's end."""
        ends = [m.end() for m in _LINE_END.finditer(self._chunk) if self._quoted(m.start()) is None]
        return [data[start:end] for start, end in pairwise(dict.fromkeys([0, *ends, len(data)]))]

    def open_quote(self) -> int | None:
        """Return the offset of a quote that is still open at the end; -1: it came before this chunk."""
        return self._opens[-1] if self._inside else None

    def _quoted(self, offset: int) -> int | None:
        """Return the number of the quoted piece that ``offset`` is in."""
        found = bisect_right(self._opens, offset) - 1
        return found if found >= 0 and self._closes[found] >= offset else None

    def _count_quotes(self) -> bool:
        """Assume that every other quote opens a value; return whether that holds."""
        assert self._quote is not None
        raw = np.frombuffer(self._chunk, np.uint8)
        quotes = np.flatnonzero(raw == self._quote[0])
        if self._inside:
            quotes = np.concatenate(([-1], quotes))
        opens, closes = quotes[0::2], quotes[1::2]
        first = opens[0]
        if first == 0 and not (self._closed or self._previous in self._starts):
            return False
        # An opening quote follows a delimiter or a newline, or the closing quote right before: a doubled one.
        if not self._table[raw[opens[opens > 0] - 1]].all():
            return False
        self._inside = len(opens) > len(closes)
        self._closed = not self._inside and closes[-1] == len(raw) - 1
        self._opens = opens.tolist()
        self._closes = [*closes.tolist(), len(raw)] if self._inside else closes.tolist()
        return True

    def _walk_quotes(self) -> None:
        assert self._quote is not None
        chunk, quote = self._chunk, self._quote
        opens: list[int] = [-1] if self._inside else []
        closes: list[int] = []
        closed, position = self._closed, 0
        while (at := chunk.find(quote, position)) >= 0:
            position = at + 1
            before = chunk[at - 1 : at] if at else self._previous
            if len(opens) > len(closes):
                if chunk[at + 1 : at + 2] == quote:
                    position = at + 2
                else:
                    closes.append(at)
            elif before in self._starts or (at == 0 and closed):
                opens.append(at)
        self._inside = len(opens) > len(closes)
        self._closed = bool(closes) and not self._inside and closes[-1] == len(chunk) - 1
        self._opens = opens
        self._closes = [*closes, len(chunk)] if self._inside else closes


def quoted_cuts(
    file: BinaryIO, start: int, step: int, scanner: RecordScanner, chunk: int = _CHUNK
) -> list[int]:
    """Return record ends, at least ``step`` bytes apart, between ``start`` and the file's end.

    Raises ``NeverClosed`` if the file ends inside quotes.
    """
    size = file.seek(0, os.SEEK_END)
    cuts: list[int] = []
    target, offset, last_opened = start + step, start, -1
    file.seek(start)
    while data := file.read(chunk):
        scanner.feed(data)
        while (end := scanner.end_from(max(0, target - 1 - offset))) is not None:
            if offset + end < size:
                cuts.append(offset + end)
            target = offset + end + step
        if (opened := scanner.open_quote()) is not None and opened >= 0:
            last_opened = offset + opened
        offset += len(data)
    if scanner.open_quote() is not None:
        raise NeverClosed(last_opened, cuts)
    return cuts
