"""Scoring with a function of DataFrames."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from headrace.compat.air.scored_data import ScoredData
from headrace.compat.air.scoring_hosts import NamedResults
from headrace.core.direct_predictor import COLUMN
from headrace.engines.local import machine
from headrace.errors import ArgumentError, UnknownArgument, nearest
from headrace.plan.strategies import worker_bounds
from headrace.session.models import given_predict

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
