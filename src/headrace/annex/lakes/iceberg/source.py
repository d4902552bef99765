"""A snapshot of an Iceberg table, opened by its catalogue; its files, with deletions and changed columns."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from headrace.annex.lakes.further_runs import Runs, TableOfRuns
from headrace.annex.lakes.places import place_of
from headrace.core.door import install_hint
from headrace.core.files.input_files import InputFile
from headrace.core.files.storage import storage_at
from headrace.core.source_ports import Bad, Location, PlainFile
from headrace.core.stores.addresses import Options, checked
from headrace.core.table_changes import UNNAMED, Change, Kind, Seen, no_history, older_version
from headrace.core.work import Split
from headrace.errors import (
    ArgumentError,
    HeadraceError,
    MissingLibrary,
    NothingMatched,
    SourceError,
    UnreadableFile,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.parquet.chunks import ChunkFile


# ---------------- opening by the catalogue; errors of the library in our words

_SECRET = re.compile(
    r"secret|passw|token|credential|access-key|account-key|connection-string|sas", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"://[^/@]*:[^/@]*@")
_STORE = {"s3.endpoint": "endpoint", "s3.region": "region", "client.region": "region"}


class Catalog(NamedTuple):
    """Which catalogue: its name in the configuration of PyIceberg, and what it has besides."""

    name: str | None
    properties: tuple[tuple[str, str], ...]

    @classmethod
    def given(
        cls, catalog: str | Mapping[str, Any] | None, kwargs: Mapping[str, Any] | None, verb: str
    ) -> Catalog:
        """Read what names a catalogue; refuse secrets.

        >>> Catalog.given({"type": "sql", "uri": "sqlite:///lake.db"}, None, "read_iceberg").name
        >>> Catalog.given("lake", {"s3.secret-access-key": "…"}, "read_iceberg")
        Traceback (most recent call last):
        headrace.errors.ArgumentError: read_iceberg: the catalogue must not be given 's3.secret-access-key': ...
        """
        if not isinstance(catalog, (str, Mapping, type(None))) or not isinstance(
            kwargs, (Mapping, type(None))
        ):
            raise ArgumentError(
                f"{verb}: catalog= is the name of a catalogue in the configuration of PyIceberg, or a dict of its "
                "properties, such as {'type': 'sql', 'uri': 'sqlite:///lake.db', 'warehouse': 'lake/'}."
            )
        found = {**(catalog if isinstance(catalog, Mapping) else {}), **(kwargs or {})}
        name = found.pop("name", catalog if isinstance(catalog, str) else None)
        for key, value in found.items():
            if _SECRET.search(str(key)) or _IN_ADDRESS.search(str(value)):
                raise ArgumentError(
                    f"{verb}: the catalogue must not be given {str(key)!r}: credentials come from the environment "
                    "(AWS_ACCESS_KEY_ID, PYICEBERG_CATALOG__NAME__URI, …) or from ~/.pyiceberg.yaml, so that they "
                    "are never written into plans and reports."
                )
        return cls(name, tuple(sorted((str(key), str(value)) for key, value in found.items())))

    def load(self) -> Any:
        """Return the library's catalogue."""
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise MissingLibrary(f"Iceberg tables need pyiceberg: {install_hint('iceberg')}.") from error
        with told("open the catalogue", self.name or "of this name"):
            return load_catalog(self.name, **dict(self.properties))


@contextlib.contextmanager
def told(doing: str, what: str) -> Iterator[None]:
    """Raise ``SourceError`` for errors of the library, whose words may hold what only a catalogue should know."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        said = re.sub(r"://[^\s/]*@", "://***@", " ".join(str(error).split()))[:300].rstrip(".")
        raise SourceError(f"Cannot {doing} {what}: {type(error).__name__}: {said}.") from None


def given_identifier(identifier: Any, verb: str) -> str:
    """Return the name of a table, with its namespace."""
    if not isinstance(identifier, str) or not all(identifier.split(".")) or "." not in identifier:
        raise ArgumentError(
            f"{verb}: a table is named with its namespace, such as 'shop.sales', not {identifier!r}."
        )
    return identifier


def opened(identifier: str, catalog: Catalog) -> Any | None:
    """Return a table as it is now; None if there is none."""
    found = catalog.load()
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    with told("open the Iceberg table", identifier):
        try:
            return found.load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


def store_options(properties: Mapping[str, Any], place: str) -> Options:
    """Return what our own client needs to know of the store of a table, by what the catalogue says."""
    return storage_at(
        place, checked({ours: properties[name] for name, ours in _STORE.items() if properties.get(name)})
    ).options


RUN = "headrace.run"  # in what a snapshot says of itself
COLUMNS = "headrace.columns"


def told_by(snapshot: Any) -> Mapping[str, str]:
    """Return what a snapshot says of itself."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def check_later(table: str, metadata: Any, after: int | None, until: int | None) -> None:
    """Raise ``InputChanged`` if a snapshot comes before the one up to which the table was read."""
    before = [each.snapshot_id for each in _ancestors(metadata, after)]
    if until != after and (until is None or until in before):
        raise older_version(table, f"snapshot {until}", f"snapshot {after}")


