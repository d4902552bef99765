"""The rows that a run has set aside, as one table."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from headrace.core.arrow.batch import schema_from
from headrace.core.files import safe_files
from headrace.core.files.paths import absolute
from headrace.core.rejected import COLUMNS, rejected_schema
from headrace.core.work import REJECTED
from headrace.errors import ArgumentError, NothingMatched, UnreadableFile


def rejected_table(output: str | os.PathLike[str]) -> pa.Table:
    """Read all rejected rows of an output; the files are mapped, not copied."""
    if not isinstance(output, (str, os.PathLike)):
        raise ArgumentError(f"read_rejected takes the folder that was written to, not {output!r}.")
    root = Path(absolute(os.fspath(output), "The output path"))
    if not (root / "_headrace").is_dir():
        raise NothingMatched(
            f"There is no output of Headrace in {root}: read_rejected takes a folder written to."
        )
    rejected = root / REJECTED
    found = rejected.glob("part-*.arrow") if safe_files.is_folder(rejected) else ()
    tables = [_table(path) for path in sorted(found)]
    if not tables:
        return rejected_schema(_columns(root / "_headrace")).empty_table()
    return pa.concat_tables(tables, promote_options="permissive")


def _columns(home: Path) -> pa.Schema:
    """Return the source's schema, if a run without rejected rows has left it."""
    try:
        run = safe_files.content(home / "current", 200).decode().strip()
        return schema_from(safe_files.content(home / run / COLUMNS))
    except (OSError, ValueError, pa.ArrowException):
        return pa.schema([])


def _table(path: Path) -> pa.Table:
    try:
        with pa.BufferReader(safe_files.mapped(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)  # in a damaged file, a wrong offset would be followed out of it
        return table
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(f"{path} cannot be read: {error}. It holds rejected rows of a run.") from error
