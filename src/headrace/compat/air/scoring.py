"""Scoring with a function of DataFrames."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from headrace.compat.air.scored_data import Prepared, ScoredData, form_wanted
from headrace.core.human import short_repr
from headrace.engines.local import machine
from headrace.errors import ArgumentError, ColumnExists, UnknownArgument, nearest
from headrace.plan.functions import callable_name
from headrace.plan.verb_options import worker_bounds
from headrace.predictors import COLUMN, Direct
from headrace.session.models import given_predict

# How a ``BatchPredictor`` puts its model to work: predictors of libraries in this process, and classes of users.


class InProcessPredictor:
    """A library's predictor that gets many batches at once, and runs its model on ``rows`` rows at a time.

    Slicing, concatenation and conversions are then done once for many batches.
    """

    def __init__(self, predictor: Any, rows: int) -> None:
        self._predictor, self._rows = predictor, rows
        self._loaded: Any = None
        self.batch_format = predictor.batch_format
        self.label = predictor.label

    def load(self) -> None:
        """See ``Predictor.load``."""
        loaded = copy.copy(self._predictor)
        loaded.load()
        self._loaded, self.batch_format = loaded, loaded.batch_format

    def predict(self, batch: Any) -> Any:
        """See ``Predictor.predict``."""
        whole = getattr(self._loaded, "predict_in_pieces", None)
        if whole is not None:
            return whole(batch, self._rows)
        rows = len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)
        if rows <= self._rows:
            return self._loaded.predict(batch)
        starts = range(0, rows, self._rows)
        return _joined([self._loaded.predict(_cut(batch, at, at + self._rows)) for at in starts])

    def close(self) -> None:
        """See ``Predictor.close``."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()

    def identity(self) -> Any:
        """See ``Predictor``."""
        return self._predictor.identity()

    def __copy__(self) -> InProcessPredictor:
        """Return another for this process."""
        return InProcessPredictor(self._predictor, self._rows)


def _cut(batch: Any, start: int, stop: int) -> Any:
    if isinstance(batch, dict):
        return {name: array[start:stop] for name, array in batch.items()}
    return batch.iloc[start:stop]


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return np.concatenate(parts)


