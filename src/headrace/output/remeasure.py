"""What an output holds, measured again: bytes and rows of its files, and metrics from its journal or its files.

Only for Headrace's own metrics: others would need their code to be executed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.door import loaded
from headrace.core.files import safe_files
from headrace.core.files.formats import FORMATS
from headrace.core.ports import Accumulator
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.output.runs import SavedRun

_CHUNK = 1 << 20
WRONG = (HeadraceError, IndexError, ValueError, msgspec.MsgspecError)


def bytes_of(path: Path) -> tuple[int, int]:
    """Return a file's size and CRC-32, by reading all of it."""
    size = crc = 0
    with safe_files.file(path) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return size, crc


def rows_of(path: Path, name: str, sink: Mapping[str, Any]) -> int | None:
    """Count the rows of a file that is whole, as its format does; None for a format that is not ours."""
    kind = str(sink.get("kind")).lower()
    found = FORMATS.get(kind) if kind in FORMATS.ours else None
    writer = "" if found is None else found.writer
    if name.endswith(".arrow"):
        writer = "headrace.sinks.arrow:Arrow"
    rows: int | None = loaded(writer).rows_in(path, sink) if writer else None
    return rows


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
    records = (record for record in run.in_order() if record.states)
    metric = [(measured.name, measured.metric)]
    totals = metric_states.merged(metric, ((record.states[number],) for record in records), run.folder)
    return _plain(totals[0])


def counted(measured: PlannedMetric, files: Sequence[Path]) -> Any:
    """Return a metric's result by the rows in Parquet files, which have its columns; in plain values."""
    assert measured.metric is not None
    import pyarrow.parquet as pq

    total = measured.metric.empty()
    for path in files:
        with safe_files.file(path) as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(columns=list(total.columns), use_threads=False):
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
