"""The verb that writes to a table of a database."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

from headrace.core.arguments import known_arguments
from headrace.core.target_ports import Sink
from headrace.dataset.writes import WriteVerbs
from headrace.errors import ArgumentError, nearest
from headrace.plan import ray_arguments
from headrace.plan.parameters import given_folder
from headrace.plan.verb_options import WriteOptions

if TYPE_CHECKING:
    from headrace.annex.databases.connections import Database
    from headrace.core.stores.addresses import Options
    from headrace.options import Mode
    from headrace.output.verification import Reached
    from headrace.result import Result
    from headrace.sinks.files import FileSink, TableOfFiles

_MODES: dict[str, Mode] = {
    "append": "resume",
    "overwrite": "overwrite",
    "error": "error",
    "upsert": "resume",
    "update": "resume",
}


class DatabaseWriteVerbs(WriteVerbs):
    """Verbs that write all rows to tables of databases."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.WRITE_SQL, options=WriteOptions)
    def write_sql(
        self,
        table: str,
        uri: str,
        *,
        mode: Literal["append", "overwrite", "error", "upsert", "update"] = "append",
        key: str | Sequence[str] | None = None,
        output: str | os.PathLike[str] | None = None,
        **options: Unpack[WriteOptions],
    ) -> Result:
        """Run the plan and insert its rows into a table of SQLite, DuckDB or PostgreSQL, each exactly once.

        Workers write parts to the local folder ``output``; this process inserts them. The rows of a part, and a row
        of the table ``headrace_commits`` that names run and part, are one transaction: after a kill at any moment
        the database itself says what is in. The folder has the journal, the record and the report of the run.

        Parameters
        ----------
        table
            The name of the table, maybe with its schema, ``"shop.sales"``. It is made if there is none. If there is
            one, columns go by their names, and each must hold all values of ours: the table is never changed. Arrays
            of one length, of float32 or float16, are ``vector`` of pgvector in PostgreSQL, and arrays in DuckDB.
        uri
            As for :func:`read_sql`.
        mode
            ``"append"`` adds rows, part by part. ``"overwrite"`` replaces all rows of the table in one transaction,
            when all parts are there. ``"error"`` refuses a table that has rows of others. ``"upsert"`` inserts each
            row, or updates the row of the table that has its key: all in one transaction, when all parts are there.
            Of several rows with one key, the last in the order of the input stays, and a warning says how many gave
            way. ``"update"`` is the same, and inserts no row: it writes the columns that the output has into rows
            that are there. A warning says how many keys the table has not.
        key
            With ``"upsert"`` and ``"update"``: the column or columns that tell rows apart. The table must have a
            unique constraint, or index, or primary key on just these; a table that is made gets a primary key. Rows
            without a key (nulls) are refused.
        output
            The folder of the run: new, empty, or of an earlier run of the same plan into the same table. Another run
            that adds rows needs another folder. Default: ``"<table>-in-<database>-output"`` in the working directory;
            the database is the name of its file, or of its server and itself. The folder also keeps the rows, as
            Parquet; once the run has finished, it may be removed.
        incremental
            Add the rows of input files that are new since the last run into ``output``, as in ``write_parquet``; that
            folder must stay. They go in once all are made: part by part, or merged in one transaction.
        schema, on_change, refresh, fix, provenance, durability
            As in ``write_parquet``. If a run goes on whose table is gone, ``on_change="continue"`` makes it anew and
            inserts again the parts that ``output`` keeps. If others deleted all its rows, it goes on without them.

        Raises
        ------
        SinkError
            A column is of a type that no table has, or does not fit the table that is there, with its name and both
            types; or the database refuses a transaction, or rows: nothing of that part is in the table then, and
            the same command goes on. Or a run goes on, or had finished, whose table is gone or has none of its rows.
        OutputExists
            ``mode="error"``, and the table has rows.
        ArgumentError, PlanChanged, ForeignOutput, RunLocked, SourceError, StepError, WorkerDied
            As in ``write_parquet``. ``MissingLibrary``: the driver is not installed.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> folder = tempfile.mkdtemp()
        >>> data = hr.range(3).with_options(engine="inline", progress=False)
        >>> data.write_sql("numbers", f"sqlite:///{folder}/a.db", output=f"{folder}/run").rows
        3
        >>> hr.read_sql("SELECT * FROM numbers", f"sqlite:///{folder}/a.db").take(1)
        [{'id': 0}]
        """
        name, asked = _table(table), str(mode)
        if asked not in _MODES:
            raise ArgumentError(
                f"write_sql: mode= is 'append', 'overwrite', 'error', 'upsert' or 'update', not {mode!r}."
                f"{nearest(asked, list(_MODES))}"
            )
        matched = _key(asked, key)
        from headrace.annex.databases.connections import parse
        from headrace.core.files.storage import storage_at

        database = parse(uri, "write_sql")
        folder = given_folder(f"{table}-in-{_name(database)}-output" if output is None else output)
        folder = storage_at(folder).on_disk(
            f"write_sql: output= is a folder of this machine, not {folder!r}."
        )

        def sink() -> Sink:
            from headrace.annex.databases.sink import SqlTable
            from headrace.sinks.files import FileSink
            from headrace.sinks.parquet import Parquet

            parts = FileSink(folder, Parquet())
            return SqlTable(parts, database=database, table=name, table_mode=mode, key=matched).sink()

        return self._write(sink, {**options, "mode": _MODES[mode]})


