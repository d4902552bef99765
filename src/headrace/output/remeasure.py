"""What an output holds, measured again: bytes and rows of its files, and metrics from its journal or its files.

Only for Headrace's own metrics: others would need their code to be executed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.core.arrow.batch import schema_from
from headrace.core.door import loaded
from headrace.core.files import safe_files
from headrace.core.files.formats import FORMATS
from headrace.core.metric_states import merged, plain
from headrace.core.ports import Accumulator
from headrace.errors import HeadraceError
from headrace.output.revealing import parts_of
from headrace.output.verification import Finding

if TYPE_CHECKING:
    from headrace.output.places.place import Place
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


class Remeasured(NamedTuple):
    """Metrics that were merged again, what is wrong with them, and which were not checked, or even computed again."""

    results: dict[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[str, ...] = ()
    recounted: tuple[str, ...] = ()


def remeasured(run: SavedRun, output: Place, recorded: Any, *, whole: bool) -> Remeasured:
    """Merge the metric states of all shards again, compute metrics from the files, and compare with ``_SUCCESS``.

    ``recorded``: what that says. ``whole``: nothing is wrong with the files.
    """
    shape = msgspec.json.decode(run.plan.shape)
    steps = shape.get("steps", ())
    planned = {name: each for step in steps for name, each in (step.get("metrics") or {}).items()}
    if not isinstance(recorded, dict) or recorded.keys() != planned.keys():
        has = sorted(recorded) if isinstance(recorded, dict) else recorded
        return Remeasured(findings=(_wrong(f"it has metrics {has!r}, and the plan {sorted(planned)}."),))
    if not planned:
        return Remeasured()
    results: dict[str, Any] = {}
    findings: list[Finding] = []
    unchecked, recounted = list[str](), list[str]()
    for i, name in enumerate(recorded):
        metric = _metric_from(planned[name])
        if metric is None:
            unchecked.append(name)
            continue
        try:
            results[name] = again = _merged(run, i, name, metric)
            if recorded[name] != again:
                findings.append(
                    _wrong(f"{name} is {recorded[name]!r}, and the journal's states give {again!r}.")
                )
            elif (
                whole
                and not findings
                and _is_in_the_files(run, output, shape.get("sink") or {}, name, metric)
            ):
                found = _counted(metric, [output.root / file.name for file in parts_of(run.in_order())])
                if found == again:
                    recounted.append(name)
                else:
                    findings.append(_wrong(f"{name} is {again!r}, and the rows in the files give {found!r}."))
        except WRONG as error:
            findings.append(_wrong(f"{name} cannot be merged again: {error}"))
    return Remeasured(results, tuple(findings), tuple(unchecked), tuple(recounted))


def _wrong(message: str) -> Finding:
    return Finding("metrics", "_SUCCESS", message)


def _is_in_the_files(
    run: SavedRun, output: Place, sink: Mapping[str, Any], name: str, metric: Accumulator
) -> bool:
    """Say whether the columns of a metric are in the output as they were when it counted them."""
    if sink.get("kind") != "Parquet" or name not in run.plan.unchanged_metrics:
        return False
    if output.copied or run.state.schema is None:  # they would be fetched once more
        return False
    names = schema_from(run.state.schema).names
    return set(metric.columns) <= set(names) - set(sink.get("partition_by", ()))


def _merged(run: SavedRun, number: int, name: str, metric: Accumulator) -> Any:
    """Return a metric's result by the states of all shards, in plain values; ``number`` is its place in them."""
    records = (record for record in run.in_order() if record.states)
    totals = merged([(name, metric)], ((record.states[number],) for record in records), run.folder)
    return _plain(totals[0])


def _counted(metric: Accumulator, files: Sequence[Path]) -> Any:
    """Return a metric's result by the rows in Parquet files, which have its columns; in plain values."""
    import pyarrow.parquet as pq

    total = metric.empty()
    for path in files:
        with safe_files.file(path) as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(columns=list(total.columns), use_threads=False):
                total.update(batch)
    return _plain(total)


def _plain(total: Accumulator) -> Any:
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