class UserPredictor:
    """A predictor of a user's class, as in Ray AIR: made from a checkpoint, once per worker."""

    def __init__(
        self,
        kind: Any,
        checkpoint: Any,
        kwargs: Mapping[str, Any],
        call_kwargs: Mapping[str, Any],
        column: str,
        *,
        prepared: bool = False,
    ) -> None:
        self._prepared = prepared
        self._kind, self._checkpoint, self._kwargs = kind, checkpoint, dict(kwargs)
        self._call_kwargs, self._column = dict(call_kwargs), column
        self._method = method_of(kind)
        self._made: Any = None
        self.batch_format = form_wanted(kind, "numpy" if self._method == "_predict_numpy" else "pandas")
        self.label = kind.__name__

    def load(self) -> None:
        """See ``Predictor.load``."""
        self._made = self._kind.from_checkpoint(self._checkpoint, **self._kwargs)
        forget = getattr(self._made, "set_preprocessor", None)
        if self._prepared and callable(forget):
            forget(None)  # the batches have been through it

    def predict(self, batch: Any) -> Any:
        """See ``Predictor.predict``."""
        # Arrays of its own, which it may write to: the user's data are not to change.
        if isinstance(batch, dict):
            batch = {name: array.copy() for name, array in batch.items()}
        return getattr(self._made, self._method)(batch, **self._call_kwargs)

    def close(self) -> None:
        """See ``Predictor.close``."""
        close = getattr(self._made, "close", None)
        if callable(close):
            close()
        self._made = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was made."""
        return {**self.__dict__, "_made": None}


def method_of(kind: Any) -> str:
    """Return which method of a user's class predicts; ``predict`` wins if it is the class's own."""
    for name in ("predict", "_predict_pandas", "_predict_numpy"):
        if callable(getattr(kind, name, None)):
            return name
    raise ArgumentError(
        f"{short_repr(getattr(kind, '__name__', kind))} has no predict(batch, **kwargs), _predict_pandas(frame) or "
        "_predict_numpy(arrays): one of them has to make the predictions."
    )


class NamedResults:
    """A function of DataFrames with names for what it returns without names."""

    def __init__(self, function: Callable[..., Any], column: str) -> None:
        self._function, self._column = function, column
        self.__qualname__ = callable_name(function)

    def __call__(self, frame: Any, **options: Any) -> Any:
        from headrace.core.arrow.model_columns import flat, has_names

        made = self._function(frame, **options)
        if made is None or isinstance(made, Iterator) or has_names(made):
            return made
        return {self._column: flat(made)}


_WITHOUT_EFFECT = {  # entries of ray_remote_args that change nothing here
    *(
        "max_restarts",
        "max_task_retries",
        "max_retries",
        "retry_exceptions",
        "max_calls",
        "scheduling_strategy",
    ),
    *("num_returns", "name", "namespace", "lifetime", "object_store_memory", "max_pending_calls"),
}
_NOT_SUPPORTED = {
    "runtime_env": "workers have this process's environment, folder and sys.path: set them up before",
    "resources": "workers are given cores, GPUs and memory, and nothing by other names",
    "accelerator_type": "the GPUs of this machine are the ones that there are",
    "max_concurrency": "a worker predicts one batch after the other; Dataset.predict(max_in_flight=) is for models "
    "that wait",
}


def bounds(least: Any, most: Any) -> tuple[int, int] | None:
    """Return how many workers there may be; None if it was not given."""
    (least, _) = worker_bounds("min_scoring_workers", least)
    if most is None:
        return None if least == 1 else (least, max(least, os.cpu_count() or 1))
    worker_bounds("max_scoring_workers", most)
    if most < least:
        raise ArgumentError(f"max_scoring_workers={most} is less than min_scoring_workers={least}.")
    return least, most


def needs_of(num_cpus: float | None, num_gpus: float | None, remote: Any) -> dict[str, Any]:
    """Return what one worker needs, in the words of ``Dataset.predict``."""
    needs: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": None}
    if remote is not None and not isinstance(remote, Mapping):
        raise ArgumentError(f"ray_remote_args={remote!r}: it takes a dict of arguments by name.")
    for name, value in (remote or {}).items():
        if name in _NOT_SUPPORTED:
            raise ArgumentError(f"ray_remote_args: {name!r} is not supported: {_NOT_SUPPORTED[name]}.")
        if name in needs:
            needs[name] = value if needs[name] is None else needs[name]
        elif name not in _WITHOUT_EFFECT:
            raise UnknownArgument(
                f"ray_remote_args has an unknown entry {name!r}.{nearest(str(name), (*needs, *_WITHOUT_EFFECT))}"
            )
    return needs


def fits_one_process(needs: dict[str, Any]) -> bool:
    """Say whether one worker is asked for, and this process can be it: a GPU that is not there is refused."""
    return needs.get("concurrency") == (1, 1) and (needs.get("num_gpus") or 0) <= len(machine.devices())


def checked_only(needs: dict[str, Any]) -> dict[str, Any]:
    """Return what one worker needs, without how many: this process does the work, and there must be as much here."""
    return {name: value for name, value in needs.items() if name != "concurrency"}


OUTPUT = "output_column_name"
BATCH_SIZE = 4096


def named_options(verb: str, kwargs: Any) -> dict[str, Any]:
    """Return ``predict_batch_kwargs``, a dict or None, as a dict."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ArgumentError(f"{verb}(predict_batch_kwargs={kwargs!r}): it takes a dict of arguments by name.")
    return dict(kwargs or {})


