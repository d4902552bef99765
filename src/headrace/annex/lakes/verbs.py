"""Verbs that write to tables that are folders of files and a log."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

from headrace.annex.lakes.places import given_output, given_table, place_of, within
from headrace.core.arguments import known_arguments
from headrace.core.door import loaded
from headrace.dataset.writes import WriteVerbs
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments
from headrace.plan.parameters import RowsPerFile, given_partition_by, given_rows_per_file
from headrace.plan.verb_options import LakeOptions

if TYPE_CHECKING:
    from headrace.annex.lakes.columns import AddsColumns
    from headrace.annex.lakes.sink import LakeTable
    from headrace.core.stores.addresses import Options
    from headrace.core.target_ports import Sink
    from headrace.options import Mode
    from headrace.output.verification import Reached
    from headrace.result import Result
    from headrace.sinks.files import FileSink, TableOfFiles

_MODES: dict[str, Mode] = {
    "append": "resume",
    "overwrite": "overwrite",
    "error": "error",
    "add_columns": "resume",
}
OUTPUT = "headrace-output"
ADD_COLUMNS: Literal["add_columns"] = "add_columns"


_HOMES = {"Table": "sink", "NewColumns": "columns", "Source": "source"}


class _Lake(NamedTuple):
    """A kind of tables, and in which modes they are written."""

    name: str
    modes: Mapping[str, Mode] = _MODES

    @property
    def verb(self) -> str:
        """The verb that writes them."""
        return f"write_{self.name.lower()}"

    def loaded(self, which: Literal["Table", "NewColumns", "Source"]) -> Any:
        """Import what writes its tables, what adds columns to them, or what reads them."""
        return loaded(f"headrace.annex.lakes.{self.name.lower()}.{_HOMES[which]}:{self.name}{which}")


_DELTA, _ICEBERG, _LANCE = _Lake("Delta"), _Lake("Iceberg"), _Lake("Lance", {**_MODES, "create": "error"})


class LakeWriteVerbs(WriteVerbs):
    """Verbs that write all rows to tables of Delta Lake, Iceberg and Lance."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.WRITE_DELTA, options=LakeOptions)
    def write_delta(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Literal["append", "overwrite", "error", "add_columns"] = "append",
        partition_by: str | Sequence[str] | None = None,
        schema_mode: Literal["merge"] | None = None,
        where: str | None = None,
        output: str = OUTPUT,
        compression: str | None = "auto",
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[LakeOptions],
    ) -> Result:
        """Run the plan and add its rows to a Delta table, all in one commit at the end.

        Workers write Parquet files to a folder of the table, which its readers do not see. When all are there, one
        transaction adds them, under the name of the run. So the table itself shows whether it has them, also after a
        kill at any moment or a lost answer, and they are added once. Readers see the old version until then.

        Parameters
        ----------
        path
            The folder of the table, or its address (``s3://``, ``gs://``, ``az://``, ``abfs://``). A table is made if
            there is none.
        mode
            ``"append"`` adds the rows. ``"overwrite"`` replaces all rows of the table; older versions stay readable.
            ``"error"`` refuses a table that is there. ``"add_columns"`` adds new columns to the rows of the table
            that the plan reads, in one commit; old columns are copied as they are stored: see docs/tables.md.
        partition_by
            Columns whose values name folders, as in ``write_parquet``; those of the table, if there is one.
        schema_mode
            None: columns go by their names, each must be in the table and fit its type, and columns that are not
            given are null. ``"merge"``: columns that the table has not are added to it.
        where
            With ``"add_columns"``: which rows get values, such as ``"score IS NULL"``; as in ``filter(expr=)``, or in
            SQL. The other rows keep the value that they have, or get null. Default: all rows.
        output
            The name of the folder that this run has in the table, with its parts, its journal and its report. A
            further run that adds rows needs another name, such as the day; with ``"overwrite"`` a further run finds
            one by itself. What the table refers to in it must stay; the table's own VACUUM removes it in time.
        compression, schema, on_change, incremental, key, refresh, fix, provenance, durability, min_rows_per_file,
        max_rows_per_file, storage_options
            As in ``write_parquet``. With ``mode="add_columns"``, ``refresh="changed"`` computes only rows of another
            version, by the column that ``provenance`` names.

        Raises
        ------
        SinkError
            A column is of a type that no Delta table has, or does not fit the one that is there; the table asks of
            writers what is not done here; or it was changed meanwhile so that the parts do not fit. The table is as
            it was then.
        OutputExists
            ``mode="error"``, and there is a table.
        MissingLibrary
            ``deltalake`` is not installed: the extra ``delta``.
        ArgumentError, PlanChanged, ForeignOutput, RunLocked, OutputWriteFailed, SourceError, StepError, WorkerDied
            As in ``write_parquet``.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> folder = tempfile.mkdtemp()
        >>> data = hr.range(3).with_options(engine="inline", progress=False)
        >>> data.write_delta(f"{folder}/numbers").rows
        3
        >>> _ = data.write_delta(f"{folder}/numbers", output="more")
        >>> hr.read_delta(f"{folder}/numbers").count(), hr.read_delta(f"{folder}/numbers", version=0).count()
        (6, 3)
        """
        place, storage_options, name = _given("write_delta", path, storage_options, output, schema_mode)
        folders, rows = given_partition_by(partition_by, None), _rows_per_file(options)
        if mode == ADD_COLUMNS and folders:
            raise ArgumentError(
                "write_delta: mode='add_columns' keeps the partitions: leave out partition_by=."
            )

        def files() -> tuple[FileSink, dict[str, Any]]:
            from headrace.sinks.files import FileSink
            from headrace.sinks.parquet import Parquet

            parts = FileSink(
                within(place, name),
                Parquet(compression),
                storage_options=storage_options,
                max_rows_per_file=rows.most,
                partition_by=folders,
            )
            return parts, {"merge": schema_mode == "merge"}

        return self._write_table(_DELTA, files, f"hr.read_delta({place!r})", mode, where, options)

    @known_arguments(also=ray_arguments.WRITE_ICEBERG, options=LakeOptions)
    def write_iceberg(
        self,
        table_identifier: str,
        *,
        catalog: str | Mapping[str, Any] | None = None,
        catalog_kwargs: Mapping[str, Any] | None = None,
        mode: Literal["append", "overwrite", "error", "add_columns"] = "append",
        where: str | None = None,
        output: str = OUTPUT,
        compression: str | None = "auto",
        **options: Unpack[LakeOptions],
    ) -> Result:
        """Run the plan and add its rows to an Iceberg table, all in one snapshot at the end.

        Workers write Parquet files below the data of the table. When all are there, one snapshot adds them, with the
        name of the run in its summary. So the table itself shows whether it has them, also after a kill at any moment
        or a lost answer, and they are added once. Readers see the old snapshot until then.

        Parameters
        ----------
        table_identifier, catalog, catalog_kwargs
            As for :func:`read_iceberg`. The table is made if there is none, where the catalogue lets clients say
            where a table lies (SQL, Glue, Hive, DynamoDB; not REST), without partitions. One that is there is
            written as it is partitioned, with a file for each partition of a shard.
        mode
            ``"append"`` adds the rows. ``"overwrite"`` replaces all rows, in the same one snapshot; older ones stay
            readable. ``"error"`` refuses a table that is there. ``"add_columns"`` adds new columns to the rows of the
            table that the plan reads, as in ``write_delta``.
        where
            With ``"add_columns"``: which rows get values, as in ``write_delta``.
        output
            The name of the folder that this run has below the data of the table, as in ``write_delta``.
        compression, schema, on_change, incremental, key, refresh, fix, provenance, durability, min_rows_per_file,
        max_rows_per_file
            As in ``write_delta``.

        Raises
        ------
        SinkError
            A column is of a type that no Iceberg table has, is not in the table, or does not fit it; rows are not
            divided by the partitions of the table here, or have more than 10,000 in one shard; or the table was
            changed meanwhile so that the parts do not fit. The table is as it was then.
        OutputExists
            ``mode="error"``, and there is a table.
        MissingLibrary
            ``pyiceberg`` is not installed: the extra ``iceberg``.
        ArgumentError, PlanChanged, ForeignOutput, RunLocked, OutputWriteFailed, SourceError, StepError, WorkerDied
            As in ``write_parquet``.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> folder = tempfile.mkdtemp()
        >>> lake = {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": folder}
        >>> data = hr.range(3).with_options(engine="inline", progress=False)
        >>> data.write_iceberg("shop.numbers", catalog=lake).rows
        3
        >>> _ = data.write_iceberg("shop.numbers", catalog=lake, output="more")
        >>> hr.read_iceberg("shop.numbers", catalog=lake).count()
        6
        """
        from headrace.annex.lakes.iceberg.source import Catalog, given_identifier

        identifier = given_identifier(table_identifier, "write_iceberg")
        found = Catalog.given(catalog, catalog_kwargs, "write_iceberg")
        name, rows = given_output(output, "write_iceberg"), _rows_per_file(options)

        def files() -> tuple[FileSink, dict[str, Any]]:
            from headrace.annex.lakes.iceberg.sink import location_of
            from headrace.sinks.files import FileSink
            from headrace.sinks.parquet import Parquet

            location, store = location_of(found, identifier)
            folder = within(within(place_of(location), "data"), name)
            parts = FileSink(folder, Parquet(compression), storage_options=store, max_rows_per_file=rows.most)
            return parts, {"identifier": identifier, "catalog": found, "location": location}

        read = f"hr.read_iceberg({identifier!r}, catalog=…)"
        return self._write_table(_ICEBERG, files, read, mode, where, options)

    @known_arguments(also=ray_arguments.WRITE_LANCE, options=LakeOptions)
    def write_lance(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Literal["append", "overwrite", "create", "error", "add_columns"] = "append",
        schema_mode: Literal["merge"] | None = None,
        where: str | None = None,
        output: str = OUTPUT,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[LakeOptions],
    ) -> Result:
        """Run the plan and add its rows to a Lance table, all in one commit at the end.

        Workers write files into the ``data`` of the table, which its readers do not see: a fragment for each shard.
        When all are there, one transaction adds them, with the name of the run. So the table itself shows whether it
        has them, also after a kill at any moment or a lost answer, and they are added once.

        Parameters
        ----------
        path
            The folder of the table, or its address (``s3://``, ``gs://``, ``az://``, ``abfs://``). A table is made if
            there is none.
        mode
            ``"append"`` adds the rows. ``"overwrite"`` replaces all rows of the table; older versions stay readable.
            ``"create"`` and ``"error"`` refuse a table that is there. ``"add_columns"`` adds new columns to the rows
            of the table that the plan reads, and rewrites no file of it: see docs/tables.md.
        schema_mode
            None: columns go by their names, each must be in the table and fit its type, and columns that are not
            given are null. ``"merge"``: columns that the table has not are added to it.
        where
            With ``"add_columns"``: which rows get values, in the library's SQL, such as ``"score IS NULL"``. The
            other rows keep the value that they have, or get null. Default: all rows.
        output
            The name of the folder that this run has in the table, with its journal and its report. A further run that
            adds rows needs another name, such as the day; with ``"overwrite"`` a further run finds one by itself.
        schema, on_change, incremental, key, refresh, fix, provenance, durability, min_rows_per_file,
        max_rows_per_file, storage_options
            As in ``write_parquet``. With ``mode="add_columns"``, ``refresh="changed"`` computes only rows of another
            version, by the column that ``provenance`` names.

        Raises
        ------
        SinkError
            A column is of a type that no Lance table has, or does not fit the one that is there; or the table was
            changed meanwhile so that the parts do not fit. The table is as it was then.
        OutputExists
            ``mode="create"`` or ``"error"``, and there is a table.
        MissingLibrary
            ``pylance`` is not installed, or older than 14: the extra ``lance``.
        ArgumentError, PlanChanged, ForeignOutput, RunLocked, OutputWriteFailed, SourceError, StepError, WorkerDied
            As in ``write_parquet``.

        Examples
        --------
        >>> import pytest, tempfile, headrace as hr
        >>> lance = pytest.importorskip("lance")
        >>> table = f"{tempfile.mkdtemp()}/numbers.lance"
        >>> data = hr.range(3).with_options(engine="inline", progress=False)
        >>> data.write_lance(table).rows
        3
        >>> _ = data.write_lance(table, output="more")
        >>> hr.read_lance(table).count(), lance.dataset(table).version
        (6, 2)
        """
        place, storage_options, name = _given("write_lance", path, storage_options, output, schema_mode)
        rows = _rows_per_file(options)
        if name in ("data", "tree"):
            raise ArgumentError(
                f"write_lance: output={name!r} is a folder of the table's own. Take another name."
            )

        def files() -> tuple[FileSink, dict[str, Any]]:
            from headrace.annex.lakes.lance.table import check_writer
            from headrace.sinks.files import Arrow, FileSink

            check_writer()
            folder = within(place, name)
            parts = FileSink(folder, Arrow(), storage_options=storage_options, max_rows_per_file=rows.most)
            return parts, {"merge": schema_mode == "merge"}

        return self._write_table(_LANCE, files, f"hr.read_lance({place!r})", mode, where, options)

    def _write_table(
        self,
        lake: _Lake,
        files: Callable[[], tuple[FileSink, dict[str, Any]]],
        read: str,
        mode: str,
        where: str | None,
        options: LakeOptions,
    ) -> Result:
        """Write to a table; ``files`` returns its parts, and what is to be known of it besides."""
        verb = lake.verb
        if mode not in lake.modes:
            *others, last = map(repr, lake.modes)
            raise ArgumentError(f"{verb}: mode= is {', '.join(others)} or {last}, not {mode!r}.")
        if where is not None and not (isinstance(where, str) and where.strip()):
            raise ArgumentError(f"{verb}: where={where!r}: it is a text, such as 'score IS NULL'.")
        if where is not None and mode != ADD_COLUMNS:
            raise ArgumentError(
                f"{verb}: where= goes with mode='add_columns'. Choose other rows by filter()."
            )
        given = {**options, "mode": lake.modes[mode]}
        if mode == ADD_COLUMNS:
            parts, how = files()
            how |= {"merge": True, "where": where}
            return self._add_columns(
                lake, lake.loaded("NewColumns")(parts, table_mode=mode, **how), read, given
            )

        def sink() -> Sink:
            from headrace.annex.lakes.sink import free_folder

            parts, how = files()
            free = free_folder(parts, mode, self._refresh(options))
            asked = "error" if mode == "create" else mode
            made: LakeTable = lake.loaded("Table")(free, table_mode=asked, **how)
            return made.sink()

        return self._write(sink, given, _rows_per_file(options).least)

    def _refresh(self, options: Mapping[str, Any]) -> str | None:
        asked: str | None = options.get("refresh") or self._options.refresh
        return asked

    def _add_columns(self, lake: _Lake, adding: AddsColumns, read: str, options: Mapping[str, Any]) -> Result:
        from headrace.annex.lakes.columns import check_plan, planned
        from headrace.annex.lakes.sink import free_folder

        check_plan(self._plan, self._options, lake.verb, options)
        older, run = None, self._options
        if self._refresh(options) == "changed":
            older = options.get("provenance")
            if older is None or adding.where is not None:
                raise ArgumentError(
                    f"{lake.verb}: refresh='changed' with mode='add_columns' chooses rows by a column with versions. "
                    "Name it by provenance='model_version', and leave out where=."
                )
            adding = replace(adding, files=free_folder(adding.files, "overwrite", None))
            options, run = {**options, "refresh": None}, run.updated({"refresh": None})
        plan, adding = planned(self._plan, lake.loaded("Source"), adding, read, older)
        return type(self)(plan, run)._write(adding.sink, options)


