"""Metrics that count every row of a run once: for ``Dataset.accumulate`` and ``Dataset.evaluate``.

Each fills the ``Accumulator`` port of ``headrace.core.model_ports``. Sums are exact, so the same rows give the same
bits, in whatever order and however often a run was killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core.door import Table

if TYPE_CHECKING:
    from headrace.accumulators.by import By
    from headrace.accumulators.classes import Accuracy, CohenKappa, ConfusionMatrix, PrecisionRecallF1
    from headrace.accumulators.differences import Differences
    from headrace.accumulators.moments import MAE, MSE, R2, Count, Mean, MinMax, Nulls, Sum, Variance
    from headrace.accumulators.probabilities import BrierScore, Calibration, LogLoss
    from headrace.accumulators.ranking import AUROC, AveragePrecision
    from headrace.accumulators.sketches import DistinctCount, Histogram, Quantiles, TopK
    from headrace.accumulators.texts import ExactMatch, JSONFields, TokenF1
    from headrace.accumulators.torch_metrics import TorchMetric

__all__ = [
    "AUROC",
    "MAE",
    "MSE",
    "R2",
    "Accuracy",
    "AveragePrecision",
    "BrierScore",
    "By",
    "Calibration",
    "CohenKappa",
    "ConfusionMatrix",
    "Count",
    "Differences",
    "DistinctCount",
    "ExactMatch",
    "Histogram",
    "JSONFields",
    "LogLoss",
    "Mean",
    "MinMax",
    "Nulls",
    "PrecisionRecallF1",
    "Quantiles",
    "Sum",
    "TokenF1",
    "TopK",
    "TorchMetric",
    "Variance",
]

_MODULES = {
    "by": "By",
    "classes": "Accuracy CohenKappa ConfusionMatrix PrecisionRecallF1",
    "differences": "Differences",
    "moments": "Count MAE MSE Mean MinMax Nulls R2 Sum Variance",
    "probabilities": "BrierScore Calibration LogLoss",
    "ranking": "AUROC AveragePrecision",
    "sketches": "DistinctCount Histogram Quantiles TopK",
    "texts": "ExactMatch JSONFields TokenF1",
    "torch_metrics": "TorchMetric",
}
METRICS: Table[type[Any]] = Table(
    "metrics",
    {name: f"{__name__}.{module}:{name}" for module, names in _MODULES.items() for name in names.split()},
    attributes=("empty", "update", "merge", "result", "to_bytes", "from_bytes"),
    classes=True,
)
"""Classes of metrics: ``hr.<name>``, and ``--metric`` on the command line."""


def __getattr__(name: str) -> Any:
    """Import a metric when it is first used."""
    if name not in METRICS.ours:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, METRICS.get(name))


def __dir__() -> list[str]:
    return __all__
