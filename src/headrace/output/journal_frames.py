"""Frames of a journal: where whole ones end, and whether what follows them was torn off or was damaged."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from headrace.core.files import safe_files
from headrace.errors import JournalDamaged

MAGIC = b"HEADRJ1\n"
HEAD = struct.Struct("<IIQ")

_CHUNK = 1 << 20


def valid_length(path: Path, data: memoryview) -> int:
    """Return where valid frames end; refuse damage to what was once synced.

    Whatever follows them was never synced, so never acted upon: part of a frame, or the zeros, gigabytes of them if
    need be, by which some file systems show what did not reach the disk.
    """
    if data[: len(MAGIC)] != MAGIC:
        if MAGIC.startswith(bytes(data[: len(MAGIC)])):
            return 0
        raise JournalDamaged(_damaged(path, 0, "It does not begin like a journal."))
    at = valid_end(data)
    for start in _chunks(path, at + 1, len(data) - HEAD.size + 1):
        for later in _candidates(data, start, at):
            frame = _frame(data, later)
            if frame is not None and frame[1] > at:
                raise JournalDamaged(_damaged(path, at, f"Valid records follow at byte {later:,}."))
    return at


def valid_end(data: memoryview) -> int:
    """Return where the last valid frame ends, if all before it are valid; 0 for a file that is no journal."""
    start = len(MAGIC) if data[: len(MAGIC)] == MAGIC else 0
    return max((end for _, end in frames(data)), default=start)


def frames(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield where each frame begins and ends, up to the first that is not valid."""
    at = len(MAGIC)
    while data[: len(MAGIC)] == MAGIC and (frame := _frame(data, at)) is not None:
        yield at, frame[0]
        at = frame[0]


def _chunks(path: Path, start: int, end: int) -> Iterator[int]:
    """Yield where chunks begin that may hold anything: holes in a file are passed over at once."""
    if start >= end:
        return
    with safe_files.file(path) as file:
        while start < end:
            try:
                start = max(start, os.lseek(file.fileno(), start, os.SEEK_DATA))
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    return
            yield start
            start += _CHUNK


def _candidates(data: memoryview, start: int, at: int) -> list[int]:
    """Return where, in the chunk from ``start`` on, a frame may begin that was made after what ends at ``at`` was
    synced: millions of bytes at a time, most of them are none."""
    import numpy as np

    if not np.frombuffer(data, np.uint8, min(_CHUNK, len(data) - start), start).any():
        return []  # no frame has a length of zero
    start = max(at + 1, start - 3)  # three bytes of a length may be zeros, at the end of the chunk before
    end = min(start + _CHUNK + 3, len(data) - HEAD.size + 1)
    found: list[int] = []
    for shift in range(min(8, end - start)):
        first = start + shift
        count = (end - first + 7) // 8
        lengths = np.frombuffer(data, "<u8", count, first) & 0xFFFFFFFF
        synced = np.frombuffer(data, "<u8", count, first + 8)
        places = np.arange(first, first + 8 * count, 8, dtype=np.uint64)
        ends = places + lengths.astype(np.uint64) + np.uint64(HEAD.size)
        fits = (lengths > 0) & (synced > at) & (synced <= places) & (ends <= len(data))
        found += places[fits].tolist()
    return sorted(found)


def _frame(data: memoryview, at: int) -> tuple[int, int] | None:
    """Return ``(end, synced)`` of a valid frame at ``at``, else None."""
    if at + HEAD.size > len(data):
        return None
    length, crc, synced = HEAD.unpack_from(data, at)
    end = at + HEAD.size + length
    if length == 0 or end > len(data) or synced > at:
        return None
    return (end, synced) if zlib.crc32(data[at + 8 : end]) == crc else None


def _damaged(path: Path, at: int, why: str) -> str:
    return (
        f"The journal {path} is damaged at byte {at:,}. {why} What it says about finished work cannot be trusted, so "
        "nothing was changed. Restore the file from a copy, or write to a new folder."
    )
