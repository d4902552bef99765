"""Verbs that add a column to each row, a model's result above all: nothing runs yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from headrace.core.arguments import known_arguments
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments
from headrace.plan.step_options import StepOptions, WorkerOptions

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from headrace.plan.column_expressions import ColumnExpression


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
                inputs=self._inputs(inputs),
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
            from headrace.plan.steps.columns import WithColumn

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