def argument_names(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of a function's arguments; None if it takes any, or has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return tuple(each.name for each in parameters if each.name not in ("self", "cls"))


def takes_argument(function: Callable[..., Any], name: str, *, given: bool) -> bool:
    """Say whether to pass an argument on: the function names it, and the user gave it or there is no default."""
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):
        return False
    return parameter is not None and (given or parameter.default is parameter.empty)


def column_named(name: Any) -> str:
    """Return the name of the column with the predictions, if it can be one."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{OUTPUT}={name!r}: it takes the name of the column with the predictions.")
    return name


class FunctionScoring:
    """A function, the arguments that it is given, and how many bytes its batches have, if that was said."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], batch_bytes: int | None
    ) -> None:
        self.options = options
        self._function = function
        self._bytes = batch_bytes

    def __str__(self) -> str:
        return f"PandasUDF={getattr(self._function, '__name__', self._function)!s}"

    def preprocessor(self) -> None:
        """Return None: there is not a checkpoint that could have one."""

    def argument_names(self) -> tuple[str, ...] | None:
        """Return the names of arguments that ``predict`` may be given for it; None: any."""
        return argument_names(self._function)

    def score(
        self,
        given: ScoredData,
        features: tuple[str, ...] | None,
        keep: tuple[str, ...],
        size: int,
        needs: dict[str, Any],
        options: dict[str, Any],
    ) -> Any:
        """Return what the function makes of the data, in the form of the data."""
        options = {**self.options, **options}
        named = options.pop(OUTPUT, None)
        column = column_named(COLUMN if named is None else named)
        if takes_argument(self._function, OUTPUT, given=named is not None):
            options[OUTPUT] = column
        if self._bytes is not None and size != BATCH_SIZE:
            raise ArgumentError(
                f"batch_size={size}: from_pandas_udf was given batch_size_bytes, which already sets it."
            )
        here = given.eager and fits_one_process(needs)
        data = given.dataset(alone=here)
        more: dict[str, Any] = {"batch_format": "pandas", "fn_kwargs": options}
        more |= {"batch_size": size} if self._bytes is None else {"batch_size_bytes": self._bytes}
        more |= checked_only(needs) if here else needs
        if keep:
            carried = given.columns_to_carry(keep)
            step = given_predict(
                self._function,
                inputs=data._inputs(features),
                output=column,
                own_names=True,
                keep=carried,
                replace=False,
                **more,
            )
            made = data.with_step(step)
        else:
            function = (
                self._function if isinstance(self._function, type) else NamedResults(self._function, column)
            )
            made = data.map_batches(function, columns=data._inputs(features), **more)
        return given.result(made, keep, column)


# Scoring with the model of a checkpoint: which arguments it takes, where it works, and what comes out.

_AT_A_TIME = 131_072  # rows that a model in this process is given at a time, if they are no heavier than
_AT_A_TIME_BYTES = 16 << 20  # this
_SAMPLE = 1_024
_ALONE = ("TorchPredictor", "OnnxPredictor", "XGBoostPredictor", "LightGBMPredictor", "KerasPredictor")


