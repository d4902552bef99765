"""Offline batch inference: a dataset through a model, fast, and safe to kill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.version import __version__

if TYPE_CHECKING:
    from millrace import errors
    from millrace.dataset import Dataset
    from millrace.io import (
        from_arrow,
        from_items,
        from_numpy,
        from_pandas,
        range,
        read_binary_files,
        read_csv,
        read_images,
        read_json,
        read_parquet,
        read_rejected,
        read_text,
    )
    from millrace.models import load_model
    from millrace.options import RunOptions
    from millrace.predictors.keras import KerasPredictor
    from millrace.predictors.lightgbm import LightGBMPredictor
    from millrace.predictors.mlflow import MLflowPredictor
    from millrace.predictors.onnx import OnnxPredictor
    from millrace.predictors.sentence_transformers import SentenceTransformersPredictor
    from millrace.predictors.sklearn import SklearnPredictor
    from millrace.predictors.torch import TorchPredictor
    from millrace.predictors.transformers import TransformersPredictor
    from millrace.predictors.xgboost import XGBoostPredictor
    from millrace.result import Result
    from millrace.strategies import ActorPoolStrategy, TaskPoolStrategy

__all__ = [
    "ActorPoolStrategy",
    "Dataset",
    "KerasPredictor",
    "LightGBMPredictor",
    "MLflowPredictor",
    "OnnxPredictor",
    "Result",
    "RunOptions",
    "SentenceTransformersPredictor",
    "SklearnPredictor",
    "TaskPoolStrategy",
    "TorchPredictor",
    "TransformersPredictor",
    "XGBoostPredictor",
    "__version__",
    "errors",
    "from_arrow",
    "from_items",
    "from_numpy",
    "from_pandas",
    "load_model",
    "range",
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_parquet",
    "read_rejected",
    "read_text",
]

_HOMES = {
    "millrace.dataset": ("Dataset",),
    "millrace.io": tuple(name for name in __all__ if name.startswith(("from_", "read_", "range"))),
    "millrace.models": ("load_model",),
    "millrace.options": ("RunOptions",),
    "millrace.result": ("Result",),
    "millrace.strategies": ("ActorPoolStrategy", "TaskPoolStrategy"),
    **{
        f"millrace.predictors.{name.removesuffix('Predictor').lower()}": (name,)
        for name in __all__
        if name.endswith("Predictor") and name != "SentenceTransformersPredictor"
    },
    "millrace.predictors.sentence_transformers": ("SentenceTransformersPredictor",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a worker needs few of them, and start-up is imports."""
    import importlib

    if name == "errors":
        return importlib.import_module("millrace.errors")
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
