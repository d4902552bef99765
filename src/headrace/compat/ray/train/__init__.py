"""Ray's ``ray.train``, as far as it predicts: ``batch_predictor``, ``predictor`` and a module for each library."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.compat.ray.offered import missing

_MODULES = (
    "batch_predictor",
    "hf_transformers",
    "huggingface",
    "lightgbm",
    "predictor",
    "sklearn",
    "tensorflow",
    "torch",
    "xgboost",
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise missing("ray.train", name, _MODULES)
