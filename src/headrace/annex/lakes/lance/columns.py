"""New columns of a Lance table: a file for each fragment, beside those that it has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.annex.lakes.columns import AddsColumns, check_new
from headrace.annex.lakes.delta.table import storage
from headrace.annex.lakes.filling import AT_ONCE, BLOCK, NewRows, Pieces, filled
from headrace.annex.lakes.lance.sink import PARTS, LanceTable
from headrace.annex.lakes.lance.table import (
    RUN,
    LancePart,
    data_of,
    done_in,
    library,
    opened,
    path_of,
    prefix,
    said,
    told,
    walked,
)
from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.files.safe_files import sync_fd
from headrace.core.work import StagedFile
from headrace.errors import HeadraceError, OutputWriteFailed, SinkError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMES = "headrace.columns"
_GONE = -2  # the number that stands in a file for a column whose values are in another one now
_ROWS_STAY = {
    "Append",
    "CreateIndex",
    "DataReplacement",
    "Delete",
    "Merge",
    "Project",
    "ReserveFragments",
    "Update",
    "UpdateConfig",
}


@dataclass(frozen=True)
class LanceNewColumns(AddsColumns, LanceTable):
    """Parts that name files with the new columns alone. The commit puts them beside the files of the fragments.

    A part with the rows of one whole fragment is its file. Where a fragment has several, lacks rows that were
    deleted, or keeps values, the driver puts the file together before it commits.
    """

    def at_base(self) -> Any:
        """Open the version that is read."""
        return opened(self.place, self.files.storage.options, self.base)

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise for a column that is there, that no table holds, or that is new where another is filled."""
        assert self.columns is not None
        there = [name for name in schema.names if name in self.columns.schema.names]
        if self.where is not None and there and len(there) < len(schema.names):
            new = next(name for name in schema.names if name not in there)
            raise SinkError(
                f"The plan fills the column {there[0]!r} of the {self.what} {self.place} and adds {new!r}, which are "
                "two kinds of commits. Add the new columns in a run of their own, then fill both with where=."
            )
        super().check_schema(schema)

    def added_by(self, table: Any, run: str) -> Sequence[str]:
        """Return the columns that the transaction of a run names."""
        found: list[str] = json.loads(self.told_by(table, run).get(_NAMES, "[]"))
        return found

    def read(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> tuple[Any, pa.Schema | None]:
        """Return the new file of each fragment, and its columns; nothing if the table has no row."""
        parts = self._read(files)
        schema = schema or next((part.schema for part in parts), None)
        if schema is None:
            return None, None
        schema = self.stored(schema, part=True)
        return self._files_for([part for part in parts if part.rows], schema), schema

    # ------------------------------------------------------------ the files

    def _files_for(self, parts: Sequence[LancePart], schema: pa.Schema) -> dict[int, LancePart]:
        """Return the new file of each fragment of the version that was read, by the fragment's number."""
        base = self.base_table
        old = [name for name in schema.names if name in base.schema.names]
        with told(self.place, "read the rows of"):
            counts = [(each, _count(each, self.where)) for each in base.get_fragments()]

        def made(each: tuple[Any, Pieces[LancePart]]) -> tuple[int, LancePart]:
            fragment, pieces = each
            part, rows = pieces[0].part, fragment.physical_rows
            whole = len(pieces) == 1 and pieces[0].rows == part.rows == rows
            return fragment.fragment_id, part if whole else self._joined(fragment, pieces, schema, old)

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="headrace-columns") as threads:
            return dict(threads.map(made, self.pieces(counts, parts)))

    def _joined(
        self, fragment: Any, pieces: Pieces[LancePart], schema: pa.Schema, old: Sequence[str]
    ) -> LancePart:
        """Write the file of a fragment, with nulls in rows that were deleted; where it keeps values, with these."""
        from lance.file import LanceFileWriter

        unique = os.urandom(4).hex()  # another driver's file may be the table's by now
        name = f"{prefix(self.files.run)}fragment-{fragment.fragment_id}-{unique}.lance"
        path = path_of(self, name)
        options = storage(path, self.files.storage.options) or None
        like = pieces[0].part
        try:
            with LanceFileWriter(path, schema, version=self.version, storage_options=options) as writer:
                for batch in self._rows_of(fragment, pieces, schema, old):
                    writer.write_batch(batch)
            if self.files.syncs:
                with safe_files.file(path) as file:
                    sync_fd(file.fileno())
        except HeadraceError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            raise OutputWriteFailed(
                f"Cannot write {path}: {said(error)}. Fix the cause, and run the same command again."
            ) from None
        failpoints.hit("table.joined")
        size = data_of(self).size_of(name) or 0
        return msgspec.structs.replace(like, file=name, rows=fragment.physical_rows, bytes=size)

    def _rows_of(
        self, fragment: Any, pieces: Pieces[LancePart], schema: pa.Schema, old: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a new file as they stand in the fragment, block by block."""
        new = NewRows(self._new_rows(pieces), schema)
        places = _addresses(fragment, self.where)
        live = places if self.where is None else _addresses(fragment, None)
        for low, high in pairwise([*range(0, fragment.physical_rows, BLOCK), fragment.physical_rows]):
            at, kept_at = (each[slice(*np.searchsorted(each, [low, high]))] - low for each in (places, live))
            kept = pa.table({})
            if old:
                first = int(np.searchsorted(live, low))
                kept = fragment.scanner(columns=list(old), offset=first, limit=len(kept_at)).to_table()
            columns = filled(high - low, new.take(len(at)), at, kept, kept_at)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _new_rows(self, pieces: Pieces[LancePart]) -> Iterator[pa.RecordBatch]:
        from lance.file import LanceFileReader

        options = storage(self.place, self.files.storage.options) or None
        for piece in pieces:
            reader = LanceFileReader(path_of(self, piece.part.file), storage_options=options)
            yield from reader.read_range(piece.start, piece.rows, batch_size=BLOCK).to_batches()

    # ------------------------------------------------------------ one commit

    def compare(self, table: Any, parts: Any, schema: pa.Schema | None) -> None:
        """Refuse if others have changed what was read, or have made such a column; new rows of theirs are kept."""
        assert schema is not None
        there, base = _about(table), _about(self.base_table)
        self._check_unchanged(table, base, there, parts)
        check_new(f"{self.what} {self.place}", schema.names, table.schema, fills=self.where is not None)
        self.warn_of_rows(
            sum(each.num_rows for number, each in there.items() if number not in base), schema.names
        )

    def commit(self, table: Any, parts: Any, schema: pa.Schema | None, mark: str) -> None:
        """Commit; the library takes up whatever was committed meanwhile, or says that it cannot."""
        assert schema is not None
        lance, there = library(), _about(table)
        filled = [name for name in schema.names if name in table.schema.names]
        columns = _with_columns(table, [each for each in schema if each.name not in filled])
        fragments = _fragments_with(there, parts, columns, filled)
        about = {RUN: self.files.run, PARTS: mark, _NAMES: json.dumps(schema.names)}
        operation: Any = lance.LanceOperation.Merge(list(fragments.values()), columns)
        if filled:
            numbers = {number for number, path in walked(columns.fields()) if path[0] in filled}
            changed = [fragments[each] for each in parts if each in fragments]
            operation = lance.LanceOperation.Update(
                updated_fragments=changed, fields_modified=sorted(numbers), update_mode="rewrite_columns"
            )
        self._send(lance.Transaction(int(table.version), operation, transaction_properties=about))

    def _check_unchanged(
        self, table: Any, base: Mapping[int, Any], there: Mapping[int, Any], made: Mapping[int, LancePart]
    ) -> None:
        """Refuse if rows for which values were computed are elsewhere since, or have other values."""
        gone = []
        for number in made:
            now = there.get(number)
            if now is not None and not _files(base[number]) <= _files(now):
                raise self.changed(f"fragment {number}, for which values were computed, has other values")
            if now is None:
                gone.append(number)
        if not gone:
            return
        with told(self.place, "read the history of"):  # all its rows were deleted, or they are elsewhere now
            for version in range(int(table.version), self.base or 0, -1):
                operation, _ = done_in(table, version)
                if operation not in _ROWS_STAY:
                    raise self.changed(
                        f"version {version} ({operation or 'unknown'}) put the rows of fragment "
                        f"{gone[0]} into other files"
                    )


def _count(fragment: Any, where: str | None) -> int:
    """Return how many rows have the condition.

    ``count_rows`` of a fragment waits for threads of Lance without letting go of Python's lock. One that needs that
    lock itself, as to release what a reader of ours gave it, would wait for ever.
    """
    if where is None:
        return int(fragment.count_rows())
    return int(fragment.scanner(with_row_id=True, columns=[], filter=where).count_rows())


def _about(table: Any) -> dict[int, Any]:
    return {each.fragment_id: each.metadata for each in table.get_fragments()}


def _files(fragment: Any) -> set[tuple[str, tuple[int, ...]]]:
    return {(each.path, tuple(each.fields)) for each in fragment.files}


def _addresses(fragment: Any, where: str | None) -> NDArray[np.int64]:
    """Return which rows of a fragment are there, or fulfil a condition, by their places in it."""
    if where is None and not fragment.num_deletions:
        return np.arange(fragment.physical_rows)
    found = fragment.scanner(columns=[], with_row_address=True, filter=where).to_table()
    made: NDArray[np.int64] = (found.column("_rowaddr").to_numpy() & 0xFFFFFFFF).astype(np.int64)
    return made


def _with_columns(table: Any, new: Sequence[pa.Field]) -> Any:
    """Return the schema of a table with further columns, which get numbers that it has never had.

    Only the library gives numbers. It does in a table without rows of its own, in memory, that names the same files.
    """
    lance = library()
    if not new:
        return table.lance_schema
    from lance.fragment import FragmentMetadata

    named = [
        FragmentMetadata(0, list(each.data_files()), each.physical_rows) for each in table.get_fragments()
    ]
    numbered = lance.LanceDataset.commit(
        "memory://", lance.LanceOperation.Overwrite(table.lance_schema, named)
    )
    numbered.add_columns(pa.schema(new))
    return numbered.lance_schema


def _fragments_with(
    there: Mapping[int, Any], made: Mapping[int, LancePart], columns: Any, filled: Sequence[str]
) -> dict[int, Any]:
    """Return all fragments of a table, those with a new file among them, by their numbers."""
    from lance.fragment import DataFile

    numbers = {path: number for number, path in walked(columns.fields())}
    replaced = {number for path, number in numbers.items() if path[0] in filled}
    found = {}
    for number, about in there.items():
        part = made.get(number)
        files = list(about.files)
        if part is not None:
            fields = [numbers[tuple(path)] for path in part.fields]
            files = [_without(file, replaced) for file in files]
            files = [
                *filter(None, files),
                DataFile(part.file, fields, part.columns, *part.format, part.bytes),
            ]
        found[number] = replace(about, files=files)
    return found


def _without(file: Any, replaced: set[int]) -> Any:
    """Return a file of a fragment without some columns, which are in another one now."""
    from lance.fragment import DataFile

    if replaced.isdisjoint(file.fields):
        return file
    fields = [_GONE if number in replaced else number for number in file.fields]
    return DataFile(
        file.path,
        fields,
        file.column_indices,
        file.file_major_version,
        file.file_minor_version,
        file.file_size_bytes,
        file.base_id,
    )
