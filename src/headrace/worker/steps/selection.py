"""Choosing rows: the first ones, a share of them, those that were not seen before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import empty_columns, filtered
from headrace.core.key_digests import KeyFile, digests_of
from headrace.core.source_ports import shares
from headrace.errors import StepError
from headrace.plan.steps.selection import Limit, RandomSample, Unseen
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


# ---------------------------------------------------------------- Keeping some rows by a hash of where they stand


@runs(RandomSample)
class Sampling(RunningStep[RandomSample]):
    """Keeps the rows of the sample."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Keep the rows of the sample, and count the others as dropped."""
        for part in rows:
            mask = self._mask(part, context)
            kept = int(mask.sum())
            context.count_dropped(len(part) - kept)
            batch = filtered(part.batch, mask) if part.batch.num_columns else empty_columns(kept)
            yield part.masked(batch, mask)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch."""
        return batch

    def _mask(self, part: Rows, context: StepContext) -> np.ndarray[Any, np.dtype[np.bool_]]:
        masks = [np.empty(0, np.bool_)]
        for span in part.spans:
            if span.last is not None and span.count:
                raise StepError(
                    f"{self.step.label()} chooses rows by their position in the input, but a function before it "
                    f"changed the number of rows ({context.where(part)}), so they have no position. Put the sample "
                    "before that step."
                )
            found = shares(context.keys(span.split, span.numbers()), self._seed)
            masks.append((found >= self.step.low) & (found < self.step.high))
        return np.concatenate(masks)

    @property
    def _seed(self) -> int:
        """Another seed for each sample of a plan: the second takes its part of the first, not all of it."""
        return self.step.seed * 1_000_003 + self.step.number


# ---------------------------------------------------------------- Leaving out the rows whose key was seen before


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
