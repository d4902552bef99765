"""The user's code in a plan: functions, callable objects, classes and predictors."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.core.door import completed, fills
from headrace.core.model_ports import Predictor, PredictorParts
from headrace.core.terminal import one_line
from headrace.errors import ArgumentError


def _here(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


class Function(msgspec.Struct, frozen=True):
    """The user's code in a step: a function, a callable object, or a class made once per worker.

    ``model``: it may be, or make, a predictor, and is then loaded and asked to predict instead of called.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    init_args: tuple[Any, ...] = ()
    init_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    version: str | None = None
    model: bool = False

    @property
    def name(self) -> str:
        """The name that messages use."""
        return callable_name(self.call)

    @property
    def predictor(self) -> Predictor | None:
        """The predictor that this is, if it is one."""
        call: Any = self.call
        return call if self.model and is_predictor(call) and not isinstance(call, type) else None

    @property
    def parts(self) -> PredictorParts:
        """What the predictor may have besides; defaults where this is none."""
        return completed(self.predictor, PredictorParts)

    @property
    def is_async(self) -> bool:
        """True if what is called per batch is a coroutine function, or an async generator."""
        call: Any = self.call
        return self.is_async_generator or is_async(
            call.predict if self.model and is_predictor(call) else call
        )

    @property
    def is_async_generator(self) -> bool:
        """True if what is called per batch yields its results between waits."""
        return is_async_generator(self.call)

    def build(self, run: Callable[..., Any] = _here, folder: str = "") -> Built:
        """Make what is called per batch or row; constructs a class and loads a model, so once per worker.

        Whatever else than the calls themselves is the user's code, ``run(function, *args, **kwargs)`` carries out.
        ``folder``: where a model may keep what shall be there when the run goes on.
        """
        call: Any = self.call
        predictor = None
        if isinstance(call, type):
            call = run(call, *self.init_args, **self.init_kwargs)
        elif hasattr(call, "__dict__") and not callable(getattr(call, "__get__", None)):
            call = copy.copy(call)  # what it keeps of its work is not to become a part of what the user gave
        if self.model and is_predictor(call):
            predictor = call
            parts = completed(call, PredictorParts)
            if folder and parts.keep_in is not None:
                parts.keep_in(folder)
            run(predictor.load)
            _check_format(predictor, parts.batch_format)
            call = predictor.predict
        if self.args or self.kwargs:
            call = functools.partial(_call_with, call, self.args, dict(self.kwargs))
        return Built(call, predictor, run)


def _check_format(predictor: Any, wanted: str | None) -> None:
    if wanted not in (None, "numpy", "pandas", "pyarrow"):
        raise ArgumentError(
            f"{callable_name(predictor)}.batch_format is {wanted!r}; it may be 'numpy', 'pandas' or 'pyarrow'."
        )


class Built(msgspec.Struct, frozen=True):
    """A function at work in one worker: what is called, and the predictor behind it, if there is one."""

    call: Callable[[Any], Any]
    predictor: Predictor | None = None
    run: Callable[..., Any] = _here

    @property
    def parts(self) -> PredictorParts:
        """What the predictor may have besides; defaults where there is none."""
        return completed(self.predictor, PredictorParts)

    def close(self) -> None:
        """Let a predictor go of what it holds."""
        if self.predictor is not None:
            self.run(self.predictor.close)


def is_predictor(value: Any) -> bool:
    """Say whether ``value``, or what a class makes, fills the ``Predictor`` port."""
    return fills(value, Predictor)


def is_async(call: Any) -> bool:
    """Say whether calling a function, a callable object, or what a class makes, gives a coroutine."""
    return inspect.iscoroutinefunction(_called(call))


def is_async_generator(call: Any) -> bool:
    """Say whether it gives an async generator instead."""
    return inspect.isasyncgenfunction(_called(call))


def _called(call: Any) -> Any:
    while isinstance(call, functools.partial):
        call = call.func
    return call if inspect.isroutine(call) else getattr(call, "__call__", call)  # noqa: B004 - the method itself


def _call_with(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
    return call(value, *args, **kwargs)


def callable_name(call: Any) -> str:
    """Name a function, class or callable object as its author would."""
    while isinstance(call, functools.partial):
        call = call.func
    if is_predictor(call) and not isinstance(call, type):
        return one_line(str(getattr(call, "label", None) or type(call).__qualname__))
    name = getattr(call, "__qualname__", None) or type(call).__qualname__
    return one_line(str(name).replace("<locals>.", ""))