def _rows_per_file(options: LakeOptions) -> RowsPerFile:
    return given_rows_per_file(options.get("min_rows_per_file"), options.get("max_rows_per_file"))


def _given(verb: str, path: Any, storage_options: Any, output: Any, schema_mode: Any) -> tuple[str, Any, str]:
    """Return the place of a table in a folder, the options of its store, and the name of the run's folder in it."""
    if schema_mode not in (None, "merge"):
        raise ArgumentError(f"{verb}: schema_mode= is None or 'merge', not {schema_mode!r}.")
    place, storage_options = given_table(path, verb, storage_options)
    if os.path.isdir(os.path.join(place, "_headrace")):
        raise ArgumentError(
            f"{verb}: {place} is the output of a run, not a table. Give the folder of the table; the run gets a "
            "folder in it by output=."
        )
    return place, storage_options, given_output(output, verb)


def saved(
    about: Mapping[str, Any], parts: FileSink, options: Options, reached: Reached
) -> TableOfFiles | str:
    """Return the table that a plan describes, with its files; or why there is none."""
    how: dict[str, Any] = {"table_mode": about["mode"], "merge": about.get("schema_mode") == "merge"}
    adds = about["mode"] == ADD_COLUMNS
    how |= {"where": about.get("where")} if adds else {}
    lake = next(each for each in (_DELTA, _ICEBERG, _LANCE) if about["kind"].startswith(each.name))
    if lake is _ICEBERG:
        from headrace.annex.lakes.iceberg.sink import location_of
        from headrace.annex.lakes.iceberg.source import Catalog

        if reached.catalog is None:
            return "give catalog= (--catalog on a command line), the catalogue of the table"
        catalog = Catalog.given(reached.catalog, None, "verify")
        identifier = str(about["table"])
        location, known = location_of(catalog, identifier)
        if _real(os.path.dirname(parts.root)) != _real(within(place_of(location), "data")):
            return f"the table {identifier} of the given catalogue is in {location}, not around this output"
        parts = replace(parts, storage_options={**known, **dict(options)})
        how |= {"identifier": identifier, "catalog": catalog, "location": location}
    made: LakeTable = lake.loaded("NewColumns" if adds else "Table")(parts, **how)
    return made


def _real(place: str) -> str:
    """Return a folder without links; an address as it is."""
    return place if "://" in place else os.path.realpath(place)
