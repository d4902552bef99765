"""Observers that report a run elsewhere: MLflow, OpenLineage and OpenTelemetry. Here is what they share."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

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


class Sender:
    """Carries out calls in their order, by a thread of its own: the run does not wait. A call raises nothing."""

    def __init__(self, receiver: str, patience: float) -> None:
        """``receiver`` is whom calls ask; ``patience``: seconds for what is left at the end, if nobody answers."""
        self._receiver, self._patience = receiver, patience
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        name = f"headrace-{receiver.lower()}"
        self._thread = threading.Thread(target=self._carry_out, name=name, daemon=True)
        self._thread.start()

    def do(self, call: Callable[[], Any]) -> None:
        """Have a call carried out once those before it were."""
        self._calls.put(call)

    def close(self) -> None:
        """Wait for all calls, for a while."""
        self._calls.put(None)
        self._thread.join(self._patience)
        if self._thread.is_alive():
            words = "%s has not answered for %d seconds; the rest is not waited for."
            logging.getLogger("headrace").warning(words, self._receiver, self._patience)

    def _carry_out(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
