"""Models of other libraries as predictors: which is for which, imported when needed, and what they share."""

from __future__ import annotations

import copy
import sys
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from headrace.core.arguments import unframed
from headrace.core.door import Table, completed
from headrace.core.model_ports import PredictorParts
from headrace.errors import ArgumentError, BadInput

# The order counts: a sentence transformer is a torch module, too, and a booster's estimator one of scikit-learn.
_PREDICTORS = {
    "sentence_transformers": "predictors.sentence_transformers:SentenceTransformersPredictor",
    "mlflow": "annex.models.mlflow:MLflowPredictor",
    "transformers": "annex.models.transformers:TransformersPredictor",
    "onnx": "predictors.onnx:OnnxPredictor",
    "onnxruntime": "predictors.onnx:OnnxPredictor",
    "keras": "annex.models.keras:KerasPredictor",
    "torch": "predictors.torch.predictor:TorchPredictor",
    "xgboost": "annex.models.xgboost:XGBoostPredictor",
    "lightgbm": "annex.models.lightgbm:LightGBMPredictor",
    "sklearn": "predictors.sklearn:SklearnPredictor",
}
MODELS: Table[Any] = Table(
    "models",
    {library: f"headrace.{place}" for library, place in _PREDICTORS.items()},
    attributes=("load", "predict", "close"),
    classes=True,
)
"""Classes of predictors, by the library whose models they are for.

Each is made with a model or with the path of one. ``classes`` are the names of the library's classes of models,
``kind_of(path)`` returns None if no model of it is in a file or folder; a predictor may lack either.
"""


def predictor_names() -> list[str]:
    """Return the names of the predictors that are ours."""
    return sorted({place.partition(":")[2] for place in _PREDICTORS.values()})


def predictor_named(name: str) -> Any:
    """Return the class of ours that has this name, None if there is none."""
    return next((MODELS.get(each) for each, place in _PREDICTORS.items() if place.endswith(f":{name}")), None)


def library_of(kind: type, *, brought: bool = False) -> str | None:
    """Return the library whose model a class is, by its ancestors; with ``brought``, packages are asked, too."""
    ancestors = {(each.__module__.partition(".")[0], each.__name__) for each in kind.__mro__}
    libraries = {library for library, _ in ancestors}
    others = libraries - {"__main__", *sys.stdlib_module_names, *MODELS.ours} if brought else ()
    for library in (*filter(libraries.__contains__, MODELS.ours), *sorted(others)):
        names = getattr(MODELS.get(library), "classes", ())
        if any((library, name) in ancestors for name in names):
            return library
    return None


def library_at(path: str) -> str | None:
    """Return the library whose model is at a path, by its content and then by its name."""
    ours = ((name, MODELS.get(name)) for name in MODELS.ours)
    found = next((name for name, predictor in ours if _is_at(predictor, path)), None)
    return found or next((name for name, each in MODELS.usable().items() if _is_at(each, path)), None)


def _is_at(predictor: Any, path: str) -> bool:
    return completed(predictor, PredictorParts).kind_of(path) is not None


# ---------------------------------------------------------------- asked outright: nobody has to call ``load`` before

T = TypeVar("T", bound="Direct")
L = TypeVar("L", bound="Loaded")

COLUMN = "predictions"
"""What the column is called that holds a model's only result, as in Ray AIR."""

_loaded: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class Loaded:
    """The life of a library's model: given as an object or a file, loaded where it works, let go of."""

    label: str
    """What messages call the model."""

    def close(self) -> None:
        """Let go of what was loaded."""
        self.__dict__.update(self._unloaded())

    def weights(self) -> str:
        """Say where the weights are while workers work."""
        return f"each worker loads its own copy of {self.label}"

    def __copy__(self: L) -> L:
        """Return another for this process, of the same model: only what travels is packed."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, **self._unloaded())
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was loaded."""
        return {**self.__dict__, **self._unloaded()}

    def _unloaded(self) -> dict[str, Any]:
        """Return the attributes that ``load`` sets, as they are before."""
        return {"_loaded": None}


class Direct(Loaded):
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
    import numpy as np

    if isinstance(data, np.ndarray):
        data = {"data": data}
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
    made = preparing(data)
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
    import numpy as np

    array = np.asarray(result)
    if array.ndim == 2 and array.shape[1] == 1:
        return array.reshape(-1)
    return array if array.ndim == 1 else list(array)
