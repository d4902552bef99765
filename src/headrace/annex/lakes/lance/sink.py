"""Parts as fragments of a Lance table, added by one transaction that names the run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from headrace.annex.lakes.delta.table import storage
from headrace.annex.lakes.lance.table import (
    DATA,
    RUN,
    LanceEncoder,
    LancePart,
    data_file,
    data_of,
    done_in,
    fragments_of,
    history,
    kind_of,
    library,
    opened,
    path_of,
    prefix,
    said,
    told,
)
from headrace.annex.lakes.places import within
from headrace.annex.lakes.sink import Columns, LakeTable
from headrace.core.files.staged import StagedStream
from headrace.core.files.storage import storage_at
from headrace.core.table_changes import Change, Lost
from headrace.core.target_ports import Format
from headrace.core.work import StagedFile
from headrace.errors import NothingMatched, OutputWriteFailed, SinkError
from headrace.sinks.files import cannot_hold

_AT_ONCE = 16
PARTS = "headrace.parts"


@dataclass(frozen=True)
class LanceColumns(Columns):
    """The columns of a Lance table, and the version of the format of its files."""

    format: str | None = None


@dataclass(frozen=True)
class LanceTable(LakeTable):
    """Small parts that name files in the table's ``data``, which workers write there.

    The transaction that makes fragments of them has the run's name, and a digest of the parts. Only a part that was
    published is looked at: files of attempts that were given up are in no version of the table.
    """

    what: ClassVar[str] = "Lance table"
    logs: ClassVar[tuple[str, ...]] = (DATA, "_transactions", "_versions")

    def format(self) -> Format:
        """Return what a part is: it names a file of the table."""
        return LanceFormat(self)

    def kind_of(self, kind: pa.DataType) -> pa.DataType | None:
        """Return the type of a column: its own, but for views; None where the library has no such one."""
        return kind_of(kind)

    @property
    def version(self) -> str | None:
        """The version of the format in which files of the table are written; None: the newest."""
        return self.columns.format if isinstance(self.columns, LanceColumns) else None

    # ------------------------------------------------------------ the table

    def open_table(self) -> Any | None:
        """Open the newest version."""
        try:
            return opened(self.place, self.files.storage.options, None)
        except NothingMatched:
            return None

    def key_of(self, file: StagedFile, run: str) -> str:
        """Return where the file of the table is that a part names."""
        return path_of(self, data_file(run, file.staged))

    def rows_lost(
        self, files: Sequence[StagedFile], missing: Sequence[StagedFile], run: str = ""
    ) -> Lost | None:
        """Say why the table has not all rows of a run; the files with its rows are those that the parts name."""
        paths = [(file, self.key_of(file, run or self.files.run)) for file in files if file.rows]
        gone = [file for file, path in paths if storage_at(path).known_size() == -1]
        return super().rows_lost(files, gone, run)

    def live(self, table: Any) -> dict[str, int]:
        """Return the first files of the fragments with their rows that are not deleted."""
        about = [fragment.metadata for fragment in table.get_fragments()]
        return {path_of(self, each.files[0].path): each.physical_rows - each.num_deletions for each in about}

    def history(self, table: Any) -> Iterator[Change]:
        """Yield what versions did, the latest first."""
        options = self.files.storage.options
        return history(self.place, lambda version: opened(self.place, options, version), int(table.version))

    def identity_of(self, table: Any) -> str:
        """Return the same for all: a Lance table has no number of its own."""
        return "there"

    def columns_of(self, table: Any) -> LanceColumns:
        """Return the columns of a table, unless its files are of the first format."""
        with told(self.place, "look at"):
            schema, version = table.schema, str(table.data_storage_version)
        if version in ("legacy", "0.1", "1", "1.0"):
            raise SinkError(
                f"The Lance table {self.place} has files in the first version of its format, which Headrace reads, "
                "but does not write. Write the table again with lance.write_dataset, or write to another table."
            )
        return LanceColumns(schema.remove_metadata(), format=version)

    def parts_of(self, table: Any, run: str) -> str | None:
        """Return what the transaction of a run says of its parts, in the versions that are kept."""
        return self.told_by(table, run).get(PARTS)

    def told_by(self, table: Any, run: str, after: int = 0, before: int | None = None) -> Mapping[str, str]:
        """Return what the transaction of a run says of itself; nothing where no version has it."""

        def about(version: int) -> dict[str, str]:
            try:
                return dict(done_in(table, version)[1])
            except (OSError, ValueError) as error:
                if "not found" in str(error).lower():  # removed meanwhile, with older ones
                    return {}
                raise

        with told(self.place, "read the history of"):
            versions = [int(each["version"]) for each in table.versions()]
            asked = [v for v in versions if v > after and (before is None or v < before)]
            told_there = map(about, sorted(asked, reverse=True))  # a table takes one question at a time
            return next((each for each in told_there if each.get(RUN) == run), {})

    # ------------------------------------------------------------ one commit

    def read(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> tuple[Any, pa.Schema | None]:
        """Read the parts."""
        parts = self._read(files)
        return parts, schema or next((part.schema for part in parts), None)

    def _read(self, files: Sequence[StagedFile]) -> list[LancePart]:
        """Read the parts, in the order of the shards, and see that what they name is there."""

        def read(file: StagedFile) -> LancePart:
            path = within(self.files.root, file.name)
            try:
                with self.files.storage.opened(file.name) as data:
                    part = msgspec.json.decode(data.read(), type=LancePart)
                if part.rows and data_of(self).size_of(part.file) != part.bytes:
                    raise FileNotFoundError(part.file)
                return part
            except (OSError, msgspec.MsgspecError) as error:
                raise OutputWriteFailed(
                    f"The part {path} of this run, or the file that it names in {within(self.place, DATA)}, is gone "
                    f"or damaged ({' '.join(str(error).split())[:200]}), so no rows were added to the Lance table "
                    f"{self.place}. Write with another output=, which computes the rows again."
                ) from error

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-parts") as threads:
            return list(threads.map(read, sorted(files, key=lambda file: file.name)))

    def compare(self, table: Any, parts: Any, schema: pa.Schema | None) -> None:
        """Refuse columns that have other types now."""
        if schema is not None:
            self.check_types(table, schema, (part.schema for part in parts if part.rows))

    def commit(self, table: Any | None, parts: Any, schema: pa.Schema | None, mark: str) -> None:
        """Commit fragments."""
        lance = library()
        from lance.schema import LanceSchema

        if table is None:
            assert schema is not None
            columns, version = LanceSchema.from_pyarrow(self.stored(schema)), 0
        else:
            table = self._with_new_columns(table, schema)
            columns, version = table.lance_schema, int(table.version)
        fragments = fragments_of([part for part in parts if part.rows], columns)
        about = {RUN: self.files.run, PARTS: mark}
        adds = table is not None and self.table_mode != "overwrite"
        operation = lance.LanceOperation.Append(fragments) if adds else None
        operation = operation or lance.LanceOperation.Overwrite(columns, fragments)
        made = self._send(lance.Transaction(version, operation, transaction_properties=about))
        if adds:
            self._take_back(made, version)

    def faster(self) -> tuple[type[Exception], ...]:
        """Return the library's error."""
        from lance.commit import CommitConflictError

        return (CommitConflictError,)

    def told(self, doing: str) -> AbstractContextManager[None]:
        """Raise our own errors for those of the library."""
        return told(self.place, doing)

    def _send(self, transaction: Any) -> Any:
        """Commit, in one try: the library would not notice, in a further one, that the table has the run."""
        options = storage(self.place, self.files.storage.options) or None
        return library().LanceDataset.commit(self.place, transaction, storage_options=options, max_retries=0)

    def _take_back(self, made: Any, since: int) -> None:
        """Take out what was added a second time: by a driver that was taken for dead, and went on meanwhile.

        The library adds behind whatever was committed since the table was looked at, and that may be this very run.
        """
        if (
            int(made.version) == since + 1
            or self.told_by(made, self.files.run, since, int(made.version)).get(PARTS) is None
        ):
            return
        lance, begin = library(), prefix(self.files.run)
        twice: dict[str, list[int]] = {}
        for fragment in made.get_fragments():
            for file in fragment.metadata.files:
                if file.path.startswith(begin):
                    twice.setdefault(file.path, []).append(fragment.fragment_id)
        ours = [max(numbers) for numbers in twice.values()]  # the others may be compacted already
        operation = lance.LanceOperation.Delete([], ours, "false")
        options = storage(self.place, self.files.storage.options) or None
        lance.LanceDataset.commit(
            self.place, operation, read_version=int(made.version), storage_options=options
        )

    def _with_new_columns(self, table: Any, schema: pa.Schema | None) -> Any:
        """Add columns that the table has not, if that was asked for, and return it as it is then."""
        made = [] if schema is None or not self.merge else self.stored(schema)
        new = [field for field in made if field.name not in table.schema.names]
        if not new:
            return table
        with told(self.place, "add columns to"):
            table.add_columns(new)
        return self.open_table()