def history(
    table: str, metadata: Any, io: Any, snapshot: int | None, *, after: int | None
) -> Iterator[Change]:
    """Yield what snapshots did to the files, the latest first; raises ``InputChanged`` if some are not known now."""
    before = snapshot
    for each in _ancestors(metadata, snapshot):
        if each.snapshot_id == after:
            return
        before = each.parent_snapshot_id
        with told("read the manifests of", table):
            change = _change(each, io)
        yield change
    if before != after and snapshot is not None:
        why = f"its snapshots do not go back to {after}: they have expired, or the table was rolled back"
        raise no_history(table, why)


def ancestors(metadata: Any, snapshot: int | None, until: int | None) -> list[int]:
    """Return the snapshots before one, the latest first, as far as they come after another one."""
    found = [int(each.snapshot_id) for each in _ancestors(metadata, snapshot)][1:]
    return found[: found.index(until)] if until in found else found


def _ancestors(metadata: Any, snapshot: int | None) -> Iterator[Any]:
    found = None if snapshot is None else metadata.snapshot_by_id(snapshot)
    while found is not None:
        yield found
        parent = found.parent_snapshot_id
        found = None if parent is None else metadata.snapshot_by_id(parent)


def _change(snapshot: Any, io: Any) -> Change:
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

    added: list[str] = []
    removed: set[str] = set()
    operation = "" if snapshot.summary is None else str(snapshot.summary.operation.value)
    about = told_by(snapshot)
    for manifest in snapshot.manifests(io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
            if entry.status == ManifestEntryStatus.EXISTING:
                continue
            if manifest.content == ManifestContent.DELETES:
                if operation != "replace":
                    removed.add(UNNAMED)
            elif entry.status == ManifestEntryStatus.ADDED:
                added.append(place_of(entry.data_file.file_path))
            else:
                removed.add(place_of(entry.data_file.file_path))
    kind: Kind = "rewrite" if operation == "replace" else "change" if removed else "append"
    if kind == "change" and RUN in about and COLUMNS not in about:
        kind = "overwrite"
    name = f"snapshot {snapshot.snapshot_id} ({operation or 'without an operation'})"
    return Change(name, snapshot.parent_snapshot_id, kind, added, removed, about.get(RUN, ""))


@dataclass(frozen=True)
class Scan:
    """What a snapshot says: which rows of which files, by the library's own values."""

    table: str
    snapshot: int | None
    schema_id: int
    metadata: Any
    io: Any
    projection: Any
    condition: Any
    schema: pa.Schema
    tasks: Mapping[str, Any] = field(repr=False)


class IcebergSource(TableOfRuns[Scan, Scan]):
    """Reads one snapshot of an Iceberg table, a split for each file. It is settled when first looked at."""

    reads_objects = True
    has_chunks = True
    lake = "Iceberg"
    choosing = "selected_fields= and row_filter= of read_iceberg"
    pins: ClassVar[Mapping[str, str]] = {"snapshot": "_snapshot", "schema": "_schema_id"}

    def __init__(
        self,
        identifier: str,
        catalog: Catalog,
        *,
        snapshot: int | None = None,
        moment: int | None = None,
        row_filter: Any = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__("/")
        self._place = identifier
        self._catalog = catalog
        self._snapshot = snapshot
        self._moment = moment
        self._condition = row_filter
        self._columns = None if columns is None else tuple(columns)
        self._schema_id: int | None = None  # of a run that goes on

    def describe(self) -> dict[str, Any]:
        """Return the table, its snapshot, and what is read of it."""
        scan = self._settled()
        return {
            "kind": "iceberg",
            "table": self._place,
            **({} if self._runs else self._read(scan)),
            "filter": None if self._condition is None else str(self._condition),
            "columns": None if self._columns is None else list(self._columns),
        }

    def outside_files(self) -> tuple[str, ...]:
        """Return none: files have the columns that partitions are made of, too."""
        return ()

    def _now(self) -> dict[str, Any]:
        return self._read(self._settled())

    def _read(self, scan: Scan) -> dict[str, Any]:
        return {"id": scan.table, "snapshot": scan.snapshot, "schema": scan.schema_id}

    def _check_later(self, last: Mapping[str, Any]) -> None:
        check_later(self._name, self._settled().metadata, last["snapshot"], self._settled().snapshot)

    def _between(self, last: Mapping[str, Any]) -> list[int]:
        return ancestors(self._settled().metadata, self._settled().snapshot, last["snapshot"])

    def _changes(self, last: Mapping[str, Any]) -> list[Change]:
        now = self._settled()
        return [*history(self._name, now.metadata, now.io, now.snapshot, after=last["snapshot"])][::-1]

    def _taken_in(self, runs: Runs, paths: tuple[str, ...], seen: Seen) -> IcebergSource:
        found = replace(self._settled(), tasks=runs.told)
        return self._with({"_runs": runs, "_pins": paths, "_found": found})

    def _files_in(self, snapshot: int | None) -> Mapping[str, Any]:
        """Return the files of a snapshot with how they are read."""
        now = self._settled()
        if snapshot in (None, now.snapshot):
            return now.tasks
        return self._with({"_snapshot": snapshot, "_schema_id": now.schema_id})._look().tasks

    def schema(self) -> pa.Schema:
        """Return the columns of the snapshot."""
        return self._settled().schema

    def inspect(self, files: list[InputFile]) -> Scan:
        """Everything is known from the snapshot."""
        return self._settled()

    def splits(self) -> list[Split]:
        """List the files. Rows are known where none is deleted or filtered."""
        scan = self.refreshed()
        tasks = ((number, scan.tasks.get(str(file.path))) for number, file in enumerate(self._files))
        return [
            self._split(number, task) for number, task in tasks if task is not None
        ]  # others are not read

    def _split(self, number: int, task: Any) -> Split:
        from pyiceberg.expressions import AlwaysTrue

        whole = not task.delete_files and task.residual == AlwaysTrue()
        return Split(
            number, 0, 1, task.file.record_count if whole else -1, task.file.file_size_in_bytes * 3, 0
        )

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a file's rows by the library: columns by their numbers, without those that are deleted."""
        import pyarrow as pa
        from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files

        from headrace.core.arrow.batch import empty_columns
        from headrace.sources.schemas import read_guarded, select

        scan, path = self._settled(), self.file(split.file).path
        target = scan.schema if columns is None else select(scan.schema, columns)
        wanted = target.names or scan.schema.names[:1]
        task = scan.tasks[str(path)]

        def batches() -> Iterator[pa.RecordBatch]:
            reader = ArrowScan(scan.metadata, scan.io, scan.projection.select(*wanted), scan.condition)
            deleted = _read_all_delete_files(scan.io, [task])
            yield from reader._record_batches_from_scan_tasks_and_deletes([task], deleted)

        def damaged(error: Exception) -> Exception:
            return UnreadableFile(
                f"Cannot read {path!r} of the Iceberg table {self._place}: {str(error).rstrip('.')}."
            )

        for batch in read_guarded(batches(), damaged):
            if target.names:
                arrays = [batch.column(field.name).cast(field.type) for field in target]
                made = pa.RecordBatch.from_arrays(arrays, schema=target)
            else:
                made = empty_columns(batch.num_rows)
            for start in range(0, made.num_rows, batch_rows):
                yield made.slice(start, batch_rows)

    def chunk_file(self, split: Split) -> tuple[ChunkFile, frozenset[str]]:
        """Return the file that a split is, and its columns with the numbers and the types of the table's."""
        import pyarrow.parquet as pq

        from headrace.core.parquet.chunks import ChunkFile
        from headrace.core.parquet.compact import NotUnderstood

        file = self.file(split.file)
        if file.in_store:
            raise NotUnderstood("a file of an Iceberg table in a store is read by the library")
        return ChunkFile(file), frozenset(self._same(pq.read_schema(file.path)))

    def _same(self, own: pa.Schema) -> list[str]:
        """Return which columns a file has with the numbers and the types of the table's."""
        import pyarrow.types as pt

        scan = self._settled()
        numbers = {each.name: str(each.field_id).encode() for each in scan.projection.fields}
        return [
            field.name
            for field in own
            if field.name in scan.schema.names
            and field.type == scan.schema.field(field.name).type
            and not pt.is_nested(field.type)
            and (field.metadata or {}).get(b"PARQUET:field_id") == numbers[field.name]
        ]

    def plain_files(self) -> Sequence[PlainFile]:
        """Return the files, if no row of them is deleted or filtered, and all have the columns of the table."""
        import pyarrow.parquet as pq

        splits, found = self.splits(), list[PlainFile]()
        for split in splits:
            file = self.file(split.file)
            if (
                file.in_store
                or split.rows < 0
                or self._runs is not None
                or not file.path.endswith(".parquet")
            ):
                return ()
            with pq.ParquetFile(file.path) as opened:
                if sorted(self._same(opened.schema_arrow)) != sorted(self.schema().names):
                    return ()
                found.append(PlainFile(file.path, opened.metadata.num_rows, {}))
        return found

    def locate(self, split: Split, row: int) -> Location:
        """Name the file, and the row among those that are read of it."""
        return Location(self.file(split.file).path, row)

    def _listed(self) -> list[InputFile]:
        return self._recorded(list(self._settled().tasks))

    def _recorded(self, paths: Sequence[str]) -> list[InputFile]:
        self._storage = store_options(self._settled().io.properties, next(iter(paths), ""))
        return super()._recorded(paths)

    def _named_by(self) -> str:
        return (
            f"{self._name} names it in its snapshot {self._settled().snapshot}: it may have "
            "been removed when snapshots expired. Read a later one."
        )

    def _look(self) -> Scan:
        import pyarrow as pa
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        from headrace.annex.lakes.tables import compact
        from headrace.sources.schemas import select

        table = opened(self._place, self._catalog)
        if table is None:
            raise NothingMatched(f"There is no Iceberg table {self._place} in the catalogue.")
        with told("read the snapshots of the Iceberg table", self._place):
            chosen = self._chosen(table)
            options = {} if self._condition is None else {"row_filter": self._condition}
            table.metadata = self._as_of(table.metadata, chosen)
            scan = table.scan(**options)
            every = schema_to_pyarrow(scan.projection(), include_field_ids=False)
            tasks = list(scan.plan_files()) if chosen is not None else []
        schema = pa.schema([pa.field(f.name, compact(f.type), f.nullable) for f in every])
        if self._columns is not None:
            schema = select(schema, self._columns)
        found = {place_of(task.file.file_path): task for task in tasks}
        location = storage_at(place_of(table.location()))
        local = [path for path in found if not location.may_name(path)]
        if local:
            raise SourceError(
                f"{self._name} lies in a store and names a file of this machine, "
                f"{local[0]!r}. Such a file is not read: others write the table, and could name any file of this "
                "machine."
            )
        ordered = dict(sorted(found.items()))
        return Scan(
            str(table.metadata.table_uuid),
            chosen,
            int(table.metadata.current_schema_id),
            table.metadata,
            table.io,
            scan.projection(),
            scan.row_filter,
            schema,
            ordered,
        )

    def _as_of(self, metadata: Any, snapshot: int | None) -> Any:
        """Return the metadata of a table in which a snapshot is the current one.

        Columns are those that the table has now; where a snapshot was asked for, those that it had then.
        """
        schema = self._schema_id
        if (
            schema is None
            and snapshot is not None
            and (self._snapshot is not None or self._moment is not None)
        ):
            schema = metadata.snapshot_by_id(snapshot).schema_id
        if schema is None:
            schema = metadata.current_schema_id
        return metadata.model_copy(update={"current_snapshot_id": snapshot, "current_schema_id": schema})

    def _chosen(self, table: Any) -> int | None:
        if self._snapshot is not None:
            if table.snapshot_by_id(self._snapshot) is None:
                known = [each.snapshot_id for each in table.metadata.snapshots][-3:]
                raise SourceError(
                    f"{self._name} has no snapshot {self._snapshot}; its last ones are "
                    f"{', '.join(map(str, known)) or 'none'}."
                )
            return self._snapshot
        if self._moment is not None:
            found = table.snapshot_as_of_timestamp(self._moment)
            if found is None:
                raise SourceError(f"{self._name} has no snapshot of that time: its first one is later.")
            return int(found.snapshot_id)
        current = table.current_snapshot()
        return None if current is None else int(current.snapshot_id)
