"""Leaving out the rows whose key was seen before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.core.arrow.row_selection import filtered
from headrace.core.key_digests import KeyFile, digests_of
from headrace.plan.steps.unseen import Unseen
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningStep, StepContext, runs


@runs(Unseen)
class LeavingOutSeen(RunningStep[Unseen]):
    """Looks each row's key up in the sorted keys of earlier runs, which all workers map."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Yield the rows whose keys are new, and count the others as dropped."""
        folder = self.step.seen.folder
        if not folder:
            yield from rows
            return
        keys = KeyFile(Path(folder)).whole()
        for part in rows:
            new = np.logical_not(keys.has(digests_of(part.batch, self.step.key)))
            dropped = len(part) - int(new.sum())
            context.count_dropped(dropped)
            yield part.masked(filtered(part.batch, new), new) if dropped else part

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch."""
        return batch
