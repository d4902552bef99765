"""Tar archives of samples: members one after the other, and which sample each belongs to.

A member ``a/0001.seg.png`` is the column ``seg.png`` of the sample ``a/0001``: up to the first dot of its last part,
a name is the key. The members of a sample stand side by side.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, Any


class StrictHeader(tarfile.TarInfo):
    """A header that is damaged, or missing before the mark of the end, is an error; ``tarfile`` would just stop."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Any:
        """Read the next header."""
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            reason = "it was cut short" if "empty" in str(error) or "truncated" in str(error) else str(error)
            raise tarfile.ReadError(f"{reason}, near byte {tar.offset:,}") from error


def opened(file: IO[bytes], *, stream: bool = False) -> tarfile.TarFile:
    """Open an archive that is not compressed; a ``stream`` cannot be sought in."""
    return tarfile.open(fileobj=file, mode="r|" if stream else "r:", tarinfo=StrictHeader)


def member_of(name: str) -> tuple[str, str]:
    """Return the key and the column of a member; no column for what belongs to no sample.

    >>> member_of("a.b/0001.seg.png"), member_of("readme"), member_of("a/.hidden")
    (('a.b/0001', 'seg.png'), ('readme', ''), ('a/', ''))
    """
    folder, slash, last = name.rpartition("/")
    stem, _, column = last.partition(".")
    return folder + slash + stem, column if stem else ""


def keys(tar: tarfile.TarFile) -> Iterator[str]:
    """Yield the key of each sample."""
    last = None
    for member in tar:
        key, column = member_of(member.name)
        if member.isreg() and column and key != last:
            last = key
            yield key
