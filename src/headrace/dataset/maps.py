"""Verbs that add a function or a model to the plan: nothing runs yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from headrace.core.arguments import known_arguments
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments
from headrace.plan.parameters import (
    given_batch_bytes,
    given_batch_format,
    given_batch_size,
    given_function,
    given_in_flight,
    given_names,
    given_resources,
)
from headrace.plan.steps.functions import MapBatches
from headrace.plan.verb_options import StepOptions, WorkerOptions

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from headrace.plan.column_expressions import ColumnExpression


class MapVerbs(DatasetBase):
    """Verbs that call a function of the user's."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.MAP_BATCHES, options=StepOptions)
    def map_batches(
        self,
        fn: Callable[..., Any],
        *,
        batch_size: int | Literal["auto"] | None = "auto",
        batch_size_bytes: int | str | None = None,
        batch_format: Literal["numpy", "pandas", "pyarrow", "default"] | None = "numpy",
        columns: Sequence[str] | None = None,
        max_in_flight: int | None = None,
        max_concurrency: int | None = None,
        zero_copy_batch: bool = True,
        **options: Unpack[StepOptions],
    ) -> Self:
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
            on the event loop. They may yield several batches, too.
        batch_size
            Rows per batch; the last one of a shard may be smaller. ``"auto"``: each worker begins with 128 rows or
            fewer, and looks for the size with which ``fn`` is fastest, up to about 16 MiB and 65,536 rows. So batches
            differ from run to run. None: as ``"auto"``. A batch that does not fit into memory is halved and tried
            again, and batches stay that small for the rest of the run.
        batch_size_bytes
            About how many bytes of input a batch has, instead of ``batch_size``: a number, or text such as
            ``"16MiB"``.
        batch_format
            ``"numpy"``: a dict of read-only arrays; ``"pandas"``: a DataFrame; ``"pyarrow"``: a Table. As
            in Ray Data, ``"default"`` is numpy, and None what costs no conversion: a Table.
        columns
            The columns that ``fn`` gets; no others are read for it. Default: all.
        max_in_flight
            How many batches each worker gives to ``fn`` before the first has come back. Results keep the order of the
            rows. All these batches are in memory at once. An async function gets them on one event loop (default:
            16). A plain function gets them in as many threads (default: 1, without a thread). Each batch has its own
            timeout and retries.
        max_concurrency
            Ray Data's name for it: how many batches an async function has at a time. A plain function has one.
        zero_copy_batch
            False: arrays and DataFrames are copies, and ``fn`` may write to them. True: they are read-only.
        fn_args, fn_kwargs
            Further arguments of each call, after the batch.
        fn_constructor_args, fn_constructor_kwargs
            Arguments of the class.
        compute, concurrency
            How many workers: ``ActorPoolStrategy(size=2)``, or ``concurrency=2`` or ``(1, 8)`` for short.
        num_cpus, num_gpus, memory
            What one worker needs: cores, devices, bytes (a number, or text such as ``"2GiB"``).
        ray_remote_args
            Other options of each worker of this step for a Ray cluster: a dict of ``resources``, ``label_selector``,
            ``runtime_env``, ``scheduling_strategy``, …. It has no effect on other engines.
        version
            A name for this code. The run is then recognised by it, and not by the bytecode of ``fn``.

        Raises
        ------
        ArgumentError
            For an invalid value. What ``fn`` raises comes as ``StepError`` when the plan runs.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(3).map_batches(lambda batch: {"double": batch["id"] * 2}).take_all()
        [{'double': 0}, {'double': 2}, {'double': 4}]

        >>> async def lengths(batch):  # which would await a client's answer
        ...     return {"length": [len(text) for text in batch["text"]]}
        >>> hr.from_items([{"text": "one"}, {"text": "three"}]).map_batches(lengths, max_in_flight=8).take_all()
        [{'length': 3}, {'length': 5}]
        """
        function = given_function("map_batches", fn, options)
        return self.with_step(
            MapBatches(
                function,
                given_batch_size(batch_size),
                given_batch_format(batch_format),
                given_names("columns", columns) if columns is not None else None,
                given_resources(options),
                given_in_flight(max_in_flight, max_concurrency, fn),
                given_batch_bytes(batch_size_bytes, batch_size),
                writable=not zero_copy_batch,
            )
        )

    @known_arguments(also=ray_arguments.STEPS, options=StepOptions)
    def map(
        self,
        fn: Callable[..., Any],
        **options: Unpack[StepOptions],
    ) -> Self:
        """Replace each row, a dict of Python values, by the dict that ``fn`` returns for it.

        Parameters
        ----------
        fn
            A function, callable object or class. Tensors come to it as arrays of shape (k…), times as Python's
            ``datetime`` where it can hold them.
        fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
            As in ``map_batches``, which is far faster.
        compute, concurrency, num_cpus, num_gpus, memory, ray_remote_args, version
            As in ``map_batches``.

        Raises
        ------
        ArgumentError
            As in ``map_batches``. ``StepError``, with file and row, comes when the plan runs.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(2).map(lambda row: {"text": str(row["id"])}).take_all()
        [{'text': '0'}, {'text': '1'}]
        """
        from headrace.plan.steps.functions import MapRows

        function = given_function("map", fn, options)
        return self.with_step(MapRows(function, given_resources(options)))

    @known_arguments(also=ray_arguments.STEPS, options=StepOptions)
    def flat_map(
        self,
        fn: Callable[..., Any],
        **options: Unpack[StepOptions],
    ) -> Self:
        """Replace each row by the rows of the list that ``fn`` returns for it, which may be empty.

        Parameters
        ----------
        fn
            A function, callable object or class, of one row as in ``map``; it returns any iterable of dicts.
        fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
            As in ``map_batches``.
        compute, concurrency, num_cpus, num_gpus, memory, ray_remote_args, version
            As in ``map_batches``.

        Raises
        ------
        ArgumentError
            As in ``map_batches``. ``StepError``, with file and row, comes when the plan runs.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(3).flat_map(lambda row: [row] * row["id"]).take_all()
        [{'id': 1}, {'id': 2}, {'id': 2}]
        """
        from headrace.plan.steps.functions import FlatMap

        function = given_function("flat_map", fn, options)
        return self.with_step(FlatMap(function, given_resources(options)))

    @known_arguments(also=ray_arguments.STEPS, options=StepOptions)
    def filter(
        self,
        fn: Callable[..., Any] | None = None,
        expr: ColumnExpression | pc.Expression | str | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Keep the rows for which ``fn`` (of a row) or ``expr`` (of columns, far faster) is true.

        Parameters
        ----------
        fn
            A function, callable object or class; it gets one row as a dict, as in ``map``.
        expr
            An expression of columns, ``hr.col("id") > 2`` or Arrow's ``pc.field("id") > 2``, or its text,
            ``"id > 2 and name in ['a', 'b']"``: columns, numbers, strings, ``+ - * /``, comparisons, ``in``, ``and``,
            ``or``, ``not``, ``is None``. As in SQL, a comparison with null is null, and a null is not true.
        fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
            As in ``map_batches``.
        compute, concurrency, num_cpus, num_gpus, memory, ray_remote_args, version
            As in ``map_batches``.

        Raises
        ------
        ArgumentError
            Neither or both are given, or ``expr`` is no expression. ``UnknownColumn``, for a column that it names,
            comes when the plan runs; ``StepError``, for what ``fn`` raises, too.

        Examples
        --------
        >>> import headrace as hr, pyarrow.compute as pc
        >>> hr.range(5).filter(expr=pc.field("id") > 2).take_all()
        [{'id': 3}, {'id': 4}]
        >>> hr.range(5).filter(expr=hr.col("id") > 2).take_all()
        [{'id': 3}, {'id': 4}]
        >>> hr.range(5).filter(expr="id > 2").take_all()
        [{'id': 3}, {'id': 4}]
        >>> hr.range(5).filter(lambda row: row["id"] > 2).take_all()
        [{'id': 3}, {'id': 4}]
        """
        if (fn is None) == (expr is None):
            raise ArgumentError("filter takes either a function of a row or expr=, an Arrow expression.")
        from headrace.plan.steps.functions import Filter

        resources = given_resources(options)
        if fn is None:
            from headrace.plan.predicates import given_expression

            return self.with_step(Filter(None, given_expression(expr), resources))
        function = given_function("filter", fn, options)
        return self.with_step(Filter(function, None, resources))


