"""Metrics of a finished run, made again from the settings in its plan: merged from the journal, or counted anew.

Only metrics of Millrace's own are made; what is somebody else's would take running their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.core.ports import Accumulator
from millrace.errors import MillraceError
from millrace.outputs.files import batches_of

if TYPE_CHECKING:
    from millrace.outputs.folder import Run

KEEP_ROWS = ("filter", "limit", "accumulate", "select_columns", "drop_columns")
"""Verbs behind which a column that is still there is the one that was measured."""

WRONG = (MillraceError, IndexError, ValueError, msgspec.MsgspecError)


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric by its name; ``metric`` is None if it is not ours. ``still``: no later step may change its columns."""

    name: str
    metric: Accumulator | None
    still: bool


def metrics_of(shape: dict[str, Any], names: Sequence[str]) -> list[Measured]:
    """Return the metrics of a plan's shape in the order of ``names``, which is the plan's own."""
    steps = shape.get("steps", ())
    found = {
        name: (described, all(later.get("verb") in KEEP_ROWS for later in steps[i + 1 :]))
        for i, step in enumerate(steps)
        for name, described in (step.get("metrics") or {}).items()
    }
    return [Measured(name, _made(found[name][0]), found[name][1]) for name in names]


def names_in(shape: dict[str, Any]) -> set[str]:
    """Return the names of all metrics of a plan's shape."""
    return {name for step in shape.get("steps", ()) for name in step.get("metrics") or ()}


def merged(run: Run, number: int, measured: Measured) -> Any:
    """Return a metric's result by the states of all shards, in plain values; ``number`` is its place in them."""
    from millrace.run import counting

    assert measured.metric is not None
    places = [shard.place for shard in run.plan.shards]
    records = sorted(
        (record for record in run.records if record.states),
        key=lambda each: places[each.shard] if each.shard < len(places) else (each.shard,),
    )
    metric = [(measured.name, measured.metric)]
    totals = counting.merged(metric, ((record.states[number],) for record in records), run.folder)
    return _plain(totals[0])


def counted(measured: Measured, files: Sequence[Path]) -> Any:
    """Return a metric's result by the rows in Parquet files, which have its columns; in plain values."""
    assert measured.metric is not None
    total = measured.metric.empty()
    for file in files:
        for batch in batches_of(file, total.columns):
            total.update(batch)
    return _plain(total)


def _plain(total: Accumulator) -> Any:
    from millrace.metrics import plain

    return msgspec.json.decode(msgspec.json.encode(plain(total.result())))


def _made(shape: Any) -> Any:
    """Make a metric of ours again from its description; None for what is not ours."""
    import inspect

    from millrace import accumulators

    kind = shape.get("kind") if isinstance(shape, dict) else None
    if kind not in accumulators.__all__ or kind in ("Estimate", "TorchMetric"):
        return None
    cls = getattr(accumulators, kind)
    settings = {name: value for name, value in shape.items() if name != "kind"}
    if kind == "By":
        settings["metric"] = _made(settings.get("metric"))
        if settings["metric"] is None:
            return None
    taken = inspect.signature(cls.__init__).parameters
    try:
        made = cls(**{name: value for name, value in settings.items() if name in taken})
    except (MillraceError, TypeError):
        return None
    described = msgspec.json.decode(msgspec.json.encode(made.describe(), enc_hook=str))
    return made if described == shape else None