class ModelScoring:
    """A predictor class, ours or the user's, with the checkpoint that its models are of, and its options."""

    def __init__(self, checkpoint: Any, kind: Any, options: dict[str, Any]) -> None:
        self.options = options
        self._checkpoint = checkpoint
        self._kind = kind
        self._made: dict[str, Any] = {}
        self._check()

    def __str__(self) -> str:
        return f"checkpoint={self._checkpoint!r}, predictor_cls={self._kind.__name__}"

    def preprocessor(self) -> Any:
        """Return the checkpoint's, if it has one."""
        get = getattr(self._checkpoint, "get_preprocessor", None)
        return get() if callable(get) else None

    def argument_names(self) -> tuple[str, ...] | None:
        """Return the names of arguments that ``predict`` may be given for it; None: any."""
        if not is_ours(self._kind):
            return argument_names(getattr(self._kind, method_of(self._kind)))
        if self._kind.__name__ == "TransformersPredictor":
            return None  # what is not its own is its pipeline's
        return *(argument_names(self._kind.__init__) or ()), "model", "use_gpu"

    def _check(self) -> None:
        if is_ours(self._kind):
            if not self._kind.__module__.startswith("headrace."):
                base = next(each for each in self._kind.__mro__ if each.__module__.startswith("headrace."))
                raise ArgumentError(
                    f"from_checkpoint: {self._kind.__name__} derives from {base.__name__}, which calls none of the "
                    "methods that AIR's did (call_model, …). Let the model return what is wanted, or write a class "
                    "of your own, from headrace.compat.ray.train.predictor.Predictor."
                )
            if not callable(getattr(self._checkpoint, "given_to", None)):
                raise ArgumentError(
                    f"from_checkpoint: {self._kind.__name__} takes a checkpoint such as TorchCheckpoint.from_model("
                    f"model), not {type(self._checkpoint).__name__}."
                )
            self._adapter({})
            return
        if not isinstance(self._kind, type) or not callable(getattr(self._kind, "from_checkpoint", None)):
            name = getattr(self._kind, "__name__", repr(self._kind))
            raise ArgumentError(
                f"from_checkpoint: {name} is not a predictor class. It takes TorchPredictor or one of its like, "
                "or a class with the class method from_checkpoint(checkpoint) and the method predict(batch)."
            )
        UserPredictor(self._kind, self._checkpoint, self.options, {}, COLUMN)

    def _adapter(self, options: Mapping[str, Any]) -> Any:
        given = dict(options)
        if self._kind.__name__ == "TorchPredictor" and "dtype" in given:
            # The one of `predict`; that of `from_checkpoint` is the weights'.
            given["input_dtype"] = given.pop("dtype")
        made: Direct = self._kind.from_checkpoint(self._checkpoint, **{**self.options, **given})
        made.preparing = None  # the data come prepared
        return made

    def score(
        self,
        given: ScoredData,
        features: tuple[str, ...] | None,
        keep: tuple[str, ...],
        size: int,
        needs: dict[str, Any],
        options: dict[str, Any],
    ) -> Any:
        """Return the predictions, in the form of the data."""
        column = column_named(options.pop(OUTPUT, COLUMN))
        if column in keep:
            raise ColumnExists(
                f"The predictions are to be named {column!r}, and keep_columns has a column of that name. Name them "
                f"otherwise: predict_batch_kwargs={{{OUTPUT!r}: 'score'}}."
            )
        if given.eager and not given.sample(1)[0]:
            return given.empty_result(keep, column)
        here = given.eager and fits_one_process(needs)
        model: Any
        if is_ours(self._kind):
            key = repr(sorted(options.items()))
            model = self._made[key] = self._made.get(key) or self._adapter(options)
            here = here or (given.eager and self._kind.__name__ in _ALONE and not any(needs.values()))
            if here:
                model = InProcessPredictor(model, size)
                size *= max(1, _rows_per_call(given) // size)
        else:
            prepared = isinstance(given, Prepared)
            model = UserPredictor(
                self._kind, self._checkpoint, self.options, options, column, prepared=prepared
            )
        data = given.dataset(alone=here)
        step = given_predict(
            model,
            inputs=data._inputs(features),
            output=column,
            own_names=True,
            keep=given.columns_to_carry(keep),
            replace=False,
            batch_size=size,
            **(checked_only(needs) if here else needs),
        )
        made = data.with_step(step)
        return given.result(made, keep, column)


def is_ours(kind: Any) -> bool:
    """Say whether a predictor class is one of Headrace, or derives from one."""
    return isinstance(kind, type) and issubclass(kind, Direct)


def _rows_per_call(given: ScoredData) -> int:
    """Return how many rows a model in this process gets at a time, by the size of the first of them."""
    rows, weight = given.sample(_SAMPLE)
    return min(_AT_A_TIME, int(_AT_A_TIME_BYTES // max(weight / max(rows, 1), 1)))
