"""Offline batch inference: a dataset through a model, fast, and safe to kill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.version import __version__

if TYPE_CHECKING:
    from headrace import errors, llm, observers
    from headrace.accumulators import (
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
    from headrace.compat.air.batch_predictor import BatchPredictor
    from headrace.compat.air.checkpoint import Checkpoint
    from headrace.compat.air.library_checkpoints import (
        KerasCheckpoint,
        LightGBMCheckpoint,
        OnnxCheckpoint,
        SklearnCheckpoint,
        XGBoostCheckpoint,
    )
    from headrace.compat.air.torch_checkpoint import TorchCheckpoint
    from headrace.compat.air.transformers_checkpoint import TransformersCheckpoint
    from headrace.core.arrow.ragged import RaggedTensorType
    from headrace.dataset.dataset import Dataset
    from headrace.options import Ray, RunOptions
    from headrace.output.verification import Verification
    from headrace.output.verify import verify
    from headrace.plan.column_expressions import ColumnExpression, col, lit
    from headrace.plan.strategies import ActorPoolStrategy, TaskPoolStrategy
    from headrace.predictors.keras.predictor import KerasPredictor
    from headrace.predictors.lightgbm import LightGBMPredictor
    from headrace.predictors.mlflow import MLflowPredictor
    from headrace.predictors.onnx.predictor import OnnxPredictor
    from headrace.predictors.sentence_transformers import SentenceTransformersPredictor
    from headrace.predictors.sklearn import SklearnPredictor
    from headrace.predictors.torch.predictor import TorchPredictor
    from headrace.predictors.transformers import TransformersPredictor
    from headrace.predictors.xgboost import XGBoostPredictor
    from headrace.readers.databases import read_sql
    from headrace.readers.files import (
        read_binary_files,
        read_csv,
        read_images,
        read_json,
        read_rejected,
        read_text,
    )
    from headrace.readers.from_libraries import (
        from_daft,
        from_huggingface,
        from_polars,
        from_ray,
        from_spark,
        from_torch,
    )
    from headrace.readers.from_memory import (
        from_arrow,
        from_items,
        from_numpy,
        from_pandas,
        range,
        range_tensor,
    )
    from headrace.readers.parquet import read_parquet
    from headrace.readers.samples import read_numpy, read_webdataset
    from headrace.readers.tables import read_delta, read_iceberg
    from headrace.result import Result
    from headrace.session.models import load_model
    from headrace.tasks import ActorPool, Executor, Ref, connect

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
    "ColumnExpression",
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
    "Ray",
    "RecallAtK",
    "Ref",
    "Result",
    "RunOptions",
    "SentenceTransformersPredictor",
    "SklearnCheckpoint",
    "SklearnPredictor",
    "Sum",
    "TaskPoolStrategy",
    "TopK",
    "TorchCheckpoint",
    "TorchMetric",
    "TorchPredictor",
    "TransformersCheckpoint",
    "TransformersPredictor",
    "Variance",
    "Verification",
    "XGBoostCheckpoint",
    "XGBoostPredictor",
    "__version__",
    "col",
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
    "from_spark",
    "from_torch",
    "lit",
    "llm",
    "load_model",
    "observers",
    "range",
    "range_tensor",
    "read_binary_files",
    "read_csv",
    "read_delta",
    "read_iceberg",
    "read_images",
    "read_json",
    "read_numpy",
    "read_parquet",
    "read_rejected",
    "read_sql",
    "read_text",
    "read_webdataset",
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
    "headrace.accumulators": _METRICS,
    "headrace.compat.air.batch_predictor": ("BatchPredictor",),
    "headrace.compat.air.checkpoint": ("Checkpoint",),
    "headrace.core.arrow.ragged": ("RaggedTensorType",),
    "headrace.dataset.dataset": ("Dataset",),
    "headrace.tasks": ("ActorPool", "Executor", "Ref", "connect"),
    "headrace.readers.from_libraries": (
        "from_daft",
        "from_huggingface",
        "from_polars",
        "from_ray",
        "from_spark",
        "from_torch",
    ),
    "headrace.readers.databases": ("read_sql",),
    "headrace.readers.tables": ("read_delta", "read_iceberg"),
    "headrace.readers.samples": ("read_numpy", "read_webdataset"),
    "headrace.readers.parquet": ("read_parquet",),
    "headrace.readers.files": tuple(name for name in __all__ if name.startswith("read_")),
    "headrace.compat.air.library_checkpoints": tuple(
        f"{library}Checkpoint" for library in ("Keras", "LightGBM", "Onnx", "Sklearn", "XGBoost")
    ),
    "headrace.readers.from_memory": (
        "from_arrow",
        "from_items",
        "from_numpy",
        "from_pandas",
        "range",
        "range_tensor",
    ),
    "headrace.session.models": ("load_model",),
    "headrace.options": ("Ray", "RunOptions"),
    "headrace.result": ("Result",),
    "headrace.plan.column_expressions": ("ColumnExpression", "col", "lit"),
    "headrace.plan.strategies": ("ActorPoolStrategy", "TaskPoolStrategy"),
    "headrace.output.verification": ("Verification",),
    "headrace.output.verify": ("verify",),
    "headrace.predictors.keras.predictor": ("KerasPredictor",),
    "headrace.predictors.lightgbm": ("LightGBMPredictor",),
    "headrace.predictors.mlflow": ("MLflowPredictor",),
    "headrace.predictors.onnx.predictor": ("OnnxPredictor",),
    "headrace.predictors.sentence_transformers": ("SentenceTransformersPredictor",),
    "headrace.predictors.sklearn": ("SklearnPredictor",),
    "headrace.predictors.torch.predictor": ("TorchPredictor",),
    "headrace.predictors.transformers": ("TransformersPredictor",),
    "headrace.predictors.xgboost": ("XGBoostPredictor",),
    "headrace.compat.air.torch_checkpoint": ("TorchCheckpoint",),
    "headrace.compat.air.transformers_checkpoint": ("TransformersCheckpoint",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a worker needs few of them, and start-up is imports."""
    import importlib

    if name in ("accumulators", "errors", "llm", "observers"):
        return importlib.import_module(f"headrace.{name}")
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    if name.startswith("_"):
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    errors = importlib.import_module("headrace.errors")
    unsupported = importlib.import_module("headrace.plan.ray_unsupported")
    reason = unsupported.NO_FUNCTIONS.get(name) or unsupported.FAMILIAR_FUNCTIONS.get(name)
    try:
        raise errors.NotOffered(
            f"Headrace has no {name}{f': {reason}' if reason else '.' + errors.nearest(name, __all__)}"
        )
    except AttributeError as error:
        error.__traceback__ = None  # so that no line of ours stands between the user's and the message
        raise


def __dir__() -> list[str]:
    return __all__
