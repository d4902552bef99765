"""The rows that a run has set aside: a file of them, and those of several as a source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.files import safe_files
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources.memory import MemorySource


def table_of(path: Path, name: Path | str = "") -> pa.Table:
    """Read the rejected rows in a file, which is mapped, not copied; ``name`` is what messages call it."""
    try:
        with pa.BufferReader(safe_files.mapped(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)  # in a damaged file, a wrong offset would be followed out of it
        return table
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(
            f"{name or path} cannot be read: {error}. It holds rejected rows of a run."
        ) from error


class RejectedSource(MemorySource):
    """Rejected rows in a file, with the columns of their source; those of each shard are one split.

    The file is mapped wherever it is read, and does not travel.
    """

    def __init__(self, path: Path, ends: Sequence[int], forms: Mapping[str, str]) -> None:
        self._given = path, tuple(ends), dict(forms)
        super().__init__(table_of(path), "rejected rows")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    def describe(self) -> dict[str, Any]:
        """Return a hash of the file, and where the rows of a shard end."""
        path, ends, _ = self._given
        digest = hashlib.blake2b(safe_files.mapped(path), digest_size=16)
        return {"kind": "rejected rows", "content": digest.hexdigest(), "ends": list(ends)}

    def forms(self) -> Mapping[str, str]:
        """Return the forms that functions have seen before."""
        return self._given[2]

    def splits_in_batches(self, rows: int) -> list[Split]:
        """Return a split for each shard."""
        bounds = pairwise((0, *self._given[1]))
        return [Split(0, start, end, end - start, first=start) for start, end in bounds]
