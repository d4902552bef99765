"""Predictors that are made of checkpoints, and that may be asked outright: nobody has to call ``load`` before."""

from __future__ import annotations

import copy
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from headrace.core.arguments import unframed
from headrace.errors import ArgumentError, BadInput

T = TypeVar("T", bound="Direct")

COLUMN = "predictions"
"""What the column is called that holds a model's only result, as in Ray AIR."""

_loaded: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class Direct:
    """A library's predictor with the face that Ray AIR's have: ``from_checkpoint``, and ``predict`` of a frame.

    ``preparing``: the checkpoint's preprocessor, as a function of a batch; None without one.

    An engine loads a predictor before it predicts. One that nobody loaded loads a copy of itself when it is asked,
    and keeps that if it came from a file: an object is the user's again after the call.
    """

    preparing: Any = None

    @classmethod
    @unframed
    def from_checkpoint(cls: type[T], checkpoint: Any, **options: Any) -> T:
        """Make the predictor of a checkpoint; ``options`` are those of the class.

        Its ``predict`` takes a DataFrame and returns one with the same index: the column ``predictions``, or the
        names that a model's several results have. An array (n, k…), or a dict of arrays, gives what the model does.
        All of them pass through the checkpoint's preprocessor before.
        Raises ``ArgumentError`` for a checkpoint of another library.
        """
        give = getattr(checkpoint, "given_to", None)
        if give is None:
            raise ArgumentError(
                f"{cls.__name__}.from_checkpoint takes a checkpoint, not {type(checkpoint).__name__}. "
                "headrace.compat.ray.train.torch.TorchCheckpoint.from_model(model) and its like make one."
            )
        model, given = give(cls.__name__, options)
        make: Any = cls
        made: T = make(model, **given)
        made.preparing = checkpoint.preparing()
        return made


def directly(predictor: Any, data: Any) -> Any:
    """Return what a predictor gives that nobody loaded, in the form of ``data``."""
    twin = _loaded.get(predictor)
    if twin is None:
        twin = copy.copy(predictor)
        twin.load()
        if predictor._artifact is not None:
            _loaded[predictor] = twin
    if predictor.preparing is not None:
        data = _prepared(predictor.preparing, data)
    try:
        return _answered(twin, data)
    finally:
        if predictor not in _loaded:
            twin.close()


def _prepared(preparing: Any, data: Any) -> Any:
    """Return what a preprocessor makes of the data: of a frame a frame, of anything else a dict of arrays."""
    made = preparing({"data": data} if isinstance(data, np.ndarray) else data)
    if hasattr(made, "to_pandas"):
        made = made.to_pandas()
    is_frame = hasattr(data, "iloc")
    if hasattr(made, "iloc") and not is_frame:
        return {str(name): made[name].to_numpy() for name in made.columns}
    if isinstance(made, dict) and is_frame:
        import pandas as pd

        columns = {name: _values(array) for name, array in made.items()}
        same = all(len(column) == len(data) for column in columns.values())
        return pd.DataFrame(columns, index=data.index if same else None)
    return made


def _answered(twin: Any, data: Any) -> Any:
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return _frame(twin, data)
    if isinstance(data, np.ndarray):
        return twin.predict(_columns(twin, {"data": data}))
    if isinstance(data, dict):
        return twin.predict(_columns(twin, data))
    raise BadInput(
        f"predict takes a DataFrame, an array or a dict of arrays, but it was given a {type(data).__name__}."
    )


def _columns(twin: Any, data: dict[str, Any]) -> Any:
    if twin.batch_format == "pandas":
        import pandas as pd

        return pd.DataFrame(data)
    return data


def _frame(twin: Any, frame: Any) -> Any:
    import pandas as pd

    batch = frame if twin.batch_format == "pandas" else {name: frame[name].to_numpy() for name in frame}
    made = twin.predict(batch)
    results = made if isinstance(made, dict) else {COLUMN: made}
    return pd.DataFrame({name: _values(result) for name, result in results.items()}, index=frame.index)


def _values(result: Any) -> Any:
    array = np.asarray(result)
    if array.ndim == 2 and array.shape[1] == 1:
        return array.reshape(-1)
    return array if array.ndim == 1 else list(array)