@dataclass(frozen=True)
class LanceFormat(Format):
    """A part that names a file of the table: its rows go there, in a format of Lance's own."""

    table: LanceTable

    suffix: ClassVar[str] = "lance.json"

    @property
    def kind(self) -> str:
        return self.table.what

    def options(self) -> dict[str, Any]:
        """Return no settings: files are compressed as the library does."""
        return {}

    def why_not_joined(self) -> str:
        """Say that no column is copied from Parquet files."""
        return "a Lance table has a format of its own"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for a column that no table holds, or that does not fit the table that is there."""
        made = self.table.stored(schema, part=True)
        if not len(made):
            raise SinkError(
                f"A {self.table.what} cannot hold rows without columns: keep at least one column."
            )
        failed = self._refused(made)
        for column in made if failed else ():
            if why := self._refused(pa.schema([column])):
                raise cannot_hold(self.kind, column, why)
        if failed:
            raise SinkError(f"A {self.table.what} cannot hold these columns: {failed}.")

    def _refused(self, schema: pa.Schema) -> str:
        """Say why the library makes no table of these columns; "" if it does."""
        empty = pa.table([pa.array([], column.type) for column in schema], schema=schema)
        try:
            library().write_dataset(empty, "memory://", data_storage_version=self.table.version)
        except (OSError, ValueError, RuntimeError, NotImplementedError) as error:
            return said(error)
        return ""

    def open(self, stream: StagedStream, schema: pa.Schema) -> LanceEncoder:
        """Return an encoder; its file is named for the staged part."""
        file = data_file(self.table.files.run, os.path.basename(stream.path))
        return LanceEncoder(self.table, stream, schema, file, self.table.version)