def saved(about: Mapping[str, Any], parts: FileSink, _: Options, reached: Reached) -> TableOfFiles | str:
    """Return the table that a plan describes, with its files; or why there is none."""
    from headrace.annex.databases.connections import parse
    from headrace.annex.databases.sink import SqlTable

    address = str(about["database"])
    if reached.uri is None and address.startswith("postgresql:"):
        return f"give uri= (--uri on a command line), the address of {address} with its user"
    database = parse(reached.uri or address, "verify")
    if str(database) != address:
        raise ArgumentError(f"uri= is the database {database}, and the output is in {address}.")
    key = tuple(about.get("key", ()))
    how: dict[str, Any] = {"table_mode": about["mode"], "key": key, "keeps_refused": True}
    return SqlTable(parts, database=database, table=str(about["table"]), **how)


def _name(database: Database) -> str:
    """Return what a folder says of a database: the file's name without its end, or the server and its database."""
    if database.scheme != "postgresql":
        return os.path.splitext(os.path.basename(database.path))[0]
    return re.sub(r"[^\w.-]+", "-", str(database).partition("://")[2]).strip("-")


def _key(mode: str, key: Any) -> tuple[str, ...]:
    try:
        names = (key,) if isinstance(key, str) else tuple(() if key is None else key)
    except TypeError:
        names = (key,)
    if any(not isinstance(name, str) or not name for name in names) or len(set(names)) < len(names):
        raise ArgumentError(f"write_sql: key= is the name of a column, or several names, not {key!r}.")
    matches = mode in ("upsert", "update")
    if matches and not names:
        raise ArgumentError(
            f"write_sql: mode={mode!r} needs key=, the column or columns that identify a row."
        )
    if not matches and names:
        raise ArgumentError(
            f"write_sql: key= is for mode='upsert' and mode='update'; with mode={mode!r} rows are not matched."
        )
    return names


def _table(table: Any) -> str:
    parts = table.split(".") if isinstance(table, str) else []
    if not 1 <= len(parts) <= 2 or not all(part and part.isprintable() and "'" not in part for part in parts):
        raise ArgumentError(
            f"write_sql: table= is the name of a table, such as 'sales' or 'shop.sales', not {table!r}."
        )
    if table.lower() == "headrace_commits":
        raise ArgumentError(
            "write_sql: Headrace keeps its own records in the table headrace_commits. Choose another name."
        )
    return str(table)
