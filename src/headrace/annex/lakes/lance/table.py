"""Lance tables, by the library ``pylance``: opening them, what versions did to fragments, files of workers."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.lakes.delta.table import storage
from headrace.annex.lakes.places import within
from headrace.annex.lakes.sink import LakeTable
from headrace.annex.lakes.tables import typed
from headrace.core.door import install_hint
from headrace.core.files import safe_files
from headrace.core.files.safe_files import sync_fd
from headrace.core.files.staged import PARTS
from headrace.core.files.storage import Storage, storage_at
from headrace.core.stores.addresses import Options
from headrace.core.table_changes import Change, Kind, no_history
from headrace.errors import (
    HeadraceError,
    MissingLibrary,
    NothingMatched,
    OutputWriteFailed,
    SinkError,
    SourceError,
)

if TYPE_CHECKING:
    from headrace.core.files.staged import StagedStream


_SHOWN = 5
_WRITES = 14  # files of older ones lose which structs are null


def library() -> Any:
    """Return ``lance``."""
    try:
        import lance
    except ImportError as error:
        raise MissingLibrary(f"Lance tables need pylance: {install_hint('lance')}.") from error
    return lance


def check_writer() -> None:
    """Raise ``MissingLibrary`` for a ``lance`` that is too old to write all rows as they are."""
    version = str(library().__version__)
    if int(version.partition(".")[0]) < _WRITES:
        raise MissingLibrary(
            f"write_lance needs pylance {_WRITES} or newer, and {version} is installed: {install_hint('lance')}."
        )


def said(error: Exception) -> str:
    """Return what the library says, without the place in its own source.

    >>> said(ValueError("Not found: a/_versions, /home/runner/work/lance/rust/io.rs:653:26"))
    'Not found: a/_versions'
    """
    return " ".join(str(error).partition(", /")[0].split())[:300].rstrip(".")


@contextlib.contextmanager
def told(place: str, doing: str) -> Iterator[None]:
    """Raise our own errors for those of the library: what was done with which table."""
    try:
        yield
    except HeadraceError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        raise storage_at(place).failed(f"{doing} the Lance table {place}", error, said(error)) from None


def opened(place: str, options: Options, version: int | str | None) -> Any:
    """Return a table as it is now, or was in a version; raises ``NothingMatched`` if there is none."""
    lance = library()
    given = storage(place, options) or None
    with told(place, "open"):
        try:
            return lance.dataset(place, version=version, storage_options=given)
        except (ValueError, OSError) as error:
            if "not found" not in str(error).lower():
                raise
            try:
                versions = [
                    each["version"] for each in lance.dataset(place, storage_options=given).versions()
                ]
            except (ValueError, OSError):
                raise NothingMatched(f"There is no Lance table at {place}.") from None
            raise SourceError(
                f"The Lance table {place} has no version {version!r}; its last ones are "
                f"{', '.join(map(str, versions[-_SHOWN:]))}. Older ones may have been cleaned up."
            ) from None


RUN = "headrace.run"  # in what a version says of itself
_COLUMNS_ONLY = ("Merge", "Project")  # rows keep their values, and columns come or go


class _Fragment(NamedTuple):
    path: str
    deleted: Any  # by what its deletions are recognised
    files: tuple[str, ...]


class State(NamedTuple):
    """The fragments of one version, by their numbers."""

    version: int
    fragments: Mapping[int, _Fragment]

    @classmethod
    def of(cls, place: str, table: Any) -> State:
        """Look at an opened version."""
        found = {}
        for each in table.get_fragments():
            about = each.metadata
            files = tuple(file.path for file in about.files)
            deleted = None if about.deletion_file is None else str(about.deletion_file.asdict())
            found[each.fragment_id] = _Fragment(within(place, f"data/{files[0]}"), deleted, files)
        return cls(int(table.version), found)

    def digest(self) -> str:
        """Return what no other table has in the same version: names of files are made up at random."""
        names = "\n".join(each.files[0] for _, each in sorted(self.fragments.items()))
        return hashlib.sha256(names.encode()).hexdigest()[:32]


def history(place: str, opened: Callable[[int], Any], version: int, *, after: int = 0) -> Iterator[Change]:
    """Yield what versions did to the fragments, the latest first; ``opened`` returns the table as it was in one.

    Raises ``InputChanged`` where a version was cleaned up.
    """
    for number in range(version, after, -1):
        try:
            with told(place, "read the history of"):
                table = opened(number)
                before = State.of(place, opened(number - 1)) if number > 1 else State(0, {})
                found = _changes(table, before, State.of(place, table))
        except SourceError as error:
            why = f"some of its versions since {after} were cleaned up"
            raise no_history(f"The Lance table {place}", why) from error
        yield from found


def _changes(table: Any, before: State, after: State) -> list[Change]:
    was, now = before.fragments, after.fragments
    operation, about = done_in(table, after.version)
    name = f"version {after.version}" + (f" ({operation})" if operation else "")
    touched = [number for number in was.keys() & now.keys() if was[number] != now[number]]
    if operation in _COLUMNS_ONLY and all(was[each].deleted == now[each].deleted for each in touched):
        moved = [(was[each].path, now[each].path) for each in touched if was[each].path != now[each].path]
        return [Change(name, before.version, "rewrite", [new], {old}) for old, new in moved]
    added = [each.path for number, each in now.items() if number not in was]
    removed = {each.path for number, each in was.items() if number not in now}
    kind: Kind = "change" if removed or touched else "append"
    if operation == "Rewrite" and not touched:
        kind = "rewrite"
    elif operation in ("Overwrite", "Restore"):
        kind = "overwrite"
    added += [now[number].path for number in touched]
    removed |= {was[number].path for number in touched}
    return [Change(name, before.version, kind, added, removed, about.get(RUN, ""))]


def done_in(table: Any, version: int) -> tuple[str, Mapping[str, str]]:
    """Return what a version did, in the words of the library, and what it says of itself; "" if it does not say."""
    try:
        found = table.read_transaction(version)
    except (
        TypeError
    ) as error:  # the library cannot say what it did to indices, which only this operation does
        if "RewrittenIndex" in str(error):
            return "Rewrite", {}
        raise
    return ("", {}) if found is None else (type(found.operation).__name__, found.transaction_properties or {})


DATA = "data"


class LancePart(msgspec.Struct, frozen=True):
    """What a part says: which file of the table has its rows, and what is in it. Without rows there is none."""

    file: str
    rows: int
    bytes: int
    format: tuple[int, int]
    fields: list[list[str]]  # the path of each column of the file
    columns: list[int]
    arrow: str

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow)))


class LanceEncoder:
    """Writes rows to a file of the table, and what is to know of it to the part."""

    def __init__(
        self, table: LakeTable, stream: StagedStream, schema: pa.Schema, file: str, version: str | None
    ) -> None:
        """``file`` is its name in the table's ``data``, and ``version`` that of the format."""
        self._table, self._stream, self._file, self._version = table, stream, file, version
        self._schema = table.typed(schema)
        self._required = table.required()
        self._path = path_of(table, file)
        self._writer: Any = None
        self._like: Any = None  # what the library says of a file with such columns
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch at once."""
        if not batch.num_rows:
            return
        made = typed(batch, self._schema, self._required, f"{self._table.what} {self._table.place}")
        with self._told():
            if self._writer is None:
                self._open(made)
            self._writer.write_batch(made)
        self._rows += made.num_rows

    def _open(self, batch: pa.RecordBatch) -> None:
        library()
        from lance.file import LanceFileWriter
        from lance.fragment import LanceFragment

        first = pa.Table.from_batches([batch.slice(0, 1)])
        self._like = LanceFragment.create("memory://", first, data_storage_version=self._version).files[0]
        options = storage(self._path, self._table.files.storage.options) or None
        self._writer = LanceFileWriter(
            self._path, self._schema, version=self._version, storage_options=options
        )

    def close(self) -> int:
        """End the file, then write what it is."""
        size = 0
        with self._told():
            if self._writer is not None:
                writer, self._writer = self._writer, None
                writer.close()
                size = data_of(self._table).size_of(self._file) or 0
        if self._rows and self._table.files.syncs:
            with safe_files.file(self._path) as file:
                sync_fd(file.fileno())
        like = self._like
        part = LancePart(
            self._file if self._rows else "",
            self._rows,
            size,
            (like.file_major_version, like.file_minor_version) if self._rows else (0, 0),
            _paths_of(self._schema, like.fields) if self._rows else [],
            list(like.column_indices) if self._rows else [],
            base64.b64encode(self._schema.serialize().to_pybytes()).decode(),
        )
        self._stream.write(msgspec.json.format(msgspec.json.encode(part), indent=1) + b"\n")
        return self._rows

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError:
            raise
        except (ValueError, NotImplementedError) as error:
            raise SinkError(f"Cannot write to the Lance table {self._table.place}: {said(error)}.") from None
        except (OSError, RuntimeError) as error:
            words = self._table.files.storage.words(error, said(error))
            raise OutputWriteFailed(
                f"Cannot write {self._path}: {words} Fix the cause, and run the same command again."
            ) from None


def path_of(table: LakeTable, file: str) -> str:
    """Return the path or address of a file of the table."""
    return within(within(table.place, DATA), file)


def data_of(table: LakeTable) -> Storage:
    """Return the folder with the files of the table."""
    return storage_at(within(table.place, DATA), table.files.storage.options)


def prefix(run: str) -> str:
    """Return how the names of a run's files begin; that of no other run does."""
    return f"headrace-{run}."


