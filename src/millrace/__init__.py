"""Offline batch inference: a dataset through a model, fast, and safe to kill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.version import __version__

if TYPE_CHECKING:
    from millrace import errors
    from millrace.accumulators import (
        AUROC,
        MAE,
        MSE,
        NDCG,
        R2,
        Accuracy,
        AveragePrecision,
        BrierScore,
        By,
        Calibration,
        ConfusionMatrix,
        Count,
        DistinctCount,
        Histogram,
        LogLoss,
        Mean,
        MinMax,
        PrecisionRecallF1,
        Quantiles,
        RecallAtK,
        Sum,
        TopK,
        TorchMetric,
        Variance,
    )
    from millrace.batch_predictor import BatchPredictor
    from millrace.checkpoints.checkpoint import Checkpoint
    from millrace.checkpoints.libraries import (
        KerasCheckpoint,
        LightGBMCheckpoint,
        OnnxCheckpoint,
        SklearnCheckpoint,
        XGBoostCheckpoint,
    )
    from millrace.checkpoints.torch import TorchCheckpoint
    from millrace.core.ragged import RaggedTensorType
    from millrace.dataset import Dataset
    from millrace.executor import ActorPool, Executor, Ref, connect
    from millrace.from_libraries import (
        from_daft,
        from_huggingface,
        from_polars,
        from_ray,
        from_torch,
    )
    from millrace.from_memory import from_arrow, from_items, from_numpy, from_pandas, range, range_tensor
    from millrace.io import (
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
    from millrace.outputs.verification import Verification
    from millrace.outputs.verifying import verify
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

    TensorflowCheckpoint, TensorflowPredictor = KerasCheckpoint, KerasPredictor

__all__ = [  # noqa: RUF022 - in plain order, capitals first
    "AUROC",
    "Accuracy",
    "ActorPool",
    "ActorPoolStrategy",
    "AveragePrecision",
    "BatchPredictor",
    "BrierScore",
    "By",
    "Calibration",
    "Checkpoint",
    "ConfusionMatrix",
    "Count",
    "Dataset",
    "DistinctCount",
    "Executor",
    "Histogram",
    "KerasCheckpoint",
    "KerasPredictor",
    "LightGBMCheckpoint",
    "LightGBMPredictor",
    "LogLoss",
    "MAE",
    "MLflowPredictor",
    "MSE",
    "Mean",
    "MinMax",
    "NDCG",
    "OnnxCheckpoint",
    "OnnxPredictor",
    "PrecisionRecallF1",
    "Quantiles",
    "R2",
    "RaggedTensorType",
    "RecallAtK",
    "Ref",
    "Result",
    "RunOptions",
    "SentenceTransformersPredictor",
    "SklearnCheckpoint",
    "SklearnPredictor",
    "Sum",
    "TaskPoolStrategy",
    "TensorflowCheckpoint",
    "TensorflowPredictor",
    "TopK",
    "TorchCheckpoint",
    "TorchMetric",
    "TorchPredictor",
    "TransformersPredictor",
    "Variance",
    "Verification",
    "XGBoostCheckpoint",
    "XGBoostPredictor",
    "__version__",
    "connect",
    "errors",
    "from_arrow",
    "from_daft",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_pandas",
    "from_polars",
    "from_ray",
    "from_torch",
    "load_model",
    "range",
    "range_tensor",
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_parquet",
    "read_rejected",
    "read_text",
    "verify",
]

_METRICS = (
    "AUROC",
    "MAE",
    "MSE",
    "NDCG",
    "R2",
    "Accuracy",
    "AveragePrecision",
    "BrierScore",
    "By",
    "Calibration",
    "ConfusionMatrix",
    "Count",
    "DistinctCount",
    "Histogram",
    "LogLoss",
    "Mean",
    "MinMax",
    "PrecisionRecallF1",
    "Quantiles",
    "RecallAtK",
    "Sum",
    "TopK",
    "TorchMetric",
    "Variance",
)

_HOMES = {
    "millrace.accumulators": _METRICS,
    "millrace.batch_predictor": ("BatchPredictor",),
    "millrace.checkpoints.checkpoint": ("Checkpoint",),
    "millrace.core.ragged": ("RaggedTensorType",),
    "millrace.dataset": ("Dataset",),
    "millrace.executor": ("ActorPool", "Executor", "Ref", "connect"),
    "millrace.from_libraries": ("from_daft", "from_huggingface", "from_polars", "from_ray", "from_torch"),
    "millrace.io": tuple(name for name in __all__ if name.startswith("read_")),
    "millrace.checkpoints.libraries": tuple(
        f"{library}Checkpoint" for library in ("Keras", "LightGBM", "Onnx", "Sklearn", "XGBoost")
    ),
    "millrace.from_memory": (
        "from_arrow",
        "from_items",
        "from_numpy",
        "from_pandas",
        "range",
        "range_tensor",
    ),
    "millrace.models": ("load_model",),
    "millrace.options": ("RunOptions",),
    "millrace.result": ("Result",),
    "millrace.strategies": ("ActorPoolStrategy", "TaskPoolStrategy"),
    "millrace.outputs.verification": ("Verification",),
    "millrace.outputs.verifying": ("verify",),
    **{
        f"millrace.predictors.{name.removesuffix('Predictor').lower()}": (name,)
        for name in __all__
        if name.endswith("Predictor")
        and name not in ("SentenceTransformersPredictor", "BatchPredictor", "TensorflowPredictor")
    },
    "millrace.predictors.sentence_transformers": ("SentenceTransformersPredictor",),
    "millrace.checkpoints.torch": ("TorchCheckpoint",),
}
_OTHER_NAMES = {"TensorflowCheckpoint": "KerasCheckpoint", "TensorflowPredictor": "KerasPredictor"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a worker needs few of them, and start-up is imports."""
    import importlib

    if name in ("accumulators", "errors"):
        return importlib.import_module(f"millrace.{name}")
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    if name in _OTHER_NAMES:  # as Ray AIR calls them
        return __getattr__(_OTHER_NAMES[name])
    if name.startswith("_"):
        raise AttributeError(f"module 'millrace' has no attribute {name!r}")
    errors = importlib.import_module("millrace.errors")
    foreign = importlib.import_module("millrace.foreign")
    reason = foreign.NO_FUNCTIONS.get(name) or foreign.FAMILIAR_FUNCTIONS.get(name)
    try:
        raise errors.NotOffered(
            f"Millrace has no {name}{f': {reason}' if reason else '.' + errors.nearest(name, __all__)}"
        )
    except AttributeError as error:
        error.__traceback__ = None  # so that no line of ours stands between the user's and the message
        raise


def __dir__() -> list[str]:
    return __all__
