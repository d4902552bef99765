"""Rows into a table: parts are staged as Parquet files, and inserted when they are published."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from headrace.annex.databases.table import (
    Presence,
    TableOfDatabase,
    Upsert,
    check_key,
    converted,
    count_up_to,
)
from headrace.annex.databases.transactions import (
    COMMITS,
    Refused,
    Transaction,
    forget,
    from_files,
    make_commits,
    note,
    noted_parts,
    quoted_table,
)
from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.human import plural
from headrace.core.table_changes import Lost
from headrace.core.target_ports import Moment, Sink
from headrace.core.terminal import warn
from headrace.core.work import StagedFile
from headrace.errors import OutputExists, SinkError
from headrace.output.names import is_of


@dataclass(frozen=True)
class SqlTable(TableOfDatabase):
    """Parts in a local folder, and their rows in a table.

    ``append``: each part's rows and its row in ``headrace_commits`` are one transaction, or those of all parts that
    are revealed together. ``overwrite``: when all parts are there, one transaction replaces all rows of the table; a
    further run adds its own. ``upsert``: one transaction then merges the rows of all parts, in their order, by
    ``key``, and notes each part; ``update``: only into rows that are there. A part that the table of commits names is
    never inserted again, so the database's own word decides what is done.
    """

    keeps_refused: bool = field(default=False, kw_only=True)
    """True: a part whose rows the database refuses stays, as nobody makes it again who only publishes."""

    by_part: ClassVar[bool] = True

    def bind(self, sink: Sink) -> Sink:
        """With ``error``, refuse a table with rows of others, with ``upsert`` one without that key."""
        bound = self.of(sink)
        if self.table_mode == "error" and not self._no_database():
            with self._transaction("look at") as transaction:
                ours = bool(noted_parts(transaction, bound._output_run) or bound._parts())
                others = not ours and transaction.columns(self.table) is not None
                if others and transaction.rows(f"SELECT 1 FROM {quoted_table(self.table)} LIMIT 1"):
                    raise OutputExists(
                        f"The table {self.table} in {self.database} has rows already, and mode='error' was asked "
                        "for. mode='append' adds to them, mode='overwrite' replaces them."
                    )
        return replace(bound, _there=self._look()).sink()

    def kept_rows(self, run: str) -> str:
        """Say why the rows that a run has in the table cannot be made anew; "" where they can."""
        if self.table_mode != "append" and self.table_mode != "error":
            return ""  # they are replaced
        if self._no_database():
            return ""
        with self._transaction("look at") as transaction:
            found = transaction.columns(self.table) is not None and noted_parts(transaction, run)
        return (
            f"the table {self.table} has rows of it already, which cannot be told from other rows, so all rows would "
            "be added once more"
            if found
            else ""
        )

    @property
    def moment(self) -> Moment:
        """Rows that are added go in part by part; what replaces others does so once all are there."""
        return Moment.TRANSACTION if self._part_by_part else Moment.COMMIT

    def reveal(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> None:
        """Insert the rows of parts, unless they are there; or replace or merge rows, with all parts of the run."""
        if self._part_by_part:
            self._insert_parts([file for file in files if not self._is_published(file)])
        elif self.key:
            self._upsert(sum(file.rows for file in files))
        else:
            self._replace(files)

    @property
    def _output_run(self) -> str:
        """The run of the output: a further one has its name, and a number."""
        return self.files.run.partition("-")[0]

    def _insert_parts(self, files: Sequence[StagedFile]) -> None:
        if not files:
            return
        with self._transaction("insert rows into", files[0]) as transaction:
            if transaction.is_first:
                make_commits(transaction)
            for file in files:
                # a part of later input may have the name of one without rows
                if not file.rows or note(transaction, self._output_run, file.name, self.table, file.rows):
                    self._insert_part(transaction, file)
            failpoints.hit("table.filled")
            transaction.commit()

    def _insert_part(self, transaction: Transaction, file: StagedFile) -> None:
        staged = self._staged(file)
        try:
            self._insert(transaction, staged)
        except Refused as error:
            how = "Change the table, and publish again; `headrace discard` drops the rows."
            if not self.keeps_refused:
                how = "Correct the rows in a step and run with on_change='continue', or change the table."
                with contextlib.suppress(OSError):
                    os.unlink(staged)  # so that a corrected run makes this shard again
            raise SinkError(
                f"The database {self.database} refuses rows of {file.name} for the table {self.table}: "
                f"{self._told(error)}. None of its rows were inserted. {how}"
            ) from None

    def _check_not_dropped(self, transaction: Transaction) -> None:
        noted = noted_parts(transaction, self._output_run) if self.table_mode != "overwrite" else ()
        if len(noted) > 1:  # the part that is about to be inserted is one
            raise SinkError(
                f"The table {self.table} in {self.database} was dropped after this run had inserted "
                f"{plural(len(noted) - 1, 'part')}. No new table was made, and nothing was inserted. Run the same "
                "command again: it says how to go on."
            )

    def finish(self, rows: int) -> None:
        """See that the database notes all rows."""
        if self._part_by_part:
            with self._transaction("look at") as transaction:
                make_commits(transaction)
                self._check_noted(transaction, rows)

    def close(self) -> None:
        """Let go of the database."""
        self._connections.close()

    def _check_noted(self, transaction: Transaction, rows: int) -> None:
        sql = f"SELECT CAST(coalesce(sum(rows), 0) AS BIGINT) FROM {COMMITS} WHERE run = '{self._output_run}'"
        noted = transaction.rows(sql)[0][0]
        if noted != rows:
            raise SinkError(
                f"The table {COMMITS} in {self.database} says that {noted:,} rows of this run are in {self.table}, "
                f"but {rows:,} were made. It was changed, or files were removed from {self.files.root}. Look at "
                "the table, and write with another output= to insert all rows."
            )

    def _parts(self) -> list[str]:
        """Return the names of the run's parts, in the order of their rows."""
        ours = re.compile(rf"part-.*-{self._output_run}(-\d+)?\.parquet")
        names = [name for name in os.listdir(self.files.root) if ours.fullmatch(name)]
        return sorted(names, key=lambda name: [int(n) for n in name.split("-")[1].split(".")])

    def _replace(self, files: Sequence[StagedFile]) -> None:
        """Replace the table's rows, unless it is noted that just these parts have done so.

        The parts of a further run are added to them.
        """
        done, further = self._all_parts(), "-" in self.files.run
        rows = sum(file.rows for file in files)
        names = [name for name in self._parts() if not further or is_of(name, self.files.run)]
        wanted = sum(file.rows for file in files if not further or is_of(file.name, self.files.run))
        with self._transaction("replace the rows in") as transaction:
            make_commits(transaction)
            if not note(transaction, self._output_run, done, self.table, rows):
                return
            transaction.execute(  # it had other parts
                f"DELETE FROM {COMMITS} WHERE run = '{self._output_run}' AND part <> '{done}'"
            )
            with self._undone("replace"):
                if not further and transaction.columns(self.table) is not None:
                    transaction.execute(f"DELETE FROM {quoted_table(self.table)}")
                written = sum(
                    self._insert(transaction, os.path.join(self.files.root, name)) for name in names
                )
            if written != wanted:
                raise SinkError(
                    f"The files in {self.files.root} have {written:,} rows, but {wanted:,} were made: some are gone. "
                    f"The table {self.table} was not changed. Run again with another output=."
                )
            failpoints.hit("table.filled")
            transaction.commit()

    def _upsert(self, rows: int) -> None:
        """Merge the rows of the parts that are not noted yet, all in one transaction."""
        with self._transaction("merge rows into") as transaction:
            make_commits(transaction)
            with self._undone("merge"):
                again, unknown = self._merge(transaction)
            self._check_noted(transaction, rows)
            failpoints.hit("table.filled")
            transaction.commit()
        if again:
            warn(
                f"{again:,} of the rows that were merged into {self.table} have the same key ({', '.join(self.key)}) "
                "as a later row. The table has the last row of each key, in the order of the input."
            )
        if unknown:
            warn(
                f"The table {self.table} has no row with {unknown:,} of the keys ({', '.join(self.key)}). "
                "Their values were not written: others deleted such rows, or there were none. mode='upsert' inserts "
                "them."
            )

    def _merge(self, transaction: Transaction) -> tuple[int, int]:
        upsert: Upsert | None = None
        for name in self._parts():
            with self._opened(os.path.join(self.files.root, name)) as file:
                rows = file.metadata.num_rows
                if not rows or not note(transaction, self._output_run, name, self.table, rows):
                    continue
                target = self._target(transaction, from_files(file.schema_arrow))
                if upsert is None:
                    unique = transaction.unique(self.table)
                    check_key(
                        self.database, self.table, self.key, transaction.columns(self.table) or (), unique
                    )
                    inserts = self.table_mode == "upsert"
                    upsert = Upsert(transaction, self.table, target, self.key, inserts=inserts)
                upsert.collect(converted(file, target))
        return (0, 0) if upsert is None else upsert.merge()

    # ------------------------------------------------------------ what is in the table still

    def has_parts(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        """Return which parts were inserted, as far as the database and the folder say."""
        noted: set[str] = set()
        if not self._no_database():
            with self._transaction("look at") as transaction:
                noted = noted_parts(transaction, self._output_run)
        if self.table_mode == "overwrite":
            with contextlib.suppress(OSError):  # no run has come so far
                if self._all_parts() in noted:
                    return [file for file in files if self._is_published(file)]
            return []
        by_name = self._part_by_part
        return [file for file in files if file.name in noted or (by_name and self._is_published(file))]

    def rows_lost(
        self, files: Sequence[StagedFile], missing: Sequence[StagedFile] = (), run: str = ""
    ) -> Lost | None:
        """Say why the table has not all rows of parts that were inserted; None if it has them.

        Rows are compared by their values with those that the folder keeps; of parts that it does not keep any more,
        only the number.
        """
        files = [file for file in files if file.is_part and file.rows]
        if found := self.gone(files):
            return found
        if not files:
            return None
        name, added = self._named, _added(files)
        with self._transaction("look at") as transaction:
            there = transaction.columns(self.table) or {}
            gone = [column for column in self._columns_of(files) if column not in there]
            if gone:
                return Lost("none", f"{name} has no column {gone[0]!r} any more, which this run wrote")
            if self.table_mode == "update":  # rows of others, who may have deleted some since
                return None
            total, lost = self._counted(transaction, files)
        others = f"others deleted {'' if self.key else 'or changed '}"
        if lost and lost >= total:
            return Lost("none", f"{name} has none of {added} any more: {others}them")
        if lost:
            return Lost("some", f"{name} has not all of {added}: {others}{lost:,} of them")
        return None

    def gone(
        self, files: Sequence[StagedFile], missing: Sequence[StagedFile] = (), run: str = ""
    ) -> Lost | None:
        """Say that there is no table any more into which parts were inserted; None if there is one."""
        files = [file for file in files if file.is_part and file.rows]
        if files and self._no_database():
            return Lost("no table", f"the database {self.database} is gone, and with it {_added(files)}")
        if files:
            with self._transaction("look at") as transaction:
                if transaction.columns(self.table) is None:
                    return Lost("no table", f"{self._named} is gone, and with it {_added(files)}")
        return None

    def _all_parts(self) -> str:
        """Return what is noted once the rows of all parts have replaced others, by the manifest of the run."""
        manifest = safe_files.content(Path(self.files.staging).parent / "manifest")
        return f"all {hashlib.sha256(manifest).hexdigest()}"

    @property
    def _named(self) -> str:
        return f"the table {self.table} in {self.database}"

    def insert_again(self, files: Sequence[StagedFile]) -> bool:
        """Insert the parts of a run again, whose table is gone; False if that is done at the end."""
        with self._transaction("insert rows into") as transaction:
            make_commits(transaction)
            forget(transaction, self._output_run)
            if self._part_by_part:
                self._insert_published(transaction, files)
            transaction.commit()
        return self._part_by_part

    def mend_records(self, files: Sequence[StagedFile], *, finished: bool) -> None:
        """Note parts again that are in the table, if somebody removed what was noted of them."""
        if self.table_mode == "overwrite" or (self.key and not finished):
            return  # all rows that are not noted are written at the end
        with self._transaction("look at") as transaction:
            noted = noted_parts(transaction, self._output_run)
            unknown = [file for file in files if file.is_part and file.rows and file.name not in noted]
            known = [file for file in unknown if finished or self._is_published(file)]
            if known and len(known) < len(unknown):  # it may have been inserted, and not have got its name
                doubtful = next(file for file in unknown if file not in known)
                raise SinkError(
                    f"The records of this run in the table {COMMITS} of {self.database} were removed, so it is not "
                    f"known whether the rows of {doubtful.name} are in the table {self.table}. Nothing was touched. "
                    "Look at the table, and write with another output= to insert all rows."
                )
            if known:
                make_commits(transaction)
                for file in known:
                    note(transaction, self._output_run, file.name, self.table, file.rows)
                transaction.commit()

    def _insert_published(self, transaction: Transaction, files: Sequence[StagedFile]) -> None:
        with self._undone("insert"):
            for file in files:
                if file.rows and self._is_published(file):
                    note(transaction, self._output_run, file.name, self.table, file.rows)
                    self._insert(transaction, self._final(file))

    def _counted(self, transaction: Transaction, files: Sequence[StagedFile]) -> tuple[int, int]:
        """Return how many rows some parts have, or keys, and how many of these the table has not."""
        presence, unseen, total, lost = None, 0, 0, 0
        for file in files:
            path = self._kept(file)
            if path is None:
                unseen += file.rows
                continue
            with self._opened(path) as part:
                target = self._target(transaction, from_files(part.schema_arrow))
                presence = presence or Presence(transaction, self.table, target, self.key)
                presence.collect(converted(part, target))
        if presence is not None:
            total, lost = presence.counted()
        if unseen and not self.key:
            others = count_up_to(transaction, quoted_table(self.table), total + unseen) - (total - lost)
            total, lost = total + unseen, lost + max(0, unseen - others)
        return total, lost

    def _columns_of(self, files: Sequence[StagedFile]) -> list[str]:
        path = next(filter(None, map(self._kept, files)), None)
        if path is None:
            return []
        with self._opened(path) as part:
            return list(part.schema_arrow.names)

    def _is_published(self, file: StagedFile) -> bool:
        return safe_files.size(self._final(file)) == file.size

    def _kept(self, file: StagedFile) -> str | None:
        """Return where a part is; None if it is gone."""
        places = self._final(file), self._staged(file)
        return next((path for path in places if safe_files.size(path) == file.size), None)

    def _staged(self, file: StagedFile) -> str:
        return os.path.join(self.files.staging, file.staged)

    def _final(self, file: StagedFile) -> str:
        return os.path.join(self.files.root, file.name)


def _added(files: Sequence[StagedFile]) -> str:
    return f"the {plural(sum(file.rows for file in files), 'row')} that this run inserted"
