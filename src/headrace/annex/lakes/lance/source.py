"""One version of a Lance table: its fragments, read by the library, without rows that were deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.annex.lakes.further_runs import Runs, TableVersion
from headrace.annex.lakes.lance.table import State, history, opened, said, told
from headrace.annex.lakes.places import inside
from headrace.core.files.storage import storage_at
from headrace.core.source_ports import Bad, Location
from headrace.core.stores.addresses import Options
from headrace.core.table_changes import Change, Seen, other_table
from headrace.core.work import Split
from headrace.errors import InputChanged, PlanError, SourceError, UnreadableFile

if TYPE_CHECKING:
    import pyarrow as pa

_SPLIT_ROWS = 1 << 18
_UNPACKED = 3  # bytes in memory for each in a file, about


class _Fragment(NamedTuple):
    number: int
    rows: int
    bytes: int
    path: str  # of its first file, which no other fragment has
    first: int  # its size; 0: the table does not say
    version: int  # in which it is read


class _Found(NamedTuple):
    version: int
    schema: pa.Schema
    fragments: tuple[_Fragment | None, ...]  # None: it is not read
    digest: str  # of the paths of all fragments


class LanceSource(TableVersion[_Found]):
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

    lake = "Lance"

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
        self._tables: dict[int | str | None, Any] = {}
        self._every: dict[str, tuple[tuple[str, int, int], _Fragment | None]] = {}
        self._pins: tuple[str, ...] | None = None
        self.files_apart = False

    def for_new_columns(self, where: str | None, begun: Mapping[str, Any]) -> LanceSource:
        """Return this source with a shard for each fragment, of the rows for which a condition holds.

        ``begun``: what it said of itself when a run began, whose version is read unless another was asked for.
        """
        if self._condition is not None:
            raise PlanError(
                "mode='add_columns' needs all rows of the table, and read_lance has filter=. Leave it out; where= of "
                "write_lance says which rows get values."
            )
        return self.by_file(begun)._with({"_condition": where})

    def outside_files(self) -> None:
        """Return None: files with new columns have these alone."""

    def describe(self) -> dict[str, Any]:
        """Return the table, its version, and what is read of it."""
        return {
            "kind": "lance",
            "table": self._place,
            **({} if self._runs else {"version": self._settled().version}),
            "filter": self._condition,
            "columns": None if self._columns is None else list(self._columns),
        }

    def _now(self) -> dict[str, Any]:
        return {"version": self._settled().version, "digest": self._settled().digest}

    def _check_later(self, last: Mapping[str, Any]) -> None:
        super()._check_later(last)
        try:
            digest = self._state(last["version"]).digest()
        except SourceError:  # it was cleaned up: see _changes
            return
        if digest != last["digest"]:
            raise other_table(self._name)

    def _changes(self, last: Mapping[str, Any]) -> list[Change]:
        found = history(self._place, self._opened, self._settled().version, after=last["version"])
        return [*found][::-1]

    def _taken_in(self, runs: Runs, paths: tuple[str, ...], seen: Seen) -> LanceSource:
        about = {path: (path, size, time) for path, size, time in seen.files}
        every = {path: (about.get(path) or _listed(runs.told[path]), runs.told.get(path)) for path in paths}
        return self._with({"_runs": runs, "_every": every}).pinned(paths)

    def _state(self, version: int) -> State:
        return State.of(self._place, self._opened(version))

    def _files_in(self, version: int | None) -> dict[str, _Fragment]:
        """Return the fragments of a version by their first files."""
        if version is None:
            return {each.path: each for each in self._settled().fragments if each is not None}
        return {each.path: each for each in _fragments(self._place, self._opened(version))}

    def _with(self, changed: Mapping[str, Any]) -> LanceSource:
        copy: LanceSource = object.__new__(type(self))
        copy.__dict__ = {**self.__dict__, "_tables": {}, **changed}
        if copy._found is None:
            copy._every = {}
        return copy

    def files(self) -> list[tuple[str, int, int]]:
        """Return the fragments, by the first file of each."""
        if not self._every:
            found = [each for each in self._settled().fragments if each is not None]
            self._every = {each.path: (_listed(each), each) for each in found}
        return [self._every[path][0] for path in (self._every if self._pins is None else self._pins)]

    def files_of(self, split: Split) -> range:
        """Return the number of the fragment that a split lies in."""
        return range(split.file, split.file + 1)

    def pinned(self, paths: Sequence[str]) -> LanceSource:
        """Return this source with exactly these fragments, in this order."""
        self.files()
        fragments = tuple(self._every[path][1] for path in paths)
        return self._with({"_found": self._settled()._replace(fragments=fragments), "_pins": tuple(paths)})

    def splits_from(self, file: int) -> list[Split] | None:
        """List the splits of further fragments, where runs add to one output."""
        return [split for split in self.splits() if split.file >= file] if self._runs else None

    def schema(self) -> pa.Schema:
        """Return the columns of the version."""
        return self._settled().schema

    def splits(self) -> list[Split]:
        """List the fragments, and cut long ones. Rows are known where there is no condition."""
        made = []
        for at, fragment in enumerate(self._settled().fragments):
            if fragment is None:
                continue
            size = max(1, fragment.bytes * _UNPACKED)
            if self._condition is not None:
                made.append(Split(at, 0, fragment.rows, -1, size, 0))
                continue
            step = max(1, fragment.rows) if self.files_apart else _SPLIT_ROWS
            for start in range(0, fragment.rows, step):
                stop = min(start + step, fragment.rows)
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
        self.check_unchanged(split)
        return self._read(split, schema if columns is None else select(schema, columns), batch_rows)

    def _read(self, split: Split, target: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from headrace.core.arrow.batch import empty_columns
        from headrace.sources.schemas import read_guarded

        fragment = self._fragment(split)
        asked: dict[str, Any] = {"columns": target.names, "with_row_id": not target.names}
        if self._condition is None:
            asked |= {"offset": split.start, "limit": split.stop - split.start}
        else:
            asked["filter"] = self._condition

        def batches() -> Iterator[pa.RecordBatch]:
            scanner = (
                self._opened(fragment.version)
                .get_fragment(fragment.number)
                .scanner(batch_size=batch_rows, **asked)
            )
            yield from scanner.to_batches()

        def damaged(error: Exception) -> Exception:
            return UnreadableFile(
                f"Cannot read fragment {fragment.number} of the Lance table {self._place}, version "
                f"{fragment.version}: {said(error)}."
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
        """Name the first file of the fragment, and the row among those that are read of it."""
        return Location(self._fragment(split).path, split.start + row)

    def check_unchanged(self, split: Split) -> None:
        """Raise ``InputChanged`` if the first file of a fragment has another size than the table says."""
        fragment = self._fragment(split)
        size = storage_at(fragment.path).known_size()
        if fragment.first and size not in (
            None,
            -1,
            fragment.first,
        ):  # one that is gone is told by who reads it
            raise InputChanged(
                f"The file {fragment.path!r} of the Lance table {self._place} has {size:,} bytes, and the table "
                f"says {fragment.first:,}: somebody else wrote to it. Restore it, or write the table again."
            )

    def _fragment(self, split: Split) -> _Fragment:
        fragment = self._settled().fragments[split.file]
        assert fragment is not None  # no split is in one that is not read
        return fragment

    def close(self) -> None:
        """Let go of the table."""
        self._tables.clear()

    def __getstate__(self) -> dict[str, Any]:
        self._settled()  # workers read the version that was planned
        return {**self.__dict__, "_tables": {}}

    def _opened(self, version: int | str | None) -> Any:
        if version not in self._tables:
            self._tables[version] = opened(self._place, self._options, version)
        return self._tables[version]

    def _look(self) -> _Found:
        import pyarrow as pa

        from headrace.sources.schemas import select

        table = self._opened(self._version)
        with told(self._place, "look at"):
            every = pa.schema([pa.field(each.name, each.type, each.nullable) for each in table.schema])
            schema = every if self._columns is None else select(every, self._columns)
            _refuse_blobs(self._place, table.schema, schema.names)
            if self._condition is not None:  # its columns and its words are looked at
                table.scanner(columns=[], with_row_id=True, filter=self._condition, limit=0).to_table()
            digest = State.of(self._place, table).digest()
            return _Found(int(table.version), schema, tuple(_fragments(self._place, table)), digest)


def _fragments(place: str, table: Any) -> Iterator[_Fragment]:
    for each in table.get_fragments():
        files = each.data_files()
        size = sum(file.file_size_bytes or 0 for file in files)
        path = inside(place, f"data/{files[0].path}", f"The Lance table {place}")
        first = files[0].file_size_bytes or 0
        yield _Fragment(each.fragment_id, each.count_rows(), size, path, first, int(table.version))


def _listed(fragment: _Fragment) -> tuple[str, int, int]:
    return fragment.path, fragment.bytes, 0


def _refuse_blobs(place: str, schema: pa.Schema, read: Sequence[str]) -> None:
    blobs = [
        each.name
        for each in schema
        if "blob" in getattr(each.type, "extension_name", "")
        or b"lance-encoding:blob" in (each.metadata or {})
    ]
    if not {*blobs}.isdisjoint(read):
        raise SourceError(
            f"The Lance table {place} has blobs in column {', '.join(map(repr, blobs))}: Lance returns only their "
            "positions, so they cannot be read. Name the other columns with columns=[…]."
        )


def _of_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    return column if column.type.equals(type_) else column.cast(type_)
