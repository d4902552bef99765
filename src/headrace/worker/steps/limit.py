"""Passing the first rows on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.plan.steps.limit import Limit
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningStep, StepContext, runs


@runs(Limit)
class Limiting(RunningStep[Limit]):
    """Passes as many rows as the shard may give."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Pass rows, and end with the last one: no more is read."""
        budget, meter = context.budget, context.meter
        for part in rows:
            passed = min(budget, len(part))
            budget -= passed
            context.count_dropped(len(part) - passed)
            yield part.cut(0, passed)
            if budget == 0:
                meter.cut = max(meter.cut, context.number)
                return

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch."""
        return batch
