"""Metrics of a finished run, computed again from its plan's settings and its journal or files.

Only for Headrace's own metrics: others would need their code to be executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.ports import Accumulator
from headrace.errors import HeadraceError
from headrace.output.part_files import batches_of

if TYPE_CHECKING:
    from headrace.output.runs import SavedRun

WRONG = (HeadraceError, IndexError, ValueError, msgspec.MsgspecError)


@dataclass(frozen=True, slots=True)
class PlannedMetric:
    """A metric by its name; ``metric`` is None if it is not ours. ``unchanged_columns``: until the end."""

    name: str
    metric: Accumulator | None
    unchanged_columns: bool


def metrics_of(shape: dict[str, Any], names: Sequence[str], unchanged: Sequence[str]) -> list[PlannedMetric]:
    """Return the metrics of a plan's shape in the order of ``names``; ``unchanged``: as in ``SavedPlan``."""
    found = {
        name: described
        for step in shape.get("steps", ())
        for name, described in (step.get("metrics") or {}).items()
    }
    return [PlannedMetric(name, _metric_from(found[name]), name in unchanged) for name in names]


def names_in(shape: dict[str, Any]) -> set[str]:
    """Return the names of all metrics of a plan's shape."""
    return {name for step in shape.get("steps", ()) for name in step.get("metrics") or ()}


def merged(run: SavedRun, number: int, measured: PlannedMetric) -> Any:
    """Return a metric's result by the states of all shards, in plain values; ``number`` is its place in them."""
    from headrace.core import metric_states

    assert measured.metric is not None
    places = [shard.place for shard in run.plan.shards]
    records = sorted(
        (record for record in run.records if record.states),
        key=lambda each: places[each.shard] if each.shard < len(places) else (each.shard,),
    )
    metric = [(measured.name, measured.metric)]
    totals = metric_states.merged(metric, ((record.states[number],) for record in records), run.folder)
    return _plain(totals[0])


def counted(measured: PlannedMetric, files: Sequence[Path]) -> Any:
    """Return a metric's result by the rows in Parquet files, which have its columns; in plain values."""
    assert measured.metric is not None
    total = measured.metric.empty()
    for file in files:
        for batch in batches_of(file, total.columns):
            total.update(batch)
    return _plain(total)


def _plain(total: Accumulator) -> Any:
    from headrace.output.metric_results import plain

    return msgspec.json.decode(msgspec.json.encode(plain(total.result())))


def _metric_from(shape: Any) -> Any:
    """Return one of Headrace's metrics from its description; None for any other."""
    import inspect

    from headrace.accumulators import METRICS

    kind: Any = shape.get("kind") if isinstance(shape, dict) else None
    cls = METRICS.get(kind) if kind in METRICS.ours and kind != "TorchMetric" else None
    if cls is None:
        return None
    settings = {name: value for name, value in shape.items() if name != "kind"}
    if kind == "By":
        settings["metric"] = _metric_from(settings.get("metric"))
        if settings["metric"] is None:
            return None
    taken = inspect.signature(cls.__init__).parameters
    try:
        metric = cls(**{name: value for name, value in settings.items() if name in taken})
    except (HeadraceError, TypeError):
        return None
    described = msgspec.json.decode(msgspec.json.encode(metric.describe(), enc_hook=str))
    return metric if described == shape else None
