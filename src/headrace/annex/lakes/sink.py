"""What lake tables share: parts in a folder of the table, and one commit that makes them its rows."""

from __future__ import annotations

import hashlib
import time
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import pyarrow as pa

from headrace.annex.lakes.places import within
from headrace.annex.lakes.tables import LakeFormat, fits, stored, sync_newest
from headrace.core import failpoints
from headrace.core.files.hive import folder_name, hive_values
from headrace.core.human import plural
from headrace.core.process import backoff
from headrace.core.table_changes import UNNAMED, Change, Lost
from headrace.core.target_ports import Format, Sink
from headrace.core.work import HOME, SUCCESS, StagedFile
from headrace.errors import HeadraceError, InputChanged, OutputExists, OutputWriteFailed, SinkError
from headrace.sinks.files import TableOfFiles
from headrace.sinks.parquet import Parquet

_SHOWN = 20
_MOST = 5  # versions in a message
_TRIES = 20


@dataclass(frozen=True)
class Columns:
    """What a table is, as far as parts must fit it: its columns, those that name folders, those without nulls."""

    schema: pa.Schema
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class LakeTable(TableOfFiles):
    """A table with its parts in a folder of its own, which its readers do not see before ``reveal``.

    A subclass looks at the table and commits; the name of the run in that commit decides whether it was done.
    """

    table_mode: Literal["append", "overwrite", "error", "add_columns"] = field(default="append", kw_only=True)
    merge: bool = field(default=False, kw_only=True)
    columns: Columns | None = field(default=None, kw_only=True, repr=False)  # when it is bound
    there: str = field(default="", kw_only=True, repr=False)

    what: ClassVar[str] = "table"
    adds: ClassVar[str] = "rows"
    adding: ClassVar[str] = "schema_mode='merge' adds columns"
    logs: ClassVar[tuple[str, ...]] = ()
    """Folders of the table in which a commit leaves files."""

    def format(self) -> Format:
        """Return Parquet with the types of the table."""
        return LakeFormat(self, typing.cast(Parquet, self.files.format))

    def sink(self) -> Sink:
        """Return a sink whose parts go to this table, which reads empty texts in names of folders as nulls."""
        return self.files.in_format(self.format(), self, empty_folders=False)

    # ------------------------------------------------------------ the table, for subclasses

    @property
    def place(self) -> str:  # type: ignore[override]
        """Where the table is: the folder above that of the parts."""
        return self.files.root.rpartition("/")[0] or "/"

    def open_table(self) -> Any | None:
        """Return the table as it is now; None if there is none."""
        raise NotImplementedError

    def columns_of(self, table: Any) -> Columns:
        """Return what a table is; raises ``SinkError`` if it cannot be written to."""
        raise NotImplementedError

    def parts_of(self, table: Any, run: str) -> str | int | None:
        """Return what the commit of a run says of its parts; None if the table has no such commit."""
        raise NotImplementedError

    def live(self, table: Any) -> Mapping[str, int]:
        """Return how many rows each file of a table has that are not deleted, by what ``key_of`` gives."""
        raise NotImplementedError

    def history(self, table: Any) -> Iterator[Change]:
        """Yield what versions did to the files, the latest first; ``InputChanged`` where that is not known."""
        raise NotImplementedError

    def has_run(self, table: Any, run: str) -> bool:
        """Say whether a table has the commit of a run."""
        return self.parts_of(table, run) is not None

    def revealed(self, run: str = "") -> bool:
        """Say whether the table as it is now has the commit of this run, or of another."""
        table = self.open_table()
        return table is not None and self.has_run(table, run or self.files.run)

    def rows_lost(
        self, files: Sequence[StagedFile], missing: Sequence[StagedFile], run: str = ""
    ) -> Lost | None:
        """Say why the table has not all rows that a run has added to it; None if it has them, as far as it tells.

        ``missing``: those among its parts whose files are not there. Without ``run``, it is the bound one. No file
        of the table is opened.
        """
        table, run = self.open_table(), run or self.files.run
        rows = {self.key_of(file, run): file.rows for file in files if file.rows}
        if table is None and not rows:
            return None  # no column was known, so none was made
        what = f"the {self.what} {self.place}"
        added = f"the {plural(sum(rows.values()), 'row')} that this run added"
        if table is None:
            return Lost("no table", f"{what} is gone, and with it {added}")
        live = self.live(table)
        broken = [path for path in (self.key_of(file, run) for file in missing) if path in live]
        if broken:
            files_of_run = "a file" if len(broken) == 1 else f"{len(broken):,} files"
            return Lost(
                "none",
                f"{what} cannot be read: {files_of_run} of this run that it names, {broken[0]}, "
                f"{'is' if len(broken) == 1 else 'the first of them, are'} not there",
            )
        if all(live.get(path, 0) >= count for path, count in rows.items()):
            return None
        return lost(what, added, run, rows, live, self.history(table))

    def kept_rows(self, run: str) -> str:
        """Say that the rows of a run are in the table: others may have changed them since."""
        return f"its rows are in the table already ({self.what} {self.place})" if self.revealed(run) else ""

    def table_there(self) -> str:
        """Return what tells the table that is there from others in its place; "" if there is none."""
        table = self.open_table()
        return "" if table is None else self.identity_of(table)

    def identity_of(self, table: Any) -> str:
        """Return what tells a table from others in its place."""
        raise NotImplementedError

    def check_same(self, begun_with: str, *, needed: bool = False) -> None:
        """Raise ``SinkError`` if another table, or none, is in the place of that which the bound run began with.

        ``needed``: earlier runs of the output have added rows to it.
        """
        self._check_same(self.open_table(), begun_with, needed=needed)

    def _check_same(self, table: Any | None, begun_with: str, *, needed: bool = False) -> None:
        there = "" if table is None else self.identity_of(table)
        if (
            self.table_mode == "overwrite"
            or there == begun_with
            or not (begun_with or (needed and not there))
        ):
            return
        now = "was replaced by a new table in the same place" if there else "is gone"
        raise SinkError(
            f"The {self.what} {self.place} {now} since this run began to add rows to it. Nothing was added: restore "
            "the table and run the same command again, or write with another output=, which adds all rows to the "
            "table that is there now."
        )

    def key_of(self, file: StagedFile, run: str) -> str:
        """Return the path or address of the file of the table that has the rows of a run's part."""
        return within(self.files.root, file.name)

    def kind_of(self, kind: pa.DataType) -> pa.DataType | None:
        """Return the type in which a column is written; None if no table of this format has one."""
        return stored(kind)

    def written(self, schema: pa.Schema) -> pa.Schema:
        """Return columns as files have them: with what else is noted there of each."""
        return schema

    # ------------------------------------------------------------ columns

    @property
    def every_row(self) -> bool:
        """See ``Target``: new columns have a value for each row."""
        return self.table_mode == "add_columns"

    def describe(self) -> dict[str, Any]:
        """Return how the table is written to."""
        return {"mode": self.table_mode, **({"schema_mode": "merge"} if self.merge else {})}

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for a column that no table holds, or that does not fit the table that is there."""
        self.stored(schema)

    def stored(self, schema: pa.Schema, *, folders: bool = False, part: bool = False) -> pa.Schema:
        """Return the columns with the types in which they are written: those of the table, if there is one.

        Columns that name folders are not written, and stay as they are, unless ``folders`` asks for theirs, too.
        ``part``: some columns of the output are not among these.
        """
        found = []
        there = None if self.columns is None else self.columns.schema
        for column in schema:
            kind = self.kind_of(column.type)
            named = column.name in self.files.partition_by and not folders
            if kind is None:
                raise SinkError(
                    f"The column {column.name!r} is of type {column.type}, which no {self.what} has. Convert it in a "
                    "step, for example to a text, or leave it out with drop_columns."
                )
            if there is not None:
                kind = self._fitting(column.name, kind, there)
            found.append(pa.field(column.name, column.type if named else kind))
        if there is not None and not part:
            self._check_left_out(schema, there)
        return pa.schema(found)

    def _fitting(self, name: str, kind: pa.DataType, there: pa.Schema) -> pa.DataType:
        at = there.get_field_index(name)
        if at < 0:
            if self.merge:
                return kind
            raise SinkError(
                f"The {self.what} {self.place} has no column {name!r}; it has {', '.join(there.names[:_SHOWN])}. "
                f"{self.adding}; or rename or drop it here."
            )
        held = there.field(at).type
        there_kind = self.kind_of(held) or held
        if not fits(kind, there_kind):
            raise SinkError(
                f"The column {name!r} is of type {kind}, and the {self.what} {self.place} has it as {held}, which "
                "does not hold all its values as they are. Convert the column in a step, or write to another table."
            )
        return there_kind

    def _check_left_out(self, schema: pa.Schema, there: pa.Schema) -> None:
        for column in there:
            if column.name not in (*schema.names, *self.files.partition_by) and not column.nullable:
                raise SinkError(
                    f"The {self.what} {self.place} has a column {column.name!r} that must not be null, and the "
                    "output has none of that name. Add it in a step."
                )

    def typed(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a part as files have them."""
        return self.written(self.stored(schema, part=True))

    def required(self) -> set[str]:
        """Return the columns in which the table takes no nulls."""
        return set() if self.columns is None else {f.name for f in self.columns.schema if not f.nullable}

    # ------------------------------------------------------------ in the driver

    def bind(self, sink: Sink) -> Sink:
        """Look at the table that is there."""
        bound = self.of(sink)
        if "-" in bound.files.run and self.table_mode != "add_columns":  # a further run adds to the first
            bound = replace(bound, table_mode="append")
        table = bound.open_table()
        if table is None:
            return bound.sink()
        columns = bound.columns_of(table)
        bound = replace(bound, columns=columns, there=bound.identity_of(table))
        if not bound.has_run(table, bound.files.run):
            if bound.table_mode == "error":
                raise OutputExists(
                    f"The {self.what} {self.place} exists already. mode='append' adds to it, mode='overwrite' "
                    "replaces its rows."
                )
            bound._check_partitions(columns)
        return bound.sink()

    def check_types(self, table: Any, schema: pa.Schema, made: Iterable[pa.Schema]) -> None:
        """Refuse parts, by their columns, that have not the types which the table has now."""
        now = replace(self, columns=self.columns_of(table)).stored(schema)
        for column in (column for part in made for column in part):
            if column.type != now.field(column.name).type:
                raise SinkError(
                    f"The {self.what} {self.place} was changed during this run: its column {column.name!r} is "
                    f"{now.field(column.name).type} now, and the parts have it as {column.type}. Nothing was added: "
                    "write with another output=, so that they are made with the new type."
                )

    def _check_partitions(self, columns: Columns) -> None:
        if columns.partition_by != self.files.partition_by:
            asked = list(self.files.partition_by) or "nothing"
            raise SinkError(
                f"The {self.what} {self.place} is partitioned by {list(columns.partition_by) or 'nothing'}, and "
                f"partition_by= is {asked}. Give it as the table has it: new files must be divided like the old ones."
            )

    # ------------------------------------------------------------ one commit

    def reveal(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> None:
        """Make the parts rows of the table in one commit, unless that was done. ``schema``: that of the run.

        It is made on the very version of the table that the parts were compared with.
        """
        mark, parts = self.mark_of(files), None
        for _ in self.tries():
            table = self.open_table()
            if table is not None and self._is_done(table, mark):
                break
            self._check_same(table, self.there)
            if parts is None:
                parts, schema = self.read(files, schema)
            if parts is None or (schema is None and table is None):  # no column is known
                return
            if table is not None:
                self._check_mode()
                self.compare(table, parts, schema)
            failpoints.hit("table.filled")
            try:
                self.commit(table, parts, schema, mark)
                break
            except Exception as error:
                now = self.open_table()
                if now is not None and self._is_done(now, mark):  # the answer was lost
                    break
                if isinstance(error, HeadraceError):  # it says what to do
                    raise
                if not isinstance(error, self.faster()) and (table is not None or now is None):
                    raise self._failed(error) from None
        if self.files.syncs and self.logs:  # before ``_SUCCESS`` says that it is there
            sync_newest(self.place, self.logs)

    def mark_of(self, files: Sequence[StagedFile]) -> Any:
        """Return what the commit of a run says of its parts, which tells them from others of the same run."""
        return digest_of(files)

    def read(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> tuple[Any, pa.Schema | None]:
        """Return what is to be committed, and the columns of the run; nothing where the table need not know of it."""
        raise NotImplementedError

    def compare(self, table: Any, parts: Any, schema: pa.Schema | None) -> None:
        """Refuse where the table has changed since the parts were made, such that they do not fit any more."""
        raise NotImplementedError

    def commit(self, table: Any | None, parts: Any, schema: pa.Schema | None, mark: Any) -> None:
        """Commit in one try, on the version of ``table``; None: the table is made."""
        raise NotImplementedError

    def faster(self) -> tuple[type[Exception], ...]:
        """Return what the library raises where somebody else has committed meanwhile."""
        raise NotImplementedError

    def told(self, doing: str) -> AbstractContextManager[None]:
        """Raise our own errors for those of the library: what was done with this table."""
        raise NotImplementedError

    def _check_mode(self) -> None:
        if self.table_mode == "error":
            raise OutputExists(
                f"Another program made the {self.what} {self.place} during this run, and mode='error' was given. "
                "That table was not changed: mode='append' adds to it."
            )

    def _failed(self, error: Exception) -> Exception:
        try:
            with self.told(f"add the {self.adds} of this run to"):
                raise error
        except HeadraceError as words:
            return SinkError(
                f"{words} The table has none of them, and they are kept: run the same command again."
            )

    def tries(self) -> Iterator[None]:
        """Try to commit, with a pause where somebody else was faster; raise ``OutputWriteFailed`` after the last."""
        for attempt in range(1, _TRIES + 1):
            yield
            time.sleep(backoff(attempt, 0.01, 2.56, spread=1.0))
        raise OutputWriteFailed(
            f"Other programs write to the {self.what} {self.place} all the time: {_TRIES} tries to add the rows of "
            "this run failed. The rows are kept: run the same command again when fewer programs write."
        )

    def _is_done(self, table: Any, mark: object) -> bool:
        """Say whether the table has this run's commit; one of other parts of the same run is refused."""
        found = self.parts_of(table, self.files.run)
        if found is not None and found != mark:
            raise SinkError(
                f"The {self.what} {self.place} has rows of this run already, but {self.files.root} has other files "
                "now: the rows were made again after the table had them. Nothing was added. Check which rows are "
                "right, and write new ones with another output=."
            )
        return found is not None

    def why_not_grown(self) -> str:
        """Say why new input cannot become further parts of a run that is finished."""
        return f"its rows are in the {self.what} {self.place}: process new input with another output="

    def path_of(self, name: str) -> str:
        """Return the path of a part from the table on."""
        return within(self.files.root, name).removeprefix(f"{self.place.rstrip('/')}/")

    def values_of(self, name: str) -> dict[str, str | None]:
        """Return the values of the columns that folders are named for; an empty text is refused, as it is no null."""
        values = hive_values(within(self.files.root, name)) if self.files.partition_by else {}
        found = {column: values.get(column) for column in self.files.partition_by}
        for column, value in found.items():
            if value == "":
                raise SinkError(
                    f"The column {column!r}, by which the {self.what} {self.place} is partitioned, holds an empty "
                    f"text ({folder_name(column, value)!r}), which tables read as null. Replace it with another text "
                    "or with null."
                )
        return found


def digest_of(files: Sequence[StagedFile]) -> str:
    """Return what tells a run's parts from others of the same run."""
    told = "".join(f"{f.name} {f.rows} {f.size} {f.crc32}\n" for f in sorted(files, key=lambda f: f.name))
    return hashlib.sha256(told.encode()).hexdigest()


def free_folder(files: Sink, mode: str, refresh: str | None) -> Sink:
    """Return ``files``; to overwrite where a run has finished there, those in the next free folder: ``name-2``, …

    With ``refresh`` "rejected", those of the last run, whose rejected rows are tried again.
    """
    number, last, free = 1, files, files
    while mode == "overwrite" and free.storage.size_of(SUCCESS) is not None:
        number += 1
        last, free = free, files.in_folder(f"{files.root}-{number}")
    begun = any(free.storage.size_of(f"{HOME}/{name}") is not None for name in ("current", "next"))
    return last if refresh == "rejected" and not begun else free


def lost(
    what: str,
    added: str,
    run: str,
    rows: Mapping[str, int],
    live: Mapping[str, int],
    history: Iterable[Change],
) -> Lost | None:
    """Say what became of the rows of a run that are not in its own files, by what later versions did to files.

    ``rows`` are those of each file that the run added, ``live`` those of each file that the table has now.

    >>> ours, moved = Change("1", 0, "append", ["a"], [], "run"), Change("2", 1, "rewrite", ["b"], ["a"])
    >>> print(lost("t", "rows", "run", {"a": 2}, {"b": 3}, [moved, ours]))
    None
    >>> deleted = Change("3", 2, "change", ["b"], ["b"])
    >>> lost("t", "rows", "run", {"a": 2}, {"b": 3}, [deleted, moved, ours]).left
    'unknown'
    """
    since, known, found = list[Change](), True, False
    try:
        for change in history:
            if change.run == run:
                found = True
                break
            since.append(change)
    except InputChanged:
        known = False
    if known and not found:
        why = f"{what} has never had {added}: another table was made in the place of the one that had them"
        return Lost("no table", why)
    ours, taken, moved = {*rows}, list[Change](), not known
    for change in reversed(since):
        gone = UNNAMED in change.removed or not ours.isdisjoint(change.removed)
        if change.kind == "overwrite" or (gone and not _keeps_rows(change)):
            taken.append(change)
        if gone and change.kind != "overwrite":  # what is left of ours is there
            ours |= {*change.added}
            moved = moved or _keeps_rows(change)
    kept = sum(min(live.get(path, 0), count) for path, count in rows.items())
    if not taken:
        why = (
            f"{kept:,} of {added} are in the run's own files in {what}, and its history does not go back to the run, "
            "so it is not known whether the others were compacted or taken out"
        )
        return None if known else Lost("unknown", why)
    told = "; ".join(change.name for change in taken[: -_MOST - 1 : -1]) + "; …" * (len(taken) > _MOST)
    wiped = [change for change in taken if change.kind == "overwrite"]
    if not kept and (wiped or (known and ours.isdisjoint(live))):
        return Lost("none", f"{what} has none of {added} any more: {told}", bool((wiped or taken)[0].run))
    if not moved:
        least = f" (at least {kept:,} of them are)" if kept else ""
        return Lost("some", f"{what} has not all of {added} as they were{least}: {told}")
    return Lost(
        "unknown",
        f"others took rows out of {what}, or changed some, after this run ({told}), and compacted it, so it is not "
        f"known whether these are among {added}",
    )


def _keeps_rows(change: Change) -> bool:
    """Say whether all rows are there still: put into other files, or into those with new columns by a run of ours."""
    return change.kind == "rewrite" or (change.kind == "change" and bool(change.run))
