"""Ray AIR's ``BatchPredictor``: a model or a function over a dataset or a DataFrame."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.compat.air.user_parts import OwnPredictor, Preprocessing, method_of, preparing_method
from headrace.core.arguments import known_arguments, unframed
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError, ColumnExists, UnknownArgument, nearest
from headrace.plan.functions import callable_name
from headrace.plan.parameters import given_batch_bytes, given_batch_size, given_names
from headrace.plan.verb_options import worker_bounds
from headrace.predictors import COLUMN, Direct
from headrace.session.models import given_predict

if TYPE_CHECKING:
    import pandas as pd

OUTPUT = "output_column_name"
BATCH_SIZE = 4096
_WITHOUT_EFFECT = (  # entries of ray_remote_args that change nothing here
    "max_restarts", "max_task_retries", "max_retries", "retry_exceptions", "max_calls", "scheduling_strategy",
    "object_store_memory", "max_pending_calls",
)  # fmt: skip


class BatchPredictor:
    """Carries a model, or a function of DataFrames, over a dataset or a DataFrame: Ray AIR's class of this name.

    Made by ``from_checkpoint`` or ``from_pandas_udf``; ``predict`` does the work, and may be called many times.
    It calls ``Dataset.predict`` and ``Dataset.map_batches``, whose pages explain more. ``BatchPredictor(checkpoint,
    predictor_cls, **predictor_kwargs)`` is ``from_checkpoint`` by another name, and raises the same.

    Examples
    --------
    >>> import pandas as pd, torch
    >>> from headrace.compat.ray.train.batch_predictor import BatchPredictor
    >>> from headrace.compat.ray.train.torch import TorchCheckpoint, TorchPredictor
    >>> model = torch.nn.Linear(2, 1)
    >>> _ = torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
    >>> predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(model), TorchPredictor)
    >>> rides = pd.DataFrame({"km": [1.0, 2.0], "hours": [0.5, 0.25], "city": ["Oslo", "Bonn"]}, index=[7, 9])
    >>> predictor.predict(rides, feature_columns=["km", "hours"], keep_columns=["city"])
       city  predictions
    7  Oslo         1.50
    9  Bonn         2.25
    """

    @unframed
    def __init__(self, checkpoint: Any, predictor_cls: Any, **predictor_kwargs: Any) -> None:
        """Do as ``from_checkpoint`` does."""
        self._work: _OfClass | _OfFunction = _OfClass(checkpoint, predictor_cls, predictor_kwargs)

    @classmethod
    @unframed
    def from_checkpoint(cls, checkpoint: Any, predictor_cls: Any, **kwargs: Any) -> BatchPredictor:
        """Predict with the model of a checkpoint.

        ``checkpoint`` is ``TorchCheckpoint.from_model(model)`` or its like, ``predictor_cls`` the predictor of the
        same library, which takes ``kwargs``: ``device=``, ``method=``, …. For PyTorch also ``model=``, what the
        weights belong to where the checkpoint cannot know, and ``use_gpu=True``, with which each worker gets a GPU.

        Or it is a class of your own with a class method ``from_checkpoint(checkpoint, **kwargs)``, called once per
        worker, and one of ``predict(batch, **kwargs)``, ``_predict_pandas(frame)`` and ``_predict_numpy(dict of
        arrays)``, which give one result per row. Batches are DataFrames, unless its attribute ``batch_format`` says
        ``"numpy"`` or ``"pyarrow"``. Raises ``ArgumentError`` for a checkpoint of another library.
        """
        return cls(checkpoint, predictor_cls, **kwargs)

    @classmethod
    @known_arguments
    def from_pandas_udf(
        cls,
        pandas_udf: Callable[[pd.DataFrame], Any],
        batch_size_bytes: int | str | None = None,
        predict_batch_kwargs: Mapping[str, Any] | None = None,
    ) -> BatchPredictor:
        """Carry a function over the data: it gets DataFrames, and returns a DataFrame or one result per row.

        ``pandas_udf`` is the function. What it returns without names, an array (n,), (n, 1) or (n, k) or a Series,
        becomes the column ``predictions``. ``batch_size_bytes``: each batch is about so many bytes in memory, a
        number or text such as ``"16MiB"``. ``predict_batch_kwargs`` as in ``predict``, for all calls. Without
        ``keep_columns`` the function may return another number of rows. Raises ``ArgumentError`` for anything that
        is no function.

        >>> import pandas as pd
        >>> double = BatchPredictor.from_pandas_udf(lambda df: pd.DataFrame({"double": 2 * df["a"]}))
        >>> double.predict(pd.DataFrame({"a": [1, 2]}))["double"].tolist()
        [2, 4]
        >>> BatchPredictor.from_pandas_udf(lambda df: 2 * df["a"].to_numpy()).predict(pd.DataFrame({"a": [1, 2]}))
           predictions
        0            2
        1            4
        """
        if not callable(pandas_udf):
            raise ArgumentError(f"from_pandas_udf({pandas_udf!r}): it takes a function of a DataFrame.")
        made = object.__new__(cls)
        options = _named("from_pandas_udf", predict_batch_kwargs)
        made._work = _OfFunction(pandas_udf, options, given_batch_bytes(batch_size_bytes, None))
        return made

    def get_preprocessor(self) -> Any:
        """Return what prepares the data before the model: what was set here, else the checkpoint's; or None."""
        return self._work.preprocessor() if self._preprocessor is ... else self._preprocessor

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Let this prepare the data, in the place of the checkpoint's; None: nothing.

        An object with ``transform_batch`` or ``transform``, or a function of a DataFrame; else ``ArgumentError``.
        """
        if preprocessor is not None:
            preparing_method(preprocessor)
        self._preprocessor = preprocessor

    _preprocessor: Any = ...

    def __repr__(self) -> str:
        return f"BatchPredictor({self._work})"

    @unframed
    def predict(
        self,
        data: Any,
        *,
        feature_columns: str | Sequence[str] | None = None,
        keep_columns: str | Sequence[str] | None = None,
        batch_size: int = BATCH_SIZE,
        min_scoring_workers: int = 1,
        max_scoring_workers: int | None = None,
        num_cpus_per_worker: float | None = None,
        num_gpus_per_worker: float | None = None,
        predict_batch_kwargs: Mapping[str, Any] | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        object_store_memory_per_worker: float | None = None,
        separate_gpu_stage: bool = True,
        trainer_resources: Any = None,
        **predict_kwargs: Any,
    ) -> Any:
        """Return the predictions for ``data``, row for row and in order.

        Parameters
        ----------
        data
            A ``Dataset``: the result is a lazy one. Or a DataFrame: one with the same index comes back.
        feature_columns, keep_columns
            The columns that the model gets (default: all), and those that stand before its predictions (default:
            none). They are those of what the preprocessor gives, if there is one.
        batch_size
            Rows per call of the model; the last one may be smaller.
        min_scoring_workers, max_scoring_workers
            How many workers at least and at most; default: as many as ``Dataset.predict`` has.
        num_cpus_per_worker, num_gpus_per_worker, ray_remote_args
            What one worker needs; the last may have ``num_cpus``, ``num_gpus`` and ``memory``.
        predict_batch_kwargs, predict_kwargs
            ``{"output_column_name": "score"}`` names the column of a model's only result (default:
            ``predictions``). Else options of the predictor, as in ``from_checkpoint``, or further arguments of your
            own ``predict``, or of the function. For PyTorch, ``dtype`` is that of the inputs.
        object_store_memory_per_worker, separate_gpu_stage, trainer_resources
            Without effect: there is no object store, and a preprocessor never runs in workers with a GPU.

        Raises
        ------
        ArgumentError
            For a value that makes no sense. An argument that is not known is an ``UnknownArgument``; a prediction
            with the name of a column in ``keep_columns`` a ``ColumnExists``.
        """
        arguments = {**locals(), **predict_kwargs}
        if not isinstance(data, Dataset):
            return self._framed(arguments)
        features = None if feature_columns is None else given_names("feature_columns", feature_columns)
        keep = _kept(keep_columns)
        called = {**_named("predict", predict_batch_kwargs), **self._checked(predict_kwargs)}
        needs = _needs(num_cpus_per_worker, num_gpus_per_worker, ray_remote_args)
        if self._work.options.get("use_gpu") and needs["num_gpus"] is None:
            needs["num_gpus"] = 1
        needs["concurrency"] = _bounds(min_scoring_workers, max_scoring_workers)
        size, preprocessor = given_batch_size(batch_size) or BATCH_SIZE, self.get_preprocessor()
        if preprocessor is not None:
            prepare = Preprocessing(preprocessor)
            data = data.map_batches(prepare, batch_size=size, batch_format=prepare.batch_format)
        named = called.pop(OUTPUT, self._work.options.get(OUTPUT))
        column = _column(COLUMN if named is None else named, keep)
        model, more = self._work.at_work(
            called, column, size, is_named=named is not None, prepared=preprocessor is not None
        )
        more |= needs
        if isinstance(self._work, _OfFunction) and not keep:  # it may return another number of rows
            return data.map_batches(model, columns=features, **more)
        carried: Any = list(keep) if keep else "none"
        step = given_predict(
            model, inputs=features, output=column, own_names=True, keep=carried, replace=False, **more
        )
        return data.with_step(step)

    def _framed(self, arguments: dict[str, Any]) -> Any:
        """Return the predictions for a DataFrame as one with its index; ``arguments`` are those of ``predict``."""
        import headrace

        frame = arguments.pop("data")
        if not (hasattr(frame, "iloc") and hasattr(frame, "columns")):
            raise ArgumentError(
                f"predict takes a Dataset or a DataFrame, not {type(frame).__name__}. hr.read_parquet(path), "
                "hr.from_arrow(table) and hr.from_numpy(array) make a Dataset."
            )
        keep = _kept(arguments["keep_columns"])
        if not len(frame):
            return frame[[*keep]].assign(**{COLUMN: []})
        given = {name: value for name, value in arguments.items() if name not in ("self", "predict_kwargs")}
        asked = {
            name for name, value in arguments.items() if name.endswith(("_workers", "_worker")) and value
        }
        data = headrace.from_pandas(frame.reset_index(drop=True))
        if asked == {"min_scoring_workers"} or (
            arguments["max_scoring_workers"] == 1 and not arguments["num_gpus_per_worker"]
        ):
            data = data.with_options(engine="inline")  # nobody has to send the rows anywhere
        made = self.predict(data, **given).to_pandas()
        made = made[[*keep, *(name for name in made.columns if name not in keep)]]
        return made.set_axis(frame.index) if len(made) == len(frame) else made

    def _checked(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keyword arguments of ``predict``; raise ``UnknownArgument`` for those that nothing accepts."""
        accepted = self._work.argument_names()
        for name in kwargs if accepted is not None else ():
            if name not in (*accepted, OUTPUT):  # type: ignore[misc]
                known = [*inspect.signature(BatchPredictor.predict).parameters, *accepted, OUTPUT]  # type: ignore[misc]
                raise UnknownArgument(f"predict() has no argument {name!r}.{nearest(name, known)}")
        return kwargs