def data_file(run: str, staged: str) -> str:
    """Return the name of the file with the rows of a part, by the part's staged name.

    >>> data_file("k3f9a2xq", "00000-0-7-5e.staged"), data_file("k3f9a2xq", "parts/9ab1-00000-0-7-5e.staged")
    ('headrace-k3f9a2xq.00000-0-7-5e.lance', 'headrace-k3f9a2xq.00000-0-7-5e.lance')
    """
    if staged.startswith(f"{PARTS}/"):  # it was uploaded by a worker, whose mark stands in front
        staged = staged.partition("-")[2]
    return f"{prefix(run)}{staged.removesuffix('.staged')}.lance"


def walked(fields: Sequence[Any], above: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number and the path of each column, and of what is in it."""
    for field in fields:
        path = (*above, field.name())
        yield field.id(), path
        yield from walked(field.children(), path)


def _paths_of(schema: pa.Schema, numbers: Sequence[int]) -> list[list[str]]:
    """Return the paths of columns that have numbers as a new table gives them."""
    from lance.schema import LanceSchema

    found = dict(walked(LanceSchema.from_pyarrow(schema).fields()))
    return [list(found[number]) for number in numbers]


def fragments_of(parts: Sequence[LancePart], columns: Any) -> list[Any]:
    """Return what a transaction says of parts, with the numbers that columns have in the table."""
    from lance.fragment import DataFile, FragmentMetadata

    numbers = {path: number for number, path in walked(columns.fields())}
    return [
        FragmentMetadata(
            id=0,
            files=[
                DataFile(
                    part.file,
                    [numbers[tuple(path)] for path in part.fields],
                    part.columns,
                    *part.format,
                    part.bytes,
                )
            ],
            physical_rows=part.rows,
        )
        for part in parts
    ]


def kind_of(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which a column is written.

    >>> print(kind_of(pa.string_view()), kind_of(pa.list_(pa.float32(), 3)), kind_of(pa.list_(pa.string(), 2)))
    string fixed_size_list<item: float>[3] None
    """
    if isinstance(kind, pa.BaseExtensionType):
        return kind if kind_of(kind.storage_type) == kind.storage_type else None
    if pt.is_string_view(kind) or pt.is_binary_view(kind):
        return pa.string() if pt.is_string_view(kind) else pa.binary()
    if pt.is_fixed_size_list(kind):
        inner = kind
        while pt.is_fixed_size_list(inner) and inner.list_size:
            inner = inner.value_type
        return kind if pt.is_primitive(inner) and not pt.is_interval(inner) else None
    if pt.is_list(kind) or pt.is_large_list(kind):
        made = _field(kind.value_field)
        return None if made is None else pa.list_(made) if pt.is_list(kind) else pa.large_list(made)
    if pt.is_struct(kind):
        fields = [made for each in kind if (made := _field(each)) is not None]
        return pa.struct(fields) if fields and len(fields) == kind.num_fields else None
    if pt.is_map(kind):
        key, item = _field(kind.key_field), _field(kind.item_field)
        return None if key is None or item is None else pa.map_(key, item)
    if pt.is_dictionary(kind):
        return kind if kind_of(kind.value_type) == kind.value_type else kind_of(kind.value_type)
    refused = (
        pt.is_interval,
        pt.is_union,
        pt.is_decimal32,
        pt.is_decimal64,
        pt.is_list_view,
        pt.is_large_list_view,
    )
    return None if pt.is_run_end_encoded(kind) or any(test(kind) for test in refused) else kind


def _field(field: pa.Field) -> pa.Field | None:
    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    made = kind_of(kind)
    return None if made is None else pa.field(field.name, made, field.nullable)
