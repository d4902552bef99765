"""Observers: they watch a run and never decide anything.

``with_options(observers=[hr.observers.Log("runs.jsonl"), hr.observers.Prometheus(port=9100)])`` has some that are
ready to use; ``headrace.core.model_ports.Observer`` says what one of your own needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core.door import Table

if TYPE_CHECKING:
    from headrace.annex.telemetry.mlflow import MLflow as MLflow
    from headrace.annex.telemetry.openlineage import OpenLineage as OpenLineage
    from headrace.annex.telemetry.opentelemetry import OpenTelemetry as OpenTelemetry
    from headrace.observers.prometheus import Prometheus as Prometheus
    from headrace.observers.record import Log as Log

OBSERVERS: Table[type[Any]] = Table(
    "observers",
    {
        "Log": f"{__name__}.record:Log",
        "Prometheus": f"{__name__}.prometheus:Prometheus",
        "OpenTelemetry": "headrace.annex.telemetry.opentelemetry:OpenTelemetry",
        "MLflow": "headrace.annex.telemetry.mlflow:MLflow",
        "OpenLineage": "headrace.annex.telemetry.openlineage:OpenLineage",
    },
    attributes=("on_event",),
    classes=True,
)


def __getattr__(name: str) -> Any:
    """Import an observer when it is first used: few runs need one."""
    found = OBSERVERS.get(name) if name[0].isupper() else None  # else it is a module, maybe
    if found is None:
        raise AttributeError(
            f"module 'headrace.observers' has no attribute {name!r}; it has {', '.join(OBSERVERS.names())}"
        )
    return found


def __dir__() -> list[str]:
    return OBSERVERS.names()
