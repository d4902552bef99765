"""The output schema of steps, found by sending a batch without rows through them, in the driver's process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.arrow.batch import empty_batch
from headrace.core.failures import is_interrupt
from headrace.errors import StepError, UnknownColumn
from headrace.plan.steps.base import Step
from headrace.plan.steps.combined import union_in
from headrace.worker.steps.base import running


def schema_by_trying(
    steps: Sequence[Step], schema: pa.Schema, *, guessed: list[str] | None = None
) -> pa.Schema | None:
    """Send a batch of no rows through the steps; None if a function cannot do without rows.

    With ``guessed``, such a step is taken to leave the columns as they are, and its label is added there.

    Raises ``UnknownColumn`` and ``StepError`` for an expression that cannot work on such columns.

    This is the driver's process, where only somebody's signal is an interrupt: functions may raise what they like.
    """
    if union_in(steps) is not None:
        return None  # each dataset has a schema of its own
    batch = empty_batch(schema)
    with interrupts_noted() as noted:
        for step in steps:
            try:
                batch = running(step).on_no_rows(batch)
            except BaseException as error:
                if is_interrupt(error) and (noted or type(error) is not KeyboardInterrupt):
                    raise
                # Rows would fail as well.
                if type(error) in (StepError, UnknownColumn) and not step.functions():
                    raise
                if guessed is None:
                    return None
                guessed.append(step.label())
    return batch.schema


@contextlib.contextmanager
def interrupts_noted() -> Iterator[list[int]]:
    """Yield a list that gets each SIGINT which comes meanwhile; what is to happen then, happens."""
    noted: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if handler is None:  # it is not Python's, and might raise anything at any time
        yield [signal.SIGINT]
    elif not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield noted  # no signal raises anything here
    else:

        def note(number: int, frame: Any) -> None:
            noted.append(number)
            handler(number, frame)

        signal.signal(signal.SIGINT, note)
        try:
            yield noted
        finally:
            if signal.getsignal(signal.SIGINT) is note:  # else the user's code has set one of its own
                signal.signal(signal.SIGINT, handler)
