"""The rows that a run has set aside, as one table."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from millrace.core.rejected import rejected_schema
from millrace.core.work import REJECTED
from millrace.errors import NothingMatched, UnreadableFile


def rejected_table(output: str | os.PathLike[str]) -> pa.Table:
    """Read all rejected rows of an output; the files are mapped, not copied."""
    root = Path(output).expanduser()
    if not (root / "_millrace").is_dir():
        raise NothingMatched(
            f"There is no output of Millrace in {root}: read_rejected takes a folder written to."
        )
    tables = [_table(path) for path in sorted((root / REJECTED).glob("part-*.arrow"))]
    if not tables:
        return rejected_schema(pa.schema([])).empty_table()
    return pa.concat_tables(tables, promote_options="permissive")


def _table(path: Path) -> pa.Table:
    try:
        with pa.memory_map(str(path)) as file:
            return pa.ipc.open_file(file).read_all()
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(f"{path} cannot be read: {error}. It holds rejected rows of a run.") from error
