"""What users bring to a ``BatchPredictor``: preprocessors of any library, and predictor classes of their own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

from headrace.core.human import short_repr
from headrace.errors import ArgumentError, BadReturn

Form = Literal["numpy", "pandas", "pyarrow"]
FORMATS = ("numpy", "pandas", "pyarrow")


class Preprocessing:
    """Prepares batches as a preprocessor does; for ``Dataset.map_batches``.

    A preprocessor has the method ``transform_batch(batch)``, as Ray's do; or ``transform(frame)``, as scikit-learn's
    do; or it is a function of a batch. Batches are DataFrames, unless its ``batch_format`` or its
    ``preferred_batch_format()`` says ``"numpy"`` or ``"pyarrow"``. Raises ``ArgumentError`` for anything else.

    >>> import pandas as pd
    >>> Preprocessing(lambda frame: frame * 2)(pd.DataFrame({"x": [1, 2]}))["x"].tolist()
    [2, 4]
    """

    def __init__(self, preprocessor: Any) -> None:
        self._preprocessor = preprocessor
        self._method = preparing_method(preprocessor)
        self.batch_format = form_wanted(preprocessor)
        name = getattr(preprocessor, "__qualname__", type(preprocessor).__name__).rpartition(".")[2]
        self.__qualname__ = self.__name__ = f"preprocessor {name}"

    def __call__(self, batch: Any) -> Any:
        batch = _in_form(batch, self.batch_format)
        if self._method == "transform":
            return _transformed(self._preprocessor, batch)
        call = self._preprocessor if self._method is None else self._preprocessor.transform_batch
        made = call(batch)
        if not (isinstance(made, Mapping) or hasattr(made, "columns") or hasattr(made, "schema")):
            raise BadReturn(
                f"{self.__qualname__} returned {type(made).__name__}: it has to return a DataFrame, a dict of arrays "
                "or an Arrow table, with names for its columns"
            )
        return made


def preparing_method(preprocessor: Any) -> str | None:
    """Return which method prepares a batch; None if the preprocessor itself is called.

    >>> from sklearn.preprocessing import StandardScaler
    >>> preparing_method(StandardScaler()), preparing_method(len)
    ('transform', None)
    """
    if isinstance(preprocessor, type):
        raise ArgumentError(
            f"preprocessor={preprocessor.__name__} is a class: give an object of it, {preprocessor.__name__}(…)."
        )
    for name in ("transform_batch", "transform"):
        if callable(getattr(preprocessor, name, None)):
            return name
    if callable(preprocessor):
        return None
    raise ArgumentError(
        f"preprocessor={short_repr(preprocessor)}: it takes an object with transform_batch(batch) or "
        "transform(frame), such as a fitted transformer of scikit-learn, or a function of a batch."
    )


def form_wanted(by: Any, default: Form = "pandas") -> Form:
    """Return the batches that a preprocessor or a class wants: by its attribute, by its method, else ``default``."""
    wanted, preferred = getattr(by, "batch_format", None), getattr(by, "preferred_batch_format", None)
    if wanted is None and inspect.ismethod(preferred):
        wanted = preferred()
    wanted = getattr(wanted, "value", wanted)
    if wanted in (None, "arrow"):  # Ray's word; its preprocessors take frames, too
        return default
    form: Form = wanted
    if form not in FORMATS:
        name = getattr(by, "__name__", type(by).__name__)
        raise ArgumentError(f"{name} wants batches as {form!r}; it may be one of {', '.join(FORMATS)}.")
    return form


def _in_form(batch: Any, batch_format: str) -> Any:
    """Return a batch in the form that a preprocessor wants; arrays are its own, as it may write to them."""
    if isinstance(batch, dict):
        if batch_format != "pandas":
            return {name: array.copy() for name, array in batch.items()}
        import pandas as pd

        return pd.DataFrame(
            {name: array if array.ndim == 1 else list(array) for name, array in batch.items()}
        )
    if batch_format == "numpy" and hasattr(batch, "iloc"):
        return {str(name): batch[name].to_numpy(copy=True) for name in batch.columns}
    return batch


def _transformed(transformer: Any, frame: Any) -> Any:
    """Return a frame with what a transformer makes of its columns; columns that it was not fitted to stay."""
    import pandas as pd

    fitted = getattr(transformer, "feature_names_in_", None)
    names = list(frame.columns) if fitted is None else [str(name) for name in fitted]
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise BadReturn(
            f"preprocessor {type(transformer).__name__} was fitted to the columns {', '.join(names)}, and the data "
            f"have no {', '.join(missing)}"
        )
    made = transformer.transform(frame[names])
    if not hasattr(made, "columns"):
        made = made.toarray() if hasattr(made, "toarray") else made
        made = pd.DataFrame(made, columns=_names_after(transformer, names, made), index=frame.index)
    rest = frame.drop(columns=[name for name in names if name not in made.columns])
    return rest.assign(**{str(name): made[name].to_numpy() for name in made.columns})


def _names_after(transformer: Any, names: list[str], made: Any) -> list[str]:
    """Return what the columns of a transformer's array are called, by what scikit-learn says."""
    after = getattr(transformer, "get_feature_names_out", None)
    if callable(after):
        takes = "input_features" in inspect.signature(after).parameters
        return [str(name) for name in (after(names) if takes else after())]
    if getattr(made, "ndim", 1) == 2 and made.shape[1] == len(names):
        return names
    raise BadReturn(
        f"preprocessor {type(transformer).__name__} returned an array without names for its columns: let it return a "
        "DataFrame, by set_output(transform='pandas') in scikit-learn"
    )


class OwnPredictor:
    """A predictor of a user's class, as in Ray AIR: made from a checkpoint, once per worker."""

    def __init__(
        self,
        kind: Any,
        checkpoint: Any,
        kwargs: Mapping[str, Any],
        call_kwargs: Mapping[str, Any],
        *,
        prepared: bool,
    ) -> None:
        self._kind, self._checkpoint, self._kwargs = kind, checkpoint, dict(kwargs)
        self._call_kwargs, self._prepared = dict(call_kwargs), prepared
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