# ---------------------------------------------------------------- what does the work


class _OfFunction:
    """A function, the arguments that it is given, and how many bytes its batches have, if that was said."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], batch_bytes: int | None
    ) -> None:
        self.options, self._function, self._bytes = options, function, batch_bytes

    def __str__(self) -> str:
        return f"PandasUDF={getattr(self._function, '__name__', self._function)!s}"

    def preprocessor(self) -> None:
        """Return None: there is no checkpoint that could have one."""

    def argument_names(self) -> tuple[str, ...] | None:
        """Return the names of arguments that ``predict`` may be given for it; None: any."""
        return _argument_names(self._function)

    def at_work(
        self, options: dict[str, Any], column: str, size: int, *, is_named: bool, prepared: bool
    ) -> tuple[Any, dict[str, Any]]:
        """Return what a step calls, and the step's arguments. ``is_named``: the user has named the column."""
        if self._bytes is not None and size != BATCH_SIZE:
            raise ArgumentError(
                f"batch_size={size}: from_pandas_udf was given batch_size_bytes, which already sets it."
            )
        options = {**self.options, **options}
        options.pop(OUTPUT, None)
        asked = _parameters(self._function).get(OUTPUT)
        if asked is not None and (is_named or asked.default is asked.empty):
            options[OUTPUT] = column
        sizes = {"batch_size": size} if self._bytes is None else {"batch_size_bytes": self._bytes}
        named = self._function if isinstance(self._function, type) else _NamedResults(self._function, column)
        return named, {"batch_format": "pandas", "fn_kwargs": options, **sizes}


