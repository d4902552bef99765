"""Offline batch inference: a dataset through a model, fast, and safe to kill."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.version import __version__ as __version__

if TYPE_CHECKING:
    from headrace import aggregate as aggregate
    from headrace import errors as errors
    from headrace import llm as llm
    from headrace import observers as observers
    from headrace.accumulators import *
    from headrace.annex.compare import Comparison as Comparison
    from headrace.annex.compare import compare as compare
    from headrace.annex.databases.source import *
    from headrace.annex.formats.readers import *
    from headrace.annex.lakes.readers import *
    from headrace.annex.media.readers import *
    from headrace.annex.models.keras import KerasPredictor as KerasPredictor
    from headrace.annex.models.lightgbm import LightGBMPredictor as LightGBMPredictor
    from headrace.annex.models.mlflow import MLflowPredictor as MLflowPredictor
    from headrace.annex.models.transformers import TransformersPredictor as TransformersPredictor
    from headrace.annex.models.xgboost import XGBoostPredictor as XGBoostPredictor
    from headrace.annex.queries.source import sql as sql
    from headrace.annex.report.catalogue import runs as runs
    from headrace.annex.report.run_rows import Runs as Runs
    from headrace.annex.tasks import ActorPool as ActorPool
    from headrace.annex.tasks import CallFuture as CallFuture
    from headrace.annex.tasks import Executor as Executor
    from headrace.annex.tasks import Ref as Ref
    from headrace.annex.tasks import connect as connect
    from headrace.core.arrow.forms import RaggedTensorType as RaggedTensorType
    from headrace.core.option_values import Ray as Ray
    from headrace.dataset.dataset import Dataset as Dataset
    from headrace.options import RunOptions as RunOptions
    from headrace.output.verification import Verification as Verification
    from headrace.output.verify import verify as verify
    from headrace.plan.column_expressions import ColumnExpression as ColumnExpression
    from headrace.plan.column_expressions import col as col
    from headrace.plan.column_expressions import lit as lit
    from headrace.plan.logical import at_least as at_least
    from headrace.plan.logical import at_most as at_most
    from headrace.plan.logical import between as between
    from headrace.plan.verb_options import ActorPoolStrategy as ActorPoolStrategy
    from headrace.plan.verb_options import TaskPoolStrategy as TaskPoolStrategy
    from headrace.predictors.onnx import OnnxPredictor as OnnxPredictor
    from headrace.predictors.sentence_transformers import (
        SentenceTransformersPredictor as SentenceTransformersPredictor,
    )
    from headrace.predictors.sklearn import SklearnPredictor as SklearnPredictor
    from headrace.predictors.torch.predictor import TorchPredictor as TorchPredictor
    from headrace.readers.files import *
    from headrace.readers.from_memory import *
    from headrace.readers.parquet import *
    from headrace.result import Result as Result
    from headrace.session.models import load_model as load_model
    from headrace.session.publishing import discard as discard
    from headrace.session.publishing import publish as publish

_HOMES = {
    "headrace.core.arrow.forms": ("RaggedTensorType",),
    "headrace.core.option_values": ("Ray",),
    "headrace.dataset.dataset": ("Dataset",),
    "headrace.options": ("RunOptions",),
    "headrace.output.verification": ("Verification",),
    "headrace.output.verify": ("verify",),
    "headrace.plan.column_expressions": ("ColumnExpression", "col", "lit"),
    "headrace.plan.logical": ("at_least", "at_most", "between"),
    "headrace.plan.verb_options": ("ActorPoolStrategy", "TaskPoolStrategy"),
    "headrace.result": ("Result",),
    "headrace.session.models": ("load_model",),
    "headrace.session.publishing": ("discard", "publish"),
    "headrace.annex.compare": ("Comparison", "compare"),
    "headrace.annex.queries.source": ("sql",),
    "headrace.annex.report.catalogue": ("runs",),
    "headrace.annex.report.run_rows": ("Runs",),
    "headrace.annex.tasks": ("ActorPool", "CallFuture", "Executor", "Ref", "connect"),
}
_MODULES = ("aggregate", "errors", "llm", "observers")


def _found(name: str) -> Any:
    """Return what has a public name, from ours or from an installed package; None if nothing has."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is not None:
        return getattr(import_module(home), name)
    if name.islower() or name.startswith("read_"):
        return import_module("headrace.readers").function(name)
    predictor = import_module("headrace.predictors").predictor_named(name)
    return predictor or import_module("headrace.accumulators").METRICS.get(name)


def _public() -> list[str]:
    """Return the names that are ours."""
    names = {"__version__", *_MODULES, *(name for names in _HOMES.values() for name in names)}
    names.update(
        import_module("headrace.readers").FUNCTIONS, import_module("headrace.accumulators").METRICS.ours
    )
    return sorted(names.union(import_module("headrace.predictors").predictor_names()))


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a worker needs few of them, and start-up is imports."""
    if name in (*_MODULES, "accumulators", "compat", "testing"):
        return import_module(f"headrace.{name}")
    if name == "__all__":
        return globals().setdefault("__all__", _public())
    if name.startswith("_"):
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    found = _found(name)
    if found is not None:
        return globals().setdefault(name, found)
    errors = import_module("headrace.errors")
    unsupported = import_module("headrace.plan.ray_unsupported")
    reason = unsupported.NO_FUNCTIONS.get(name) or unsupported.FAMILIAR_FUNCTIONS.get(name)
    try:
        raise errors.NotOffered(
            f"Headrace has no {name}{f': {reason}' if reason else '.' + errors.nearest(name, __dir__())}"
        )
    except AttributeError as error:
        error.__traceback__ = None  # so that no line of ours stands between the user's and the message
        raise


def __dir__() -> list[str]:
    brought = import_module("headrace.readers").SOURCES.brought
    metrics = import_module("headrace.accumulators").METRICS.brought
    return sorted([*_public(), *(f"read_{name}" for name in brought), *metrics])
