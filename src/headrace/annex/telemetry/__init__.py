"""Observers that report a run elsewhere: MLflow, OpenLineage and OpenTelemetry. Here is what they share."""

from __future__ import annotations

from headrace.core.events import RunDescribed, RunFinished
from headrace.core.stores.addresses import without_secrets_in
from headrace.observers.run_state import RunState


def parameters_of(described: RunDescribed | None) -> dict[str, str]:
    """Return engine, version, input, plan, options and models of a run; what is empty is left out."""
    if described is None:
        return {}
    texts = {
        "engine": described.engine,
        "version": described.version,
        "input": ", ".join(described.inputs),
        "input_files": str(described.input_files),
        "plan": " | ".join(described.steps),
        **{f"option.{name}": text for name, text in described.options.items()},
        **{f"model.{step}": digest for step, digest in described.models},
    }
    return {name: without_secrets_in(text) for name, text in texts.items() if text}


def figures_of(event: RunFinished, state: RunState) -> dict[str, float]:
    """Return rows, seconds, bytes and files of a run that has ended, and what it has cost, if that is known."""
    ledger, paid = event.ledger, event.paid
    found = {
        "headrace.rows": ledger.written,
        "headrace.rows_read": ledger.read,
        "headrace.rejected": ledger.rejected,
        "headrace.seconds": event.seconds,
        "headrace.rows_per_second": state.average(state.at),
        "headrace.bytes": event.bytes,
        "headrace.files": event.files,
    }
    return found | ({"headrace.cost": paid.total.cost} if paid is not None and paid.priced else {})