# ---------------------------------------------------------------- a column for each row, a model's result above all


class PredictVerbs(DatasetBase):
    """Verbs that add columns; rows stay as they are."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.PREDICT, options=StepOptions)
    def predict(
        self,
        model: Any,
        *,
        inputs: str | Sequence[str] | None = None,
        output: str | None = None,
        keep: str | Sequence[str] | None = "all",
        replace: bool = False,
        batch_size: int | Literal["auto"] | None = "auto",
        batch_size_bytes: int | str | None = None,
        batch_format: Literal["numpy", "pandas", "pyarrow", "default"] = "numpy",
        max_in_flight: int | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Add a model's result to each row; every other column is carried unchanged.

        Parameters
        ----------
        model
            A predictor (``hr.load_model(path, …)``, ``hr.TorchPredictor(net, device="cuda")``, your own object with
            ``load``, ``predict`` and ``close``), a model object (a torch module, a scikit-learn, XGBoost, LightGBM
            or Keras model, a Hugging Face pipeline, …), a class, a function, or the path of a model file or folder.
            Classes and functions get a batch as in ``map_batches``; a library's model gets what it wants: one input
            column as its array, several by name or side by side. One result per row: an array of shape (n,) or
            (n, 1), a list; (n, k…) becomes a column of tensors; or a dict, DataFrame or Table of several.
            A dict of models, ``{"small": a, "large": dict(model=b, batch_size=256)}``, runs them all on the same
            rows in one pass; its key names what each adds, as ``output`` does. The results of two that are called
            ``old`` and ``new`` are compared as they are written: ``result.metrics["shadow"]`` and the report have
            what ``Differences`` counts.
        inputs
            The columns that the model reads; no others are read for it. Default: all, without the index that
            ``from_pandas`` made columns of.
        output
            The name of the new column. If the model returns several results with names, it is their prefix:
            ``output_name``. Default: results keep their own names, and a result without a name is ``"prediction"``.
        keep
            The columns that go to the output unchanged: ``"all"``, ``"none"``, or names. They are never converted:
            types, nulls and order stay as they are.
        replace
            True: a result may replace a carried column of the same name. False: that is an error.
        batch_size, batch_size_bytes, batch_format
            As in ``map_batches``. A batch holds only inputs. A model of a library decides its own format.
        max_in_flight
            As in ``map_batches``; a predictor's ``predict`` may be async as well. One that has ``submit`` and
            ``collect`` (PyTorch's) gets 2 by default.
        fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
            As in ``map_batches``, for a class or a function.
        compute, concurrency, num_cpus, num_gpus, memory, ray_remote_args, version
            As in ``map_batches``.

        Raises
        ------
        ColumnExists
            A result has the name of a carried column.
        BadReturn
            A model returned another number of rows than it got. To change the number of rows, use ``map_batches``.
        ModelError
            The model cannot be read, or its library is not installed.

        Examples
        --------
        >>> import headrace as hr
        >>> rides = hr.from_items([{"km": 2.0, "city": "Oslo"}, {"km": 5.0, "city": "Bonn"}])
        >>> rides.predict(lambda batch: 3 + 2 * batch["km"], inputs=["km"], output="fare").take_all()
        [{'km': 2.0, 'city': 'Oslo', 'fare': 7.0}, {'km': 5.0, 'city': 'Bonn', 'fare': 13.0}]
        """
        from headrace.session.models import given_predict

        return self.with_step(
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
                **options,
            )
        )

    @known_arguments(also=ray_arguments.STEPS, options=WorkerOptions)
    def with_column(
        self,
        column_name: str,
        expr: ColumnExpression | pc.Expression | str | Callable[..., Any],
        *,
        batch_format: Literal["numpy", "pandas", "pyarrow", "default"] = "pandas",
        **options: Unpack[WorkerOptions],
    ) -> Self:
        """Add the column ``column_name``, or replace it in its place, by an expression or by a function of a batch.

        Parameters
        ----------
        column_name
            Its name.
        expr
            ``hr.col("km") * 0.62``, an Arrow expression, or its text, ``"km * 0.62"``; ``hr.lit(value)`` is the
            same value in each row. As in SQL, what is computed of a null is null. Division gives fractions.
            Or a function of a batch of all columns. It returns one value per row: an array of shape (n,) or
            (n, k…), a Series, an Arrow array, a list; or a single number, text or time, which each row gets.
        batch_format
            Of a function's batches, as in ``map_batches``, but pandas by default; ``"numpy"`` is faster.
        compute, concurrency, num_cpus, num_gpus, memory, ray_remote_args, version
            Of a function, as in ``map_batches``. An expression needs no workers of its own.

        Raises
        ------
        ArgumentError
            ``column_name`` is no name, or ``expr`` neither expression nor function. ``UnknownColumn``, for a column
            that an expression names, comes when the plan runs; so do ``BadReturn``, for another number of values
            than rows, and ``StepError``, for rows at which it fails (such as an overflow), which
            ``on_error="reject"`` sets aside.

        Examples
        --------
        >>> import headrace as hr
        >>> trips = hr.from_items([{"km": 8}, {"km": None}])
        >>> trips.with_column("miles", hr.col("km") * 0.62).take_all()
        [{'km': 8, 'miles': 4.96}, {'km': None, 'miles': None}]
        >>> hr.range(2).with_column("half", lambda batch: batch["id"] / 2, batch_format="numpy").take_all()
        [{'id': 0, 'half': 0.0}, {'id': 1, 'half': 0.5}]
        """
        if not isinstance(column_name, str) or not column_name:
            raise ArgumentError(
                f"with_column({column_name!r}, …): the name of a column is a text that is not empty."
            )
        if not callable(expr) or isinstance(expr, type):
            from headrace.plan.predicates import given_expression
            from headrace.plan.steps.selection import WithColumn

            return self.with_step(
                WithColumn(column_name, given_expression(expr, f"with_column({column_name!r}, "))
            )
        from headrace.plan.steps.predict import WithComputed
        from headrace.session.models import given_predict

        step = given_predict(
            expr,
            output=column_name,
            keep="all",
            replace=True,
            batch_format=batch_format,
            **options,
        )
        return self.with_step(WithComputed(step.models, step.keep, step.replace))