class _NamedResults:
    """A function of DataFrames with a name for what it returns without names."""

    def __init__(self, function: Callable[..., Any], column: str) -> None:
        self._function, self._column = function, column
        self.__qualname__ = callable_name(function)

    def __call__(self, frame: Any, **options: Any) -> Any:
        from headrace.core.arrow.model_columns import flat, has_names

        made = self._function(frame, **options)
        if made is None or isinstance(made, Iterator) or has_names(made):
            return made
        return {self._column: flat(made)}


class _OfClass:
    """A predictor class, ours or the user's, with the checkpoint that its models are of, and its options."""

    def __init__(self, checkpoint: Any, kind: Any, options: dict[str, Any]) -> None:
        self.options, self._checkpoint, self._kind = options, checkpoint, kind
        name = getattr(kind, "__name__", repr(kind))
        self._is_ours = isinstance(kind, type) and issubclass(kind, Direct)
        if not isinstance(kind, type) or not callable(getattr(kind, "from_checkpoint", None)):
            raise ArgumentError(
                f"from_checkpoint: {name} is not a predictor class. It takes TorchPredictor or one of its like, "
                "or a class with the class method from_checkpoint(checkpoint) and the method predict(batch)."
            )
        if not self._is_ours:
            method_of(kind)
            return
        if not kind.__module__.startswith("headrace."):
            base = next(each for each in kind.__mro__ if each.__module__.startswith("headrace."))
            raise ArgumentError(
                f"from_checkpoint: {name} derives from {base.__name__}, which calls none of the "
                "methods that AIR's did (call_model, …). Let the model return what is wanted, or write a class "
                "of your own, from headrace.compat.ray.train.predictor.Predictor."
            )
        if not callable(getattr(checkpoint, "given_to", None)):
            raise ArgumentError(
                f"from_checkpoint: {name} takes a checkpoint such as TorchCheckpoint.from_model("
                f"model), not {type(checkpoint).__name__}."
            )
        self._adapter(options)

    def __str__(self) -> str:
        return f"checkpoint={self._checkpoint!r}, predictor_cls={self._kind.__name__}"

    def preprocessor(self) -> Any:
        """Return the checkpoint's, if it has one."""
        get = getattr(self._checkpoint, "get_preprocessor", None)
        return get() if callable(get) else None

    def argument_names(self) -> tuple[str, ...] | None:
        """Return the names of arguments that ``predict`` may be given for it; None: any."""
        if not self._is_ours:
            return _argument_names(getattr(self._kind, method_of(self._kind)))
        if self._kind.__name__ == "TransformersPredictor":
            return None  # what is not its own is its pipeline's
        return *(_argument_names(self._kind.__init__) or ()), "model", "use_gpu"

    def at_work(
        self, options: dict[str, Any], column: str, size: int, *, is_named: bool, prepared: bool
    ) -> tuple[Any, dict[str, Any]]:
        """Return the predictor, and the arguments of its step. ``prepared``: a preprocessor has been there."""
        if self._is_ours:
            if self._kind.__name__ == "TorchPredictor" and "dtype" in options:
                # That of `predict` is the inputs'; that of `from_checkpoint` is the weights'.
                options["input_dtype"] = options.pop("dtype")
            return self._adapter(options), {"batch_size": size}
        made = OwnPredictor(self._kind, self._checkpoint, self.options, options, prepared=prepared)
        return made, {"batch_size": size}

    def _adapter(self, options: Mapping[str, Any]) -> Any:
        made: Direct = self._kind.from_checkpoint(self._checkpoint, **{**self.options, **options})
        made.preparing = None  # the data come prepared
        return made


