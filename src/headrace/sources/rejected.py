"""The rows that a run has set aside, as one table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.arrow.batch import schema_from
from headrace.core.files import safe_files
from headrace.core.files.storage import output_at
from headrace.core.rejected import COLUMNS, rejected_schema
from headrace.core.stores.addresses import parse_output
from headrace.core.stores.options import Options
from headrace.core.stores.writing import StoreWriter
from headrace.core.work import REJECTED, Split
from headrace.errors import ArgumentError, NothingMatched, UnreadableFile
from headrace.sources.memory import MemorySource


def rejected_table(output: str | os.PathLike[str], options: Options = ()) -> pa.Table:
    """Read all rejected rows of an output; files are mapped, not copied, objects of a store are fetched."""
    if not isinstance(output, (str, os.PathLike)):
        raise ArgumentError(f"read_rejected takes the folder that was written to, not {output!r}.")
    storage = output_at(output, options)
    read: Callable[[str, Options], pa.Table] = storage.pick(_table_of_folder, _table_of_store)
    return read(storage.path, storage.options)


def _table_of_folder(path: str, options: Options) -> pa.Table:
    root = Path(path)
    if not (root / "_headrace").is_dir():
        raise NothingMatched(
            f"There is no output of Headrace in {root}: give read_rejected the folder that a run has written to."
        )
    rejected = root / REJECTED
    found = rejected.glob("part-*.arrow") if safe_files.is_folder(rejected) else ()
    tables = [table_of(path) for path in sorted(found)]
    if not tables:
        return rejected_schema(_columns(root / "_headrace")).empty_table()
    return pa.concat_tables(tables, promote_options="permissive")


def table_of_files(paths: Sequence[Path]) -> pa.Table:
    """Read the rejected rows in some files, which may have no names yet."""
    return pa.concat_tables([table_of(path) for path in paths], promote_options="permissive")


def _table_of_store(address: str, options: Options) -> pa.Table:
    store = StoreWriter(parse_output(address), options)
    names = sorted(name for name, _ in store.names(f"{REJECTED}/") if name.endswith(".arrow"))
    if names:
        with ThreadPoolExecutor(8, thread_name_prefix="headrace-rejected") as threads:
            return pa.concat_tables(
                threads.map(lambda name: _of_object(store, name), names), promote_options="permissive"
            )
    current = store.get("_headrace/current") or store.get("_headrace/next")
    if current is None:
        raise NothingMatched(f"There is no output of Headrace in {store.address}: no run has written there.")
    columns = store.get(f"_headrace/{current[0].decode().strip()}/{COLUMNS}")
    schema = schema_from(columns[0]) if columns is not None else pa.schema([])
    return rejected_schema(schema).empty_table()


def _of_object(store: StoreWriter, name: str) -> pa.Table:
    found = store.get(name)
    if found is None:
        raise UnreadableFile(f"{store.url(name)} is gone. It held rejected rows of a run.")
    return table_of(store.url(name), pa.BufferReader(found[0]))


def _columns(home: Path) -> pa.Schema:
    """Return the source's schema, if a run without rejected rows has left it."""
    try:
        run = safe_files.content(home / "current", 200).decode().strip()
        return schema_from(safe_files.content(home / run / COLUMNS))
    except (OSError, ValueError, pa.ArrowException):
        return pa.schema([])


def table_of(path: Path | str, data: pa.BufferReader | None = None) -> pa.Table:
    """Read the rejected rows in a file."""
    try:
        with data or pa.BufferReader(safe_files.mapped(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)  # in a damaged file, a wrong offset would be followed out of it
        return table
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(f"{path} cannot be read: {error}. It holds rejected rows of a run.") from error


class RejectedSource(MemorySource):
    """Rows that were rejected, with the columns of their source; those of each shard are one split."""

    def __init__(self, table: pa.Table, ends: Sequence[int], forms: Mapping[str, str]) -> None:
        super().__init__(table, "rejected rows")
        self._ends = tuple(ends)
        self._as_before = dict(forms)

    def describe(self) -> dict[str, Any]:
        """Return what the rows are, and where those of a shard end."""
        return {**super().describe(), "ends": list(self._ends)}

    def forms(self) -> Mapping[str, str]:
        """Return the forms that functions have seen before."""
        return self._as_before

    def splits_in_batches(self, rows: int) -> list[Split]:
        """Return a split for each shard."""
        bounds = pairwise((0, *self._ends))
        return [Split(0, start, end, end - start, first=start) for start, end in bounds]
