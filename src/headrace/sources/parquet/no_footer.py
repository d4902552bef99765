"""Files that cannot be opened as Parquet: what is wrong with them, in words."""

from __future__ import annotations

import os

from headrace.core.stores.objects import open_binary
from headrace.errors import SourceError, UnreadableFile


def no_footer(path: str, error: Exception) -> SourceError:
    """Explain why a file could not be opened as Parquet."""
    if isinstance(error, OSError) and error.errno:  # an error of the system, not of the file
        return UnreadableFile(f"Cannot open input file {path!r}: {error.strerror or error}.")
    try:
        with open_binary(path) as file:
            head = file.read(4)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4))
            tail = file.read(4)
    except OSError as refused:
        return UnreadableFile(f"Cannot open input file {path!r}: {refused.strerror}.")
    if size == 0:
        what = "it is empty (0 bytes)"
    elif tail == b"PARE":
        what = "its footer is encrypted, and encrypted Parquet is not supported"
    elif head == b"PAR1" and tail != b"PAR1":
        what = f"it begins as one, but at offset {size - 4:,} its end mark is missing: the file is cut short"
    elif head != b"PAR1":
        return UnreadableFile(f"Cannot read {path!r} as Parquet: {_what_else(path, head)}.")
    else:
        what = f"its footer, at the end of its {size:,} bytes, is damaged ({error})"
    return UnreadableFile(f"Cannot read {path!r} as Parquet: {what}. Restore the file or leave it out.")


def _what_else(path: str, head: bytes) -> str:
    """Return what a file is that is not Parquet, and which reader is for it."""
    from headrace.sources.signatures import reader_of  # for the message only

    reader = reader_of(path)
    if reader in ("", "read_parquet"):
        return f"it begins with {head!r}, not with b'PAR1'. Restore the file or leave it out"
    return f"by its name and its first bytes, {head!r}, it is something else; {reader} reads it"