# ---------------------------------------------------------------- arguments


def _named(verb: str, kwargs: Any) -> dict[str, Any]:
    """Return ``predict_batch_kwargs``, a dict or None, as a dict."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ArgumentError(f"{verb}(predict_batch_kwargs={kwargs!r}): it takes a dict of arguments by name.")
    return dict(kwargs or {})


def _kept(names: Any) -> tuple[str, ...]:
    return () if names is None or not len(names) else given_names("keep_columns", names)


def _column(name: Any, keep: Sequence[str]) -> str:
    """Return the name of the column with the predictions, if it can be one."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{OUTPUT}={name!r}: it takes the name of the column with the predictions.")
    if name in keep:
        raise ColumnExists(
            f"The predictions are to be named {name!r}, and keep_columns has a column of that name. Name them "
            f"otherwise: predict_batch_kwargs={{{OUTPUT!r}: 'score'}}."
        )
    return name


def _bounds(least: Any, most: Any) -> tuple[int, int] | None:
    """Return how many workers there may be; None if it was not given."""
    (least, _) = worker_bounds("min_scoring_workers", least)
    if most is None:
        return None if least == 1 else (least, max(least, os.cpu_count() or 1))
    worker_bounds("max_scoring_workers", most)
    if most < least:
        raise ArgumentError(f"max_scoring_workers={most} is less than min_scoring_workers={least}.")
    return least, most


def _needs(num_cpus: float | None, num_gpus: float | None, remote: Any) -> dict[str, Any]:
    """Return what one worker needs, in the words of ``Dataset.predict``."""
    needs: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": None}
    for name, value in _named("ray_remote_args", remote).items():
        if name in needs:
            needs[name] = value if needs[name] is None else needs[name]
        elif name not in _WITHOUT_EFFECT:
            hint = nearest(str(name), tuple(needs)) or f" It takes {', '.join(needs)}."
            raise UnknownArgument(f"ray_remote_args: {name!r} is not offered.{hint}")
    return needs


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # it does not tell
        return {"kwargs": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}


def _argument_names(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of a function's arguments; None if it takes any, or does not tell."""
    parameters = _parameters(function)
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return None
    return tuple(name for name in parameters if name not in ("self", "cls"))
