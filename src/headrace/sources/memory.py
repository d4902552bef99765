"""Data that is already in this process, and rows that a run has set aside."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.arrow.batch_formats import is_tensor
from headrace.core.arrow.columns import made_of_arrays
from headrace.core.arrow.forms import (
    ARRAYS,
    array_forms,
    as_ragged,
    forms_in,
    is_list,
    joinable,
    marked,
    without_marks,
)
from headrace.core.arrow.objects import (
    kinds_of,
    object_column,
    object_indices,
    objects_of,
    pickled_objects,
)
from headrace.core.arrow.values import ConversionError, column_from, from_columns, from_frame, from_rows
from headrace.core.arrow.widening import widened
from headrace.core.files import safe_files
from headrace.core.human import short_repr
from headrace.core.source_ports import Bad, Location, Source
from headrace.core.terminal import warn_of_pickling
from headrace.core.work import Split
from headrace.errors import ArgumentError, UnreadableFile
from headrace.sources.range import in_batches, row_ranges, rows_of_a_split
from headrace.sources.schemas import conform, select

_HASHED_ROWS = 65_536
_SPLIT_BYTES = 1 << 20


class MemorySource(Source):
    """Reads a table in memory; a split is a range of rows.

    It travels to the workers with its buffers out of band (pickle protocol 5), so an engine can hand them all
    one copy.
    """

    shares_memory = True  # its batches are views of the table, which is the user's

    def __init__(
        self,
        table: pa.Table,
        kind: str,
        *,
        rows_per_split: int | None = None,
    ) -> None:
        if rows_per_split is not None and rows_per_split < 1:
            raise ArgumentError(f"rows_per_split is at least 1, not {rows_per_split}.")
        self._array_forms = array_forms(table.schema)
        self._table = without_marks(table.replace_schema_metadata(None))
        self.kind = kind
        self._rows_per_split = rows_per_split
        self._forms: dict[str, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        table, objects = self._table, {}
        for i in object_indices(table.schema):
            name, column = table.schema.names[i], table.column(i)
            warn_of_pickling(name, kinds_of(column))
            objects[i] = objects_of(column).tolist()
            table = table.set_column(i, name, pa.nulls(table.num_rows))
        if table.get_total_buffer_size() > table.nbytes + table.nbytes // 8 + _SPLIT_BYTES:
            # A slice would be pickled with its whole parent; a round trip through the IPC format cuts it out.
            table = pa.ipc.open_stream(_ipc(table)).read_all()
        return {**self.__dict__, "_table": table, **({"_objects": objects} if objects else {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        objects = state.pop("_objects", {})
        self.__dict__.update(state)
        for i, values in objects.items():
            self._table = self._table.set_column(i, self._table.schema.names[i], object_column(values))

    def describe(self) -> dict[str, Any]:
        """Return what the data is, by a hash of its contents; costs about a second per gigabyte."""
        digest = hashlib.blake2b(digest_size=16)
        objects = object_indices(self._table.schema)
        for i in objects:
            digest.update(pickled_objects(self._table.schema.names[i], self._table.column(i)))
        plain = self._table.select([i for i in range(self._table.num_columns) if i not in objects])
        for start in range(0, self._table.num_rows, _HASHED_ROWS):
            # Copied out in pieces of fixed size: the hash must depend on neither chunks nor offsets.
            piece = plain.slice(start, _HASHED_ROWS)
            digest.update(_ipc(pa.concat_tables([piece.slice(0, 0), piece]).combine_chunks()))
        return {
            "kind": self.kind,
            "rows": self._table.num_rows,
            "columns": {field.name: str(field.type) for field in self._table.schema},
            "content": digest.hexdigest(),
        }

    def schema(self) -> pa.Schema:
        """Return the table's schema."""
        return self._table.schema

    def forms(self) -> Mapping[str, str]:
        """Return the forms of the columns that hold nulls, or were made of arrays."""
        if self._forms is None:
            self._forms = forms_in(self._table) | self._array_forms
        return self._forms

    def in_chunks(self, count: int, length: int | None = None) -> MemorySource:
        """Return the same rows in so many chunks, or fewer if there are fewer rows; or of ``length`` rows each."""
        rows, made = self._table.num_rows, object.__new__(type(self))
        count = max(1, min(count, rows))
        ends = [rows * number // count for number in range(count + 1)]
        ends = [*range(0, rows, length), rows] if length and rows else ends
        parts = [self._table.slice(start, end - start).combine_chunks() for start, end in pairwise(ends)]
        made.__dict__.update(self.__dict__, _table=pa.concat_tables(parts))
        return made

    def splits(self) -> list[Split]:
        """Cut the rows into about 64 ranges, of 1,024 to 65,536 rows and of about a megabyte at most."""
        return self.splits_in_batches(0)

    def splits_in_batches(self, rows: int) -> list[Split]:
        """Cut the rows as ``splits`` does, into multiples of ``rows`` rows; few rows may make small ranges."""
        n = self._table.num_rows
        row_bytes = max(1, -(-self._table.nbytes // max(1, n)))
        most = -(-_SPLIT_BYTES // row_bytes)
        step = self._rows_per_split or in_batches(min(rows_of_a_split(n, rows), most), rows, most)
        return row_ranges(n, step, row_bytes)

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a range of rows; the batches view the table."""
        target = select(self.schema(), columns)
        rows = self._table.slice(split.start, split.stop - split.start)
        if columns is None or not columns:
            chosen = rows
        else:
            chosen = rows.select(list(columns))
        for batch in chosen.to_batches(max_chunksize=batch_rows):
            yield batch if batch.schema.equals(target) else conform(batch, target, self.kind)

    def locate(self, split: Split, row: int) -> Location:
        """Name the row, counted from 0."""
        return Location(self.kind, split.first + row)


def _ipc(table: pa.Table) -> pa.Buffer:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


# ---------------------------------------------------------------- tables of what users have


def table_from_items(items: Sequence[Any]) -> pa.Table:
    """Make a table of dicts, or of plain values in the column ``item``."""
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise ArgumentError(f"from_items takes a list of dicts or values, not {type(items).__name__}.")
    items = list(items)
    dicts = sum(isinstance(item, Mapping) for item in items)
    if dicts not in (0, len(items)):
        raise ArgumentError(
            f"from_items takes dicts or other values, not both: {dicts} of {len(items)} items are dicts."
        )
    try:
        batch = from_rows(items) if dicts or not items else from_columns({"item": items})
    except ConversionError as error:
        raise ArgumentError(f"from_items cannot make columns of these items: {error}.") from error
    return pa.Table.from_batches([batch])


def table_from_arrays(arrays: Any) -> pa.Table:
    """Make a table with the column ``data`` of one array or several."""
    several = arrays if isinstance(arrays, (list, tuple)) else [arrays]
    if not several or not all(hasattr(array, "shape") and hasattr(array, "dtype") for array in several):
        raise ArgumentError(
            f"from_numpy takes an array or a list of arrays, not {short_repr(arrays)}; "
            "for lists of values use from_items."
        )
    try:
        columns = [column_from(array) for array in several]
        vectors = all(
            is_tensor(column.type) or made_of_arrays(array, column)
            for array, column in zip(several, columns, strict=True)
        )
        if len({column.type for column in columns}) > 1:  # rows of different shapes, or of different dtypes
            columns = [as_ragged(column) for column in columns]
        data = pa.chunked_array(columns)
        table = pa.Table.from_arrays([data], names=["data"])
        return marked(table, {"data": ARRAYS}) if vectors and is_list(data.type) else table
    except ConversionError as error:
        raise ArgumentError(f"from_numpy cannot make a column of this array: {error}.") from error
    except pa.ArrowException as error:
        shapes = ", ".join(f"{array.dtype} {array.shape}" for array in several[:4])
        raise ArgumentError(
            f"from_numpy takes arrays alike in dtype and in how many axes they have, not {shapes}."
        ) from error


def table_from_frames(frames: Any) -> pa.Table:
    """Make a table of one DataFrame or several; levels of the index that have names are columns."""
    several = frames if isinstance(frames, (list, tuple)) else [frames]
    for frame in several:
        if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
            raise ArgumentError(
                f"from_pandas takes a DataFrame or a list of them, not {type(frame).__name__}."
            )
    try:
        batches = [from_frame(frame) for frame in several]
        if batches and all(joinable(batches[0].schema, batch.schema) for batch in batches):
            batches = list(widened(batches))
        tables = [pa.Table.from_batches([batch]) for batch in batches]
    except ConversionError as error:
        raise ArgumentError(f"from_pandas cannot make Arrow columns of this DataFrame: {error}.") from error
    return joined(tables, "from_pandas")


def table_from_arrow(tables: Any) -> pa.Table:
    """Make a table of one piece of Arrow data or several."""
    several = tables if isinstance(tables, (list, tuple)) else [tables]
    return joined([_table(one) for one in several], "from_arrow")


def _table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    raise ArgumentError(
        "from_arrow takes a pyarrow Table or RecordBatch, something that exports an Arrow stream, or a list of "
        f"these, not {type(data).__name__}."
    )


def joined(tables: Sequence[pa.Table], verb: str) -> pa.Table:
    """Put tables of equal columns one behind the other; nothing is copied."""
    if not tables:
        raise ArgumentError(f"{verb} got an empty list, which has no columns.")
    first, *others = (table.replace_schema_metadata(None) for table in tables)
    for other in others:
        if not other.schema.equals(first.schema):
            raise ArgumentError(
                f"{verb} takes pieces of equal columns, but one has {short_repr(str(first.schema))} and another "
                f"{short_repr(str(other.schema))}."
            )
    names = first.schema.names
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ArgumentError(
            f"{verb}: two columns are named {twice!r}. Rename one of them: table.rename_columns(…)."
        )
    return pa.concat_tables([first, *others]) if others else first


# ------------------------------------------------------------ rejected rows


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
