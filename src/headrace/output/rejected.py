"""The rows that a run has set aside, as one table."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa

from headrace.core.arrow.batch import schema_from
from headrace.core.files import safe_files
from headrace.core.rejected import COLUMNS, rejected_schema
from headrace.core.stores.options import Options
from headrace.core.work import HOME, REJECTED
from headrace.errors import ArgumentError, NothingMatched
from headrace.output.places.place import Place, looked_at
from headrace.output.runs import is_output, named_run, next_run, pointer
from headrace.sources.rejected import table_of

_AT_ONCE = 8


def rejected_rows(path: str | os.PathLike[str], options: Options = ()) -> pa.Table:
    """Read the rejected rows of an output in their order; of one that waits for its first publishing, those of it.

    Files are mapped, not copied; objects of a store are fetched.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"read_rejected takes the folder that was written to, not {path!r}.")
    with looked_at(path, options) as output:
        if not is_output(output.root):
            raise NothingMatched(
                f"There is no output of Headrace in {output.root}: give read_rejected the folder that a run has "
                "written to."
            )
        published = (name for name in output.listed(REJECTED) if name.startswith(f"{REJECTED}/part-"))
        names = sorted(name for name in published if name.endswith(".arrow")) or _waiting(output)
        if not names:
            return rejected_schema(_columns(output.root)).empty_table()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-rejected") as threads:
            tables = list(threads.map(partial(_table, output), names))
    return pa.concat_tables(tables, promote_options="permissive")


def _waiting(output: Place) -> list[str]:
    """Return the files of rejected rows of an output of which nothing is published yet; none of another output."""
    run = next_run(output.root) if pointer(output.root, "current") is None else None
    if run is None:
        return []
    files = (file for record in run.records for file in record.files if not file.is_part)
    return [run.place_of(file, output) for file in files]


def _columns(root: Path) -> pa.Schema:
    """Return the source's schema, if a run without rejected rows has left it."""
    try:
        run = named_run(root) or pointer(root, "next") or ""
        return schema_from(safe_files.content(root / HOME / run / COLUMNS))
    except (OSError, ValueError, pa.ArrowException):
        return pa.schema([])


def _table(output: Place, name: str) -> pa.Table:
    with output.opened(name) as path:
        return table_of(path, output.at(name))
