"""Which predictor is for which library; nothing of a library is imported before it is needed."""

from __future__ import annotations

import sys
from typing import Any

from headrace.core.door import Table, completed
from headrace.core.model_ports import PredictorParts

# The order counts: a sentence transformer is a torch module, too, and a booster's estimator one of scikit-learn.
_PREDICTORS = {
    "sentence_transformers": "predictors.sentence_transformers:SentenceTransformersPredictor",
    "mlflow": "annex.models.mlflow:MLflowPredictor",
    "transformers": "annex.models.transformers:TransformersPredictor",
    "onnx": "predictors.onnx.predictor:OnnxPredictor",
    "onnxruntime": "predictors.onnx.predictor:OnnxPredictor",
    "keras": "annex.models.keras.predictor:KerasPredictor",
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
