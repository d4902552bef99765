"""One version of a Lance table: its fragments, read by the library, without rows that were deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.locations import Location
from headrace.core.ports import Bad, Source
from headrace.core.stores.options import Options
from headrace.core.tables.lance import opened, said, told
from headrace.core.warn import warn
from headrace.core.work import Split
from headrace.errors import SourceError, UnreadableFile

if TYPE_CHECKING:
    import pyarrow as pa

_SPLIT_ROWS = 1 << 18
_UNPACKED = 3  # bytes in memory for each in a file, about


class _Fragment(NamedTuple):
    number: int
    rows: int
    bytes: int


class _Found(NamedTuple):
    version: int
    schema: pa.Schema
    fragments: tuple[_Fragment, ...]


class LanceSource(Source):
    """Reads one version of a Lance table, which never changes. It is settled when first looked at.

    A split is a fragment, or 262,144 rows of one; with a condition, the rows of a fragment for which it holds.

    Parameters
    ----------
    place
        The folder or address of the table.
    version
        A number, or a tag; None: the latest.
    columns
        The columns to read; None: all.
    condition
        Which rows, as the library's SQL.
    options
        What the store needs to know that is no secret.
    """

    def __init__(
        self,
        place: str,
        *,
        version: int | str | None = None,
        columns: Sequence[str] | None = None,
        condition: str | None = None,
        options: Options = (),
    ) -> None:
        self._place, self._version, self._condition, self._options = place, version, condition, options
        self._columns = None if columns is None else tuple(columns)
        self._found: _Found | None = None
        self._table: Any = None

    def describe(self) -> dict[str, Any]:
        """Return the table, its version, and what is read of it."""
        return {
            "kind": "lance",
            "table": self._place,
            "version": self._settled().version,
            "filter": self._condition,
            "columns": None if self._columns is None else list(self._columns),
        }

    def as_planned(self, described: Mapping[str, Any]) -> LanceSource:
        """Return this source with the version that a run was planned with, unless another one was asked for."""
        mine, version = self.describe(), described.get("version")
        same = {**mine, "version": version} == dict(described)
        if self._version is not None or not same or mine == dict(described) or not isinstance(version, int):
            return self
        warn(
            f"The Lance table {self._place} has a newer version, {mine['version']}; this run was planned with "
            f"{version}, and goes on with that. A run with another output reads the newer one."
        )
        return LanceSource(
            self._place,
            version=version,
            columns=self._columns,
            condition=self._condition,
            options=self._options,
        )

    def schema(self) -> pa.Schema:
        """Return the columns of the version."""
        return self._settled().schema

    def splits(self) -> list[Split]:
        """List the fragments, and cut long ones. Rows are known where there is no condition."""
        made = []
        for at, fragment in enumerate(self._settled().fragments):
            size = max(1, fragment.bytes * _UNPACKED)
            if self._condition is not None:
                made.append(Split(at, 0, fragment.rows, -1, size, 0))
                continue
            for start in range(0, fragment.rows, _SPLIT_ROWS):
                stop = min(start + _SPLIT_ROWS, fragment.rows)
                made.append(
                    Split(
                        at, start, stop, stop - start, max(1, size * (stop - start) // fragment.rows), start
                    )
                )
        return made

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of a split, in the order of the fragment."""
        from headrace.sources.schemas import select

        schema = self.schema()
        return self._read(split, schema if columns is None else select(schema, columns), batch_rows)

    def _read(self, split: Split, target: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from headrace.core.arrow.batch import empty_columns
        from headrace.sources.schemas import read_guarded

        fragment = self._settled().fragments[split.file]
        asked: dict[str, Any] = {"columns": target.names, "with_row_id": not target.names}
        if self._condition is None:
            asked |= {"offset": split.start, "limit": split.stop - split.start}
        else:
            asked["filter"] = self._condition

        def batches() -> Iterator[pa.RecordBatch]:
            scanner = self._opened().get_fragment(fragment.number).scanner(batch_size=batch_rows, **asked)
            yield from scanner.to_batches()

        def damaged(error: Exception) -> Exception:
            return UnreadableFile(
                f"Cannot read fragment {fragment.number} of the Lance table {self._place}, version "
                f"{self._settled().version}: {said(error)}."
            )

        for batch in read_guarded(batches(), damaged):
            if target.names:
                arrays = [_of_type(batch.column(field.name), field.type) for field in target]
                batch = pa.RecordBatch.from_arrays(arrays, schema=target)
            else:
                batch = empty_columns(batch.num_rows)
            for start in range(0, batch.num_rows, batch_rows):
                yield batch.slice(start, batch_rows)

    def locate(self, split: Split, row: int) -> Location:
        """Name the table, the fragment, and the row among those that are read of it."""
        fragment = self._settled().fragments[split.file]
        return Location(f"{self._place}, fragment {fragment.number}", split.start + row)

    def close(self) -> None:
        """Let go of the table."""
        self._table = None

    def __getstate__(self) -> dict[str, Any]:
        self._settled()  # workers read the version that was planned
        return {**self.__dict__, "_table": None}

    def _opened(self) -> Any:
        if self._table is None:
            version = self._version if self._found is None else self._found.version
            self._table = opened(self._place, self._options, version)
        return self._table

    def _settled(self) -> _Found:
        if self._found is None:
            import pyarrow as pa

            from headrace.sources.schemas import select

            table = self._opened()
            with told(self._place, "look at"):
                every = pa.schema([pa.field(each.name, each.type, each.nullable) for each in table.schema])
                schema = every if self._columns is None else select(every, self._columns)
                _refuse_blobs(self._place, table.schema, schema.names)
                if self._condition is not None:  # its columns and its words are looked at
                    table.scanner(columns=[], with_row_id=True, filter=self._condition, limit=0).to_table()
                fragments = tuple(
                    _Fragment(
                        each.fragment_id,
                        each.count_rows(),
                        sum(file.file_size_bytes or 0 for file in each.data_files()),
                    )
                    for each in table.get_fragments()
                )
                self._found = _Found(int(table.version), schema, fragments)
        return self._found


def _refuse_blobs(place: str, schema: pa.Schema, read: Sequence[str]) -> None:
    blobs = [
        each.name
        for each in schema
        if "blob" in getattr(each.type, "extension_name", "")
        or b"lance-encoding:blob" in (each.metadata or {})
    ]
    if not {*blobs}.isdisjoint(read):
        raise SourceError(
            f"The Lance table {place} has blobs in column {', '.join(map(repr, blobs))}: a scan gives only where "
            "they are, so they are not read. Name the other columns with columns=[…]."
        )


def _of_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    return column if column.type.equals(type_) else column.cast(type_)
