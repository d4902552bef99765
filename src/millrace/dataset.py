"""The Dataset: an immutable, lazy description; every verb returns a new one, and some verbs run it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace import execution
from millrace.core.arguments import known_arguments, without_our_frames
from millrace.core.ports import Sink, Source
from millrace.errors import ArgumentError, MillraceError
from millrace.explain import explain
from millrace.options import RunOptions
from millrace.parameters import (
    given_batch_bytes,
    given_batch_format,
    given_batch_size,
    given_folder,
    given_function,
    given_in_flight,
    given_names,
    given_resources,
    given_rows,
)
from millrace.plan.logical import (
    Drop,
    Filter,
    FlatMap,
    Limit,
    MapBatches,
    MapRows,
    Plan,
    Rename,
    Select,
    Step,
    may_rename,
)
from millrace.result import Result

if TYPE_CHECKING:
    import os
    from typing import Literal

    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    from millrace.core.batch import BatchFormat
    from millrace.core.work import Durability
    from millrace.options import Mode, OnChange
    from millrace.parameters import Compute, Concurrency


class Dataset:
    """A lazy, immutable description of data and of what is done with it.

    Made by ``read_*`` and ``from_*``; nothing is read before a verb that runs it (``write_*``, ``take``,
    ``show``, ``count``, ``iter_batches``, …).

    >>> import millrace as mr
    >>> mr.range(6).filter(lambda row: row["id"] % 2 == 0).take_all()
    [{'id': 0}, {'id': 2}, {'id': 4}]
    """

    __slots__ = ("_options", "_plan")

    def __init__(self, plan: Plan, options: RunOptions) -> None:
        self._plan = plan
        self._options = options

    @classmethod
    def from_source(cls, source: Source) -> Dataset:
        """Make a dataset of anything that fills the ``Source`` port."""
        return cls(Plan(source), RunOptions.from_environment())

    def _then(self, step: Step) -> Dataset:
        return Dataset(self._plan.then(step), self._options)

    def __repr__(self) -> str:
        from millrace.plan.logical import step_label

        source = type(self._plan.source).__name__.removesuffix("Source")
        return " → ".join([f"Dataset({source})", *map(step_label, self._plan.steps)])

    # ------------------------------------------------------------ steps

    @known_arguments
    def map_batches(
        self,
        fn: Callable[..., Any],
        *,
        batch_size: int | Literal["auto"] | None = "auto",
        batch_size_bytes: int | None = None,
        batch_format: Literal["numpy", "pandas", "pyarrow", "default"] = "numpy",
        columns: Sequence[str] | None = None,
        max_in_flight: int | None = None,
        fn_args: Sequence[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: float | None = None,
        version: str | None = None,
    ) -> Dataset:
        """Replace each batch by what ``fn`` returns for it.

        Parameters
        ----------
        fn
            A function, a callable object, or a class, which is constructed once per worker and then called.
            It gets one batch and returns one: a dict of columns (arrays of shape (n,) or (n, k…), lists), a
            DataFrame, an Arrow Table or RecordBatch; or it is a generator that yields several. Arrays of
            shape (n, k) become fixed-size-list columns. The number of rows may change. Named levels of a
            DataFrame's index become columns, unnamed ones are dropped. Functions that wait, for an endpoint say,
            may be async: ``async def``, or a class with ``async def __call__``, which is then also constructed
            on the event loop.
        batch_size
            Rows per batch; the last one of a shard may be smaller. ``"auto"``: each worker begins with 128
            rows or fewer, and finds with how many ``fn`` gets most rows done per second, up to about 16 MiB and
            65,536 rows; so batches differ from run to run. None: as ``"auto"``. Where memory does not suffice for
            a batch, it is halved and tried again, and batches stay as small as that for the rest of the run.
        batch_size_bytes
            About how many bytes of input a batch has, instead of ``batch_size``.
        batch_format
            ``"numpy"``: a dict of read-only arrays; ``"pandas"``: a DataFrame; ``"pyarrow"``: a Table.
        columns
            The columns that ``fn`` gets; no others are read for it. Default: all.
        max_in_flight
            How many batches each worker sends to ``fn`` before the first has come back; results keep the order of
            the rows, and so many batches are in memory. An async function gets them on one event loop (default:
            16), a plain one in so many threads (default: 1, in none). Timeouts and further tries are its own.
        fn_args, fn_kwargs
            Further arguments of each call, after the batch.
        fn_constructor_args, fn_constructor_kwargs
            Arguments of the class.
        compute, concurrency
            How many workers: ``ActorPoolStrategy(size=2)``, or ``concurrency=2`` or ``(1, 8)`` for short.
        num_cpus, num_gpus, memory
            What one worker needs: cores, devices, bytes.
        version
            A name for this code. When given, the run is recognised by it instead of by the bytecode of ``fn``.

        Raises
        ------
        ArgumentError
            For a value that makes no sense. What ``fn`` raises comes as ``StepError`` when the plan runs.

        Examples
        --------
        >>> import millrace as mr
        >>> mr.range(3).map_batches(lambda batch: {"double": batch["id"] * 2}).take_all()
        [{'double': 0}, {'double': 2}, {'double': 4}]

        >>> async def lengths(batch):  # which would await a client's answer
        ...     return {"length": [len(text) for text in batch["text"]]}
        >>> mr.from_items([{"text": "one"}, {"text": "three"}]).map_batches(lengths, max_in_flight=8).take_all()
        [{'length': 3}, {'length': 5}]
        """
        function = given_function(
            "map_batches", fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, version
        )
        return self._then(
            MapBatches(
                function,
                given_batch_size(batch_size),
                given_batch_format(batch_format),
                given_names("columns", columns) if columns is not None else None,
                given_resources(compute, concurrency, num_cpus, num_gpus, memory),
                given_in_flight(max_in_flight),
                given_batch_bytes(batch_size_bytes, batch_size),
            )
        )

    @known_arguments
    def predict(
        self,
        model: Any,
        *,
        inputs: str | Sequence[str] | None = None,
        output: str = "prediction",
        keep: str | Sequence[str] | None = "all",
        replace: bool = False,
        batch_size: int | Literal["auto"] | None = "auto",
        batch_size_bytes: int | None = None,
        batch_format: Literal["numpy", "pandas", "pyarrow", "default"] = "numpy",
        max_in_flight: int | None = None,
        fn_args: Sequence[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: float | None = None,
        version: str | None = None,
    ) -> Dataset:
        """Add a model's result to each row; every other column rides along untouched.

        Parameters
        ----------
        model
            A predictor (``mr.load_model(path, …)``, ``mr.TorchPredictor(net, device="cuda")``, your own object with
            ``load``, ``predict`` and ``close``), a model object (a torch module, a scikit-learn, XGBoost, LightGBM
            or Keras model, a Hugging Face pipeline, …), a class, a function, or the path of a model file or folder.
            Classes and functions get a batch as in ``map_batches``; a library's model gets what it wants: one input
            column as its array, several by name or side by side. One result per row: an array of shape (n,) or
            (n, 1), a list; (n, k…) becomes a column of tensors; or a dict, DataFrame or Table, which brings its
            own column names.
            A dict of models, ``{"small": a, "large": dict(model=b, batch_size=256)}``, runs them all on the same
            rows in one pass; each adds a column named by its key, or several named ``key_name``.
        inputs
            The columns that the model reads; no others are read for it. Default: all.
        output
            The name of the column that is added.
        keep
            The columns that are carried: ``"all"``, ``"none"``, or names. They are never converted: types, nulls
            and order stay as they are.
        replace
            A result may take the place of a carried column of the same name; without it, that is an error.
        batch_size, batch_size_bytes, batch_format
            As in ``map_batches``. A batch holds only inputs. A library's model has a format of its own.
        max_in_flight
            As in ``map_batches``; a predictor's ``predict`` may be async as well. One that has ``submit`` and
            ``collect`` (PyTorch's) gets 2 by default.
        fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
            As in ``map_batches``, for a class or a function.
        compute, concurrency, num_cpus, num_gpus, memory, version
            As in ``map_batches``.

        Raises
        ------
        ColumnExists
            A result has the name of a carried column.
        BadReturn
            A model returned another number of rows than it got; ``map_batches`` is for that.
        ModelError
            The model cannot be read, or its library is not here.

        Examples
        --------
        >>> import millrace as mr
        >>> rides = mr.from_items([{"km": 2.0, "city": "Oslo"}, {"km": 5.0, "city": "Bonn"}])
        >>> rides.predict(lambda batch: 3 + 2 * batch["km"], inputs=["km"], output="fare").take_all()
        [{'km': 2.0, 'city': 'Oslo', 'fare': 7.0}, {'km': 5.0, 'city': 'Bonn', 'fare': 13.0}]
        """
        from millrace.models import given_predict

        return self._then(
            given_predict(
                model,
                inputs=inputs,
                output=output,
                keep=keep,
                replace=replace,
                batch_size=batch_size,
                batch_size_bytes=batch_size_bytes,
                batch_format=batch_format,
                max_in_flight=max_in_flight,
                fn_args=fn_args,
                fn_kwargs=fn_kwargs,
                fn_constructor_args=fn_constructor_args,
                fn_constructor_kwargs=fn_constructor_kwargs,
                compute=compute,
                concurrency=concurrency,
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                memory=memory,
                version=version,
            )
        )

    @known_arguments
    def map(
        self,
        fn: Callable[..., Any],
        *,
        fn_args: Sequence[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: float | None = None,
        version: str | None = None,
    ) -> Dataset:
        """Replace each row, a dict of Python values, by the dict that ``fn`` returns for it.

        Tensors come as arrays of shape (k…). Parameters as in ``map_batches``, which is far faster.

        >>> import millrace as mr
        >>> mr.range(2).map(lambda row: {"text": str(row["id"])}).take_all()
        [{'text': '0'}, {'text': '1'}]
        """
        function = given_function(
            "map", fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, version
        )
        return self._then(
            MapRows(function, given_resources(compute, concurrency, num_cpus, num_gpus, memory))
        )

    @known_arguments
    def flat_map(
        self,
        fn: Callable[..., Any],
        *,
        fn_args: Sequence[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: float | None = None,
        version: str | None = None,
    ) -> Dataset:
        """Replace each row by the rows of the list that ``fn`` returns for it, which may be empty.

        >>> import millrace as mr
        >>> mr.range(3).flat_map(lambda row: [row] * row["id"]).take_all()
        [{'id': 1}, {'id': 2}, {'id': 2}]
        """
        function = given_function(
            "flat_map", fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, version
        )
        return self._then(
            FlatMap(function, given_resources(compute, concurrency, num_cpus, num_gpus, memory))
        )

    @known_arguments
    def filter(
        self,
        fn: Callable[..., Any] | None = None,
        expr: pc.Expression | None = None,
        *,
        fn_args: Sequence[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: float | None = None,
        version: str | None = None,
    ) -> Dataset:
        """Keep the rows for which ``fn`` (of a row dict) or ``expr`` (an Arrow expression, far faster) is true.

        >>> import millrace as mr, pyarrow.compute as pc
        >>> mr.range(5).filter(expr=pc.field("id") > 2).take_all()
        [{'id': 3}, {'id': 4}]
        """
        if (fn is None) == (expr is None):
            raise ArgumentError("filter takes either a function of a row or expr=, an Arrow expression.")
        resources = given_resources(compute, concurrency, num_cpus, num_gpus, memory)
        if fn is None:
            import pyarrow.compute as pc

            if not isinstance(expr, pc.Expression):
                raise ArgumentError(
                    f"filter(expr={expr!r}): expr is an Arrow expression such as pc.field('x') > 3."
                )
            return self._then(Filter(None, expr, resources))
        function = given_function(
            "filter", fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, version
        )
        return self._then(Filter(function, None, resources))

    @known_arguments
    def select_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Keep the columns ``cols``, in this order; others are not even read where the source allows.

        >>> import millrace as mr
        >>> mr.from_items([{"a": 1, "b": 2}]).select_columns(["b"]).take_all()
        [{'b': 2}]
        """
        return self._then(Select(given_names("select_columns", cols)))

    @known_arguments
    def drop_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Leave the columns ``cols`` out.

        >>> import millrace as mr
        >>> mr.from_items([{"a": 1, "b": 2}]).drop_columns(["b"]).take_all()
        [{'a': 1}]
        """
        return self._then(Drop(given_names("drop_columns", cols)))

    @known_arguments
    def rename_columns(self, names: Mapping[str, str] | Sequence[str]) -> Dataset:
        """Give columns other names: ``{old: new}``, or a list of new names for all columns in order.

        >>> import millrace as mr
        >>> mr.from_items([{"a": 1}]).rename_columns({"a": "b"}).take_all()
        [{'b': 1}]
        """
        if not isinstance(names, Mapping):
            old = self.columns()
            new = given_names("rename_columns", names)
            if len(old) != len(new):
                raise ArgumentError(
                    f"rename_columns got {len(new)} names for {len(old)} columns ({', '.join(old)})."
                )
            names = dict(zip(old, new, strict=True))
        for name in (*names, *names.values()):
            if not isinstance(name, str) or not name:
                raise ArgumentError(f"rename_columns({dict(names)!r}): column names are non-empty strings.")
        return self._then(Rename(tuple(names.items())))

    @known_arguments
    def limit(self, limit: int) -> Dataset:
        """Let the first ``limit`` rows pass, in input order over the whole dataset.

        >>> import millrace as mr
        >>> mr.range(1000).limit(2).take_all()
        [{'id': 0}, {'id': 1}]
        """
        return self._then(Limit(given_rows("limit", limit)))

    def with_options(self, **options: Any) -> Dataset:
        """Say how the plan is to be carried out; see ``RunOptions`` for names and meanings.

        >>> import millrace as mr
        >>> mr.range(3).with_options(engine="inline").count()
        3
        """
        return Dataset(self._plan, self._options.updated(options))

    # ------------------------------------------------------------ a look

    @known_arguments
    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the first ``limit`` rows as dicts, made in this process; reads no further than needed.

        Strings are ``str``, tensors read-only arrays of shape (k…).
        """
        from millrace.core.batch import rows_of

        return [
            row
            for batch in execution.head(self._plan, given_rows("limit", limit), self._options)
            for row in rows_of(batch)
        ]

    @known_arguments
    def take_batch(
        self, batch_size: int = 20, *, batch_format: Literal["numpy", "pandas", "pyarrow"] = "numpy"
    ) -> Any:
        """Return the first ``batch_size`` rows as one batch, made in this process."""
        from millrace.core.batch import concat, to_format
        from millrace.run.steps import empty_batch

        format_ = given_batch_format(batch_format)
        batches = list(execution.head(self._plan, given_rows("batch_size", batch_size), self._options))
        return to_format(concat(batches) if batches else empty_batch(self.schema()), format_)

    @known_arguments
    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return all rows as dicts; with ``limit``, raise ``ArgumentError`` if there are more."""
        from millrace.core.batch import rows_of

        return [row for batch in self._collected("take_all", limit) for row in rows_of(batch)]

    @known_arguments
    def show(self, limit: int = 20) -> None:
        """Print the first ``limit`` rows, one dict per line; the middle of long values is left out."""
        from millrace.observers.human import row_text

        for row in self.take(limit):
            print(row_text(row))

    @known_arguments
    def schema(self) -> pa.Schema:
        """Return the output's Arrow schema; runs the first rows through the functions if only that tells."""
        from millrace.plan.compile import columns_at

        schema = self._plan.source.schema()
        columns_at(self._plan.steps, schema)
        if not any(map(may_rename, self._plan.steps)):
            return execution.static_schema(self._plan)
        for batch in execution.head(self._plan, 16, self._options):
            return batch.schema
        return execution.static_schema(self._plan)

    @known_arguments
    def columns(self) -> list[str]:
        """Return the names of the output's columns."""
        return list(self.schema().names)

    @known_arguments
    def count(self) -> int:
        """Count the output's rows; reads only metadata where that suffices."""
        known = execution.known_count(self._plan, self._options)
        return known if known is not None else execution.count(self._plan, self._options)

    # ------------------------------------------------------------ reading it all

    def _batches(self) -> Generator[pa.RecordBatch, None, None]:
        yield from execution.read(self._plan, self._options)

    @known_arguments
    def iter_batches(
        self,
        *,
        batch_size: int | None = 256,
        batch_format: Literal["numpy", "pandas", "pyarrow", "default"] = "numpy",
        drop_last: bool = False,
    ) -> Iterator[Any]:
        """Yield the output in order, in batches of ``batch_size`` rows (None: as they come).

        Workers run ahead of the reader by a few blocks, no further, however slow it is; when it stops early,
        they end.
        """
        size = given_batch_size(batch_size)
        format_ = given_batch_format(batch_format)
        return self._iterate(size, format_, drop_last)

    def _iterate(self, size: int | None, batch_format: BatchFormat, drop_last: bool) -> Iterator[Any]:
        from millrace.core.batch import to_format
        from millrace.run.rows import Rows, rebatch

        batches = self._batches()
        if size is not None:
            batches = (rows.batch for rows in rebatch((Rows(batch, ()) for batch in batches), size))
        try:
            for batch in batches:
                if not (drop_last and size is not None and batch.num_rows < size):
                    yield to_format(batch, batch_format)
        except (MillraceError, KeyboardInterrupt) as error:
            raise without_our_frames(error)  # noqa: B904 - the cause that it has is the one that counts

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the output's rows in order, as dicts."""
        from millrace.core.batch import rows_of

        try:
            for batch in self._batches():
                yield from rows_of(batch)
        except (MillraceError, KeyboardInterrupt) as error:
            raise without_our_frames(error)  # noqa: B904 - the cause that it has is the one that counts

    @known_arguments
    def to_arrow(self) -> pa.Table:
        """Return the whole output as an Arrow table."""
        return self._table("to_arrow", None)

    @known_arguments
    def to_pandas(self, limit: int | None = None) -> pd.DataFrame:
        """Return the whole output as a DataFrame; with ``limit``, raise ``ArgumentError`` if it has more rows."""
        return self._table("to_pandas", limit).to_pandas()

    def _table(self, verb: str, limit: int | None) -> pa.Table:
        import pyarrow as pa

        batches = list(self._collected(verb, limit))
        if not batches:
            return self.schema().empty_table()
        return pa.Table.from_batches(batches)

    def _collected(self, verb: str, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Yield all of the output, but stop at once when it has more than ``limit`` rows."""
        left = given_rows("limit", limit) if limit is not None else None
        with contextlib.closing(self._batches()) as batches:
            for batch in batches:
                if left is not None:
                    left -= batch.num_rows
                    if left < 0:
                        raise ArgumentError(
                            f"{verb}(limit={limit}): the dataset has more rows. take({limit}) gives the first ones."
                        )
                yield batch

    # ------------------------------------------------------------ writing it

    @known_arguments
    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = "snappy",
        compression_level: int | None = None,
        schema: pa.Schema | None = None,
        mode: Mode | None = None,
        on_change: OnChange | None = None,
        durability: Durability | None = None,
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as Parquet files, in input order.

        Killed at any moment and run again, it goes on where it stopped; run again when finished, it returns
        the recorded result. The folder is complete once ``_SUCCESS`` stands in it.

        Parameters
        ----------
        path
            A new or empty folder, or the output of an earlier run of the same plan.
        compression, compression_level
            The codec: ``"snappy"``, ``"zstd"``, ``"gzip"``, ``"lz4"``, ``"brotli"`` or None.
        schema
            The output's Arrow schema; default: the first rows settle it.
        mode, on_change, durability
            See ``RunOptions``; here they override ``with_options``.

        Raises
        ------
        PlanChanged
            The folder belongs to another plan, or to other code; the message has the words to add.
        ForeignOutput, RunLocked, OutputWriteFailed, SourceError, StepError, WorkerDied
            See ``millrace.errors``. Shards that were committed before are kept.
        """

        def sink() -> Sink:
            from millrace.sinks.parquet import ParquetSink

            return ParquetSink(
                given_folder(path), compression=compression, compression_level=compression_level
            )

        return self._write(sink, schema, mode, on_change, durability)

    @known_arguments
    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        delimiter: str = ",",
        header: bool = True,
        compression: str | None = None,
        schema: pa.Schema | None = None,
        mode: Mode | None = None,
        on_change: OnChange | None = None,
        durability: Durability | None = None,
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as CSV files, each with a header.

        ``compression`` is None, ``"gzip"`` or ``"zstd"``; the rest as in ``write_parquet``. Nested and binary
        columns are refused.
        """

        def sink() -> Sink:
            from millrace.sinks.csv import CsvSink

            return CsvSink(given_folder(path), delimiter=delimiter, header=header, compression=compression)

        return self._write(sink, schema, mode, on_change, durability)

    @known_arguments
    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        schema: pa.Schema | None = None,
        mode: Mode | None = None,
        on_change: OnChange | None = None,
        durability: Durability | None = None,
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as files of JSON lines.

        ``compression`` is None, ``"gzip"`` or ``"zstd"``; the rest as in ``write_parquet``.
        """

        def sink() -> Sink:
            from millrace.sinks.json import JsonSink

            return JsonSink(given_folder(path), compression=compression)

        return self._write(sink, schema, mode, on_change, durability)

    def _write(
        self,
        sink: Callable[[], Sink],  # sinks import pyarrow: they are made when workers are on their way
        schema: pa.Schema | None,
        mode: Mode | None,
        on_change: OnChange | None,
        durability: Durability | None,
    ) -> Result:
        if schema is not None and not hasattr(schema, "serialize"):
            raise ArgumentError(
                f"schema={schema!r} is not a pyarrow.Schema, such as pa.schema({{'x': pa.int64()}})."
            )
        given = {"mode": mode, "on_change": on_change, "durability": durability}
        options = self._options.updated({name: value for name, value in given.items() if value is not None})
        return execution.write(self._plan, lambda plan: plan.into(sink(), schema), options)

    @known_arguments
    def explain(self) -> str:
        """Say how the plan would run: stages, workers, columns read, shards. Reads only metadata."""
        return explain(self._plan, self._options)
