"""The output schema of steps, found by sending a batch without rows through them, in the driver's process."""

from __future__ import annotations

from collections.abc import Sequence

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
    """
    if union_in(steps) is not None:
        return None  # each dataset has a schema of its own
    batch = empty_batch(schema)
    for step in steps:
        try:
            batch = running(step).on_no_rows(batch)
        except BaseException as error:
            # Rows would fail as well.
            if is_interrupt(error) or (type(error) in (StepError, UnknownColumn) and not step.functions()):
                raise
            if guessed is None:
                return None
            guessed.append(step.label())
    return batch.schema
