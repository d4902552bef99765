"""How a ``BatchPredictor`` puts its model to work: predictors of libraries in this process, and classes of users."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from headrace.core.human import short_repr
from headrace.errors import ArgumentError
from headrace.plan.functions import callable_name


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
        self.batch_format = _format_of(kind, self._method)
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


def _format_of(kind: Any, method: str) -> str:
    """Return the batches that a class wants: by its attribute, by the name of its method, else DataFrames."""
    format_ = getattr(kind, "batch_format", None)
    preferred = getattr(kind, "preferred_batch_format", None)
    if format_ is None and callable(preferred) and inspect.ismethod(preferred):
        format_ = preferred()
        format_ = getattr(format_, "value", format_)
    if format_ is None:
        format_ = "numpy" if method == "_predict_numpy" else "pandas"
    if format_ not in ("numpy", "pandas", "pyarrow"):
        raise ArgumentError(
            f"{kind.__name__} wants batches as {format_!r}; it may be 'numpy', 'pandas' or 'pyarrow'."
        )
    return str(format_)


class NamedResults:
    """A function of DataFrames with names for what it returns without names."""

    def __init__(self, function: Callable[..., Any], column: str) -> None:
        self._function, self._column = function, column
        self.__qualname__ = callable_name(function)

    def __call__(self, frame: Any, **options: Any) -> Any:
        from headrace.core.results import flat, has_names

        made = self._function(frame, **options)
        if made is None or isinstance(made, Iterator) or has_names(made):
            return made
        return {self._column: flat(made)}
