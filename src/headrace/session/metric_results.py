"""What becomes of counted metrics: results, plain values for a report, a line for the summary."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.files.artifacts import shortened
from headrace.core.metric_states import plain
from headrace.core.model_ports import Accumulator
from headrace.core.terminal import one_line, padded, width
from headrace.errors import StepError
from headrace.result import Metrics

_LINE = 100
_log = logging.getLogger("headrace")


def collected(metrics: Sequence[tuple[str, Accumulator]], totals: Sequence[Accumulator]) -> Metrics:
    """Return the results by name, with the notes that there are."""
    from headrace.accumulators.by import note_of  # imports numpy: not before workers have been started

    names = [name for name, _ in metrics]
    notes = {name: note_of(total) for name, total in zip(names, totals, strict=True)}
    results = {name: _result(name, total) for name, total in zip(names, totals, strict=True)}
    return Metrics(results, notes={name: note for name, note in notes.items() if note})


def _result(name: str, total: Accumulator) -> Any:
    try:
        return total.result()
    except Exception as error:
        raise StepError(f"accumulate({name}) failed: its result: {type(error).__name__}: {error}.") from error


def charts(metrics: Sequence[tuple[str, Accumulator]], totals: Sequence[Accumulator]) -> dict[str, Any]:
    """Return plain data for drawing what was counted, by name. What cannot be drawn is no reason to fail."""
    from headrace.accumulators.by import chart_of

    found = {}
    for (name, _), total in zip(metrics, totals, strict=True):
        try:
            chart = plain(chart_of(total))
        except Exception:
            _log.exception("The metric %s cannot be drawn; the report goes without its chart.", name)
            continue
        if chart is not None:
            found[name] = chart
    return found


def reported(found: Metrics) -> dict[str, Any]:
    """Return what the report says: plain JSON values."""
    notes = {"metrics_notes": found.notes} if found.notes else {}
    return {"metrics": plain(found), **notes} if found else {}


def lines(found: Metrics) -> list[str]:
    """Return a line for each metric.

    >>> lines(Metrics({"auc": 0.8312345678, "loss": None}, notes={"loss": "no rows"}))
    ['auc:  0.831235', 'loss: none (no rows)']
    """
    rows = []
    for name, value in found.items():
        note = found.notes.get(name, "")
        rows.append((name, shortened(_text(value), _LINE) + (f" ({note})" if note else "")))
    names = [f"{one_line(name)}: " for name, _ in rows]
    wide = max(map(width, names), default=0)
    return [padded(name, wide) + one_line(text) for name, (_, text) in zip(names, rows, strict=True)]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        low, high = getattr(value, "low", None), getattr(value, "high", None)
        between = f" ({low:.6g} to {high:.6g})" if low is not None and high is not None else ""
        return f"{float(value):.6g}{between}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return str(value)
