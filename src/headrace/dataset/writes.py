"""Verbs that run the plan and write its rows to a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.core.arguments import known_arguments
from headrace.core.door import fills, loaded
from headrace.core.files.formats import FORMATS
from headrace.core.process import importing
from headrace.core.target_ports import Sink
from headrace.dataset.base import DatasetBase
from headrace.dataset.metrics import with_shadow
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments
from headrace.plan.parameters import given_folder, given_names, given_partition_by, given_rows_per_file
from headrace.plan.steps.selection import SelectColumns
from headrace.plan.verb_options import OF_RUNS, FileOptions, FolderOptions, OutputOptions, StoredOptions
from headrace.session.context import RunContext

if TYPE_CHECKING:
    import os

    from headrace.result import Result


_AHEAD = ("parquet",)  # what most jobs write: workers import it while the driver plans


class WriteVerbs(DatasetBase):
    """Verbs that write all rows."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.WRITE, options=FolderOptions)
    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = "auto",
        compression_level: int | None = None,
        **options: Unpack[FolderOptions],
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as Parquet files, in input order.

        Killed at any moment and run again, it goes on where it stopped; run again when finished, it returns
        the recorded result. The folder is complete once ``_SUCCESS`` stands in it.

        Parameters
        ----------
        path
            A new or empty folder, or the output of an earlier run of the same plan.
        compression, compression_level
            The codec: ``"snappy"``, ``"zstd"``, ``"gzip"``, ``"lz4"``, ``"brotli"`` or None. ``"auto"``: snappy, but
            columns that are copied from Parquet files without being decoded keep the codec that they have there
            (``explain()`` says which are). With another codec, or a level, they are decoded and compressed again.
        schema
            The output's Arrow schema; default: it is inferred from the first rows.
        partition_by
            Columns whose values name folders, ``day=2024-05-01/country=BR/``, as Hive, Spark and pyarrow do it; the
            files lack these columns, and readers take them from the folders again. Text, integers, booleans or dates;
            null is ``__HIVE_DEFAULT_PARTITION__``. Within a folder rows keep the order of the input. Each shard
            writes a file into each folder for which it has rows. So use columns with few values; a shard may have
            10,000 at most.
        partition_cols
            Ray Data's name for ``partition_by``.
        min_rows_per_file
            About how many rows of the input become one file; the same as ``with_options(shard_rows=…)``. Row groups,
            or parts of a file, are not divided for it. After a filter, and at the end of the input, a file has fewer
            rows.
        max_rows_per_file
            No file has more rows; a shard that has more becomes several files.
        mode, on_change, incremental, refresh, fix, key, durability
            See ``RunOptions``; here they override ``with_options``.
        provenance
            The name of a new column with what made each row: the ``version=`` of the function or model, or else a
            digest of its code; of several, all of them with their names. See docs/resume.md.
        key
            With ``incremental``: columns of the input that identify a row. Files that were written again are read
            again, and only their rows with new keys are processed. See docs/incremental.md.
        storage_options
            For an address such as ``"s3://bucket/out"``: options of its store that are not secret, as in readers.

        Raises
        ------
        SinkError
            The format cannot hold a column's type. Or a column of ``partition_by`` is missing, has another type, or
            holds a text that cannot be the name of a folder.
        PlanChanged
            The folder belongs to another plan, or to other code; the message says which option to add.
        ForeignOutput, RunLocked, OutputWriteFailed, SourceError, StepError, WorkerDied
            See ``headrace.errors``. Finished shards are kept.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> folder = tempfile.mkdtemp()
        >>> data = hr.range(3).with_options(engine="inline", progress=False)
        >>> data.write_parquet(f"{folder}/out").rows
        3
        >>> hr.read_parquet(f"{folder}/out").take(1)
        [{'id': 0}]
        >>> days = data.with_column("day", lambda batch: batch["id"] % 2)
        >>> _ = days.write_parquet(f"{folder}/days", partition_by=["day"])
        >>> hr.read_parquet(f"{folder}/days").take_all()
        [{'id': 0, 'day': 0}, {'id': 2, 'day': 0}, {'id': 1, 'day': 1}]
        """
        return self._write_files(
            "parquet", path, options, compression=compression, compression_level=compression_level
        )

    @known_arguments(also=ray_arguments.WRITE, options=FolderOptions)
    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        delimiter: str = ",",
        header: bool = True,
        compression: str | None = None,
        escape_formulas: bool = False,
        **options: Unpack[FolderOptions],
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as CSV files.

        Parameters
        ----------
        path, schema, partition_by, partition_cols, min_rows_per_file, max_rows_per_file, mode, on_change,
        incremental, refresh, fix, key, provenance, durability
            As in ``write_parquet``.
        storage_options
            As in ``write_parquet``.
        delimiter
            One ASCII character between the values.
        header
            Whether each file begins with the names of the columns.
        compression
            None, ``"gzip"`` or ``"zstd"``.
        escape_formulas
            True: text that a spreadsheet would take for a formula, as it begins with ``=``, ``+``, ``-``, ``@``, a
            tab or the end of a line, gets an apostrophe before it; names of columns, too. Numbers stay numbers.

        Raises
        ------
        ArgumentError
            There is no such delimiter or compression.
        SinkError
            Nested and binary columns have no place in CSV. All else as in ``write_parquet``.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> data = hr.range(3).with_options(engine="inline", progress=False)
        >>> data.write_csv(f"{tempfile.mkdtemp()}/out", delimiter=";").rows
        3
        """
        return self._write_files(
            "csv",
            path,
            options,
            delimiter=delimiter,
            header=header,
            compression=compression,
            escape_formulas=escape_formulas,
        )

    @known_arguments(also=ray_arguments.WRITE, options=FolderOptions)
    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        **options: Unpack[FolderOptions],
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as files of JSON lines, one object per row.

        Parameters
        ----------
        path, schema, partition_by, partition_cols, min_rows_per_file, max_rows_per_file, mode, on_change,
        incremental, refresh, fix, key, provenance, durability
            As in ``write_parquet``.
        storage_options
            As in ``write_parquet``.
        compression
            None, ``"gzip"`` or ``"zstd"``.

        Raises
        ------
        ArgumentError
            There is no such compression. All else as in ``write_parquet``.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> data = hr.range(3).with_options(engine="inline", progress=False)
        >>> data.write_json(f"{tempfile.mkdtemp()}/out", compression="gzip").rows
        3
        """
        return self._write_files("json", path, options, compression=compression)

    @known_arguments(options=OutputOptions)
    def write_to(self, sink: Sink, **options: Unpack[OutputOptions]) -> Result:
        """Run the plan and write its rows in a format of your own, or to a table of your own.

        Commits, resuming, ``mode`` and ``verify`` are as for the formats that are here; docs/extending.md has a
        format of a few lines.

        Parameters
        ----------
        sink
            Where the rows go: ``FileSink(folder, format)`` of ``headrace.sinks.files``, maybe with a ``target``.
        schema, mode, on_change, incremental, refresh, fix, key, provenance, durability
            As in ``write_parquet``.

        Raises
        ------
        ArgumentError
            ``sink`` is not one. All else as in ``write_parquet``.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> from headrace.sinks.files import Arrow
        >>> from headrace.sinks.files import FileSink
        >>> data = hr.range(3).with_options(engine="inline", progress=False)
        >>> data.write_to(FileSink(f"{tempfile.mkdtemp()}/out", Arrow())).rows
        3
        """
        if isinstance(sink, type) or not fills(sink, Sink):
            raise ArgumentError(
                f"write_to({sink!r}): it takes a headrace.sinks.files.FileSink, which is made with a folder and a "
                "format. write_parquet, write_csv and write_json take a folder."
            )
        return self._write(lambda: sink, options)

    def _write_files(self, name: str, path: Any, options: Mapping[str, Any], **settings: Any) -> Result:
        """Write the rows in the format of a name, which is made with ``settings``."""
        rows = given_rows_per_file(options.get("min_rows_per_file"), options.get("max_rows_per_file"))
        folders = given_partition_by(options.get("partition_by"), options.get("partition_cols"))
        found = FORMATS.get(name)
        assert found is not None

        def sink() -> Sink:
            from headrace.sinks.files import FileSink

            return FileSink(
                given_folder(path),
                loaded(found.writer)(**settings),
                storage_options=options.get("storage_options"),
                max_rows_per_file=rows.most,
                partition_by=folders,
            )

        module = found.writer.partition(":")[0]
        return self._write(sink, options, rows.least, module=module if name in _AHEAD else "")

    def _write(
        self,
        sink: Callable[[], Sink],  # sinks import pyarrow: they are made when workers are on their way
        given: Mapping[str, Any],
        shard_rows: int | None = None,
        *,
        module: str = "",
    ) -> Result:
        """Write the rows into what ``sink`` makes; ``module`` is where that is defined."""
        schema = given.get("schema")
        if schema is not None and not hasattr(schema, "serialize"):
            raise ArgumentError(
                f"schema={schema!r} is not a pyarrow.Schema, such as pa.schema({{'x': pa.int64()}})."
            )
        asked = {name: value for name, value in given.items() if name in OF_RUNS}
        asked["shard_rows"] = shard_rows
        options = self._options.updated({name: value for name, value in asked.items() if value is not None})
        if options.incremental and options.mode == "append":  # what a further run does
            options = options.updated({"mode": "resume"})
        if options.incremental and options.on_change == "refuse" and given.get("on_change") is None:
            options = options.updated({"on_change": "continue"})
        plan = with_shadow(self._plan)
        if (provenance := given.get("provenance")) is not None:
            from headrace.plan.identity import with_provenance

            plan = with_provenance(plan, provenance)
        if options.key:
            from headrace.plan.steps.selection import Unseen

            plan = replace(plan, steps=(Unseen(tuple(options.key)), *plan.steps))
        started = time.monotonic()
        with RunContext.open(plan, options, sink=module) as context:
            with importing():  # while the first worker imports what it needs
                from headrace.session import write as writing

            result = writing.write(context, lambda plan: plan.into(sink(), schema), started)
        self._note(result.summary)
        return result


# ---------------------------------------------------------------- arrays and images


class SampleWriteVerbs(WriteVerbs):
    """Verbs that write all rows in formats of their own."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.WRITE, options=FileOptions)
    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str | None = None,
        **options: Unpack[FileOptions],
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as arrays that ``numpy.load`` reads.

        Numbers, booleans, and dates and times without a zone keep their dtypes, tensors of shape (k…) their shapes:
        n rows of them are an array (n, k…). Texts become arrays of ``<U…``. A null is NaN among fractions and NaT
        among times.

        Parameters
        ----------
        path, schema, min_rows_per_file, max_rows_per_file, mode, on_change, incremental, refresh, fix, key,
        provenance, durability
            As in ``write_parquet``.
        storage_options
            As in ``write_parquet``.
        column
            The column to write: each file is then a ``.npy`` of that one array, as in Ray Data. None: each file is a
            ``.npz`` with an array for each column.

        Raises
        ------
        SinkError
            A column has no numpy dtype, such as lists of different lengths or decimals; or holds a null among
            integers, booleans or texts. All else as in ``write_parquet``.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> folder = tempfile.mkdtemp()
        >>> data = hr.range_tensor(3, shape=(2, 2)).with_options(engine="inline", progress=False)
        >>> data.write_numpy(f"{folder}/out", column="data").rows
        3
        >>> hr.read_numpy(f"{folder}/out").take_batch()["data"].shape
        (3, 2, 2)
        """
        chosen = self if column is None else self._of_columns("write_numpy", [column])
        result = chosen._write_files("numpy", path, options, single=column is not None)
        self._note(result.summary)
        return result

    @known_arguments(also=ray_arguments.WRITE, options=StoredOptions)
    def write_images(
        self,
        path: str | os.PathLike[str],
        column: str,
        file_format: str = "png",
        *,
        names: str | None = None,
        **options: Unpack[StoredOptions],
    ) -> Result:
        """Run the plan and write an image file for each row to the folder ``path``. Needs the extra ``images``.

        The files of a shard are committed together, as the rows of other formats are: none of them is there before
        all are, and a killed run goes on. Each is synced, which ``durability="process"`` saves.

        Parameters
        ----------
        path, schema, mode, on_change, incremental, refresh, fix, key, provenance, durability, storage_options
            As in ``write_parquet``.
        column
            The column of pixels: uint8, of shape (height, width) or (height, width, channels), 1 to 4 of these.
        file_format
            ``"png"``, ``"jpg"``, ``"jpeg"``, ``"webp"``, ``"bmp"``, ``"tif"`` or ``"tiff"``.
        names
            A column of names, or of paths whose last part is one. A file is ``part-<shard>-<run>.<name>.png``, and in
            the name all but letters, digits, ``-`` and ``_`` becomes ``_``. None: rows are numbered in their shard.

        Raises
        ------
        ArgumentError
            There is no such format. ``MissingLibrary``: Pillow is not installed.
        SinkError
            The column has no pixels, or a null; the format cannot hold them, as JPEG has no alpha; or two rows of a
            shard have one name. All else as in ``write_parquet``.

        Examples
        --------
        >>> import pytest, tempfile, headrace as hr, numpy as np
        >>> _ = pytest.importorskip("PIL")
        >>> data = hr.from_numpy(np.zeros((2, 4, 5, 3), np.uint8)).with_options(engine="inline", progress=False)
        >>> data.write_images(folder := f"{tempfile.mkdtemp()}/out", "data").files
        2
        >>> hr.read_images(folder).take(1)[0]["image"].shape
        (4, 5, 3)
        """
        wanted = [column] if names in (None, column) else [column, names]
        settings = {"column": column, "file_format": file_format, "names": names}
        chosen = self._of_columns("write_images", wanted)
        result = chosen._write_files("images", path, options, **settings)
        self._note(result.summary)
        return result

    def _of_columns(self, verb: str, names: Sequence[Any]) -> Self:
        return self.with_step(SelectColumns(given_names(verb, names), asked_by=verb))
