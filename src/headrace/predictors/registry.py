"""Which predictor is for which library; nothing of a library is imported before it is needed."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec


class Library(msgspec.Struct, frozen=True):
    """A library whose models have a predictor, ``module`` in this room; ``classes`` are those of its models."""

    name: str
    classes: frozenset[str]
    module: str
    predictor: str

    def predictor_class(self) -> Any:
        """Import the predictor's class."""
        return getattr(self._module(), self.predictor)

    def is_at(self, path: str) -> bool:
        """Return whether a file or folder holds a model of this library."""
        kind_of = getattr(self._module(), "kind_of", None)
        return kind_of is not None and kind_of(path) is not None

    def _module(self) -> Any:
        return importlib.import_module(f"headrace.predictors.{self.module}")


def _library(name: str, predictor: str, *classes: str, module: str = "") -> Library:
    return Library(name, frozenset(classes), module or name, predictor)


# The order counts: a sentence transformer is a torch module, too, and a booster's estimator one of scikit-learn.
LIBRARIES = (
    _library("sentence_transformers", "SentenceTransformersPredictor", "SentenceTransformer"),
    _library("mlflow", "MLflowPredictor", "PyFuncModel"),
    _library("transformers", "TransformersPredictor", "Pipeline"),
    _library("onnx", "OnnxPredictor", "ModelProto", module="onnx.predictor"),
    _library("onnxruntime", "OnnxPredictor", "InferenceSession", module="onnx.predictor"),
    _library("keras", "KerasPredictor", "Model", module="keras.predictor"),
    _library("torch", "TorchPredictor", "Module", "ExportedProgram", module="torch.predictor"),
    _library("xgboost", "XGBoostPredictor", "Booster", "XGBModel"),
    _library("lightgbm", "LightGBMPredictor", "Booster", "LGBMModel"),
    _library("sklearn", "SklearnPredictor", "BaseEstimator"),
)
_BY_NAME = {library.name: library for library in LIBRARIES}


def library_named(name: str) -> Library:
    """Return the library of this name."""
    return _BY_NAME[name]


def library_of(kind: type) -> str | None:
    """Return the library whose model a class is, by its ancestors; nothing is imported."""
    ancestors = {(each.__module__.partition(".")[0], each.__name__) for each in kind.__mro__}
    for library in LIBRARIES:
        if any((library.name, name) in ancestors for name in library.classes):
            return library.name
    return None


def library_at(path: str) -> str | None:
    """Return the library whose model is at a path, by its content and then by its name."""
    return next((library.name for library in LIBRARIES if library.is_at(path)), None)
