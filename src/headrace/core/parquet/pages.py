"""Walks over the pages of a column chunk, by their headers; what is in them is not looked at."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.parquet.compact import (
    BINARY,
    I32,
    STRUCT,
    TRUE,
    NotUnderstood,
    Shape,
    Struct,
    number,
    read_struct,
)
from headrace.core.parquet.footer import Chunk

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_FIRST = 256  # bytes that most headers have room in; statistics in them may be long
_MOST = 16 << 20

_V1 = {1: I32, 2: I32, 3: I32, 4: I32, 5: STRUCT}
_V2 = {1: I32, 2: I32, 3: I32, 4: I32, 5: I32, 6: I32, 7: TRUE, 8: STRUCT}
_HEADER: Shape = {1: I32, 2: I32, 3: I32, 4: I32, 5: _V1, 7: {1: I32, 2: I32, 3: TRUE}, 8: _V2, 9: BINARY}


def check_pages(chunk: Chunk, rows: int, read: Callable[[int, int], bytes]) -> None:
    """Raise ``NotUnderstood`` unless pages fill a chunk from its first byte to its last, and have all its values.

    ``read(offset, size)`` gives bytes of the file.
    """
    at, values, of_rows, pages = chunk.start, 0, 0, 0
    while at < chunk.stop:
        header, at = _header(at, chunk.stop, read)
        kind, size = number(header.get(1), -1), number(header.get(3), -1)
        field = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0)
        if field not in header or size < 0 or number(header.get(2), -1) < 0:
            raise NotUnderstood("a page is none of a known kind")
        if kind == _DICTIONARY:
            if pages:
                raise NotUnderstood("a dictionary comes behind values")
        else:
            of_page = number(header[field][1].get(1), -1)
            if of_page < 0:
                raise NotUnderstood("a page does not say how many values it has")
            values += of_page
            of_rows += number(header[8][1].get(3), -1) if kind == _DATA_V2 else 0
        pages += 1
        at += size
    if at != chunk.stop or values != chunk.values or of_rows not in (0, rows):
        raise NotUnderstood("the pages of a column do not fill its place")


def _header(at: int, stop: int, read: Callable[[int, int], bytes]) -> tuple[Struct, int]:
    size = _FIRST
    while True:
        size = min(size, stop - at)
        data = read(at, size)
        try:
            header, end = read_struct(data, 0, _HEADER)
        except NotUnderstood:
            if size == stop - at or size >= _MOST or len(data) < size:
                raise
            size *= 16
            continue
        return header, at + end
