"""What is counted over pairs of rows: how each column differs, which rows do, and the worst of them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.accumulators.differences import Differences
from headrace.annex.compare.labels import Judged
from headrace.core.arrow.batch import taken
from headrace.core.arrow.batch_formats import rows_of
from headrace.errors import HeadraceError

Worst = tuple[float, int, dict[str, Any]]
"""By how much a row changed, its number, and what is shown of it."""


class Measure:
    """Counts pairs of rows; what several have counted can be merged.

    ``columns`` are compared. ``label``: a column of either side that results are judged by. Of each column the
    ``sample`` rows that changed most are kept: numbers by how far they are apart, other values in order.
    """

    def __init__(self, columns: Sequence[str], sample: int, label: str | None = None) -> None:
        self.columns = {name: Differences(name, name) for name in columns}
        self.rows = self.changed = 0
        self.worst: dict[str, list[Worst]] = {name: [] for name in columns}
        self.judged = {} if label is None else {name: Judged() for name in columns if name != label}
        self.lone = {"old": 0, "new": 0}  # rows that one side alone has
        self.lone_rows: dict[str, list[dict[str, Any]]] = {"old": [], "new": []}  # some of them
        self._sample, self._label = sample, label

    def add(self, old: pa.RecordBatch, new: pa.RecordBatch, first: int) -> None:
        """Count pairs of rows; ``first`` is the number of the first one."""
        any_changed = np.zeros(new.num_rows, np.bool_)
        label = None
        if self._label is not None:
            label = (new if self._label in new.schema.names else old).column(self._label)
        for name, differences in self.columns.items():
            one, other = old.column(name), new.column(name)
            try:
                changed, by = differences.add(one, other)
                if label is not None and name in self.judged:
                    self.judged[name].add(label, one, other, first)
            except HeadraceError:
                raise
            except pa.ArrowException as error:
                raise HeadraceError(
                    f"compare: column {name!r} cannot be compared: {error}. Leave it out."
                ) from error
            if changed.any():
                any_changed |= changed
                if self._sample:
                    self._keep(name, np.flatnonzero(changed), by, one, new, first)
        self.rows += new.num_rows
        self.changed += int(np.count_nonzero(any_changed))

    def _keep(
        self,
        name: str,
        at: np.ndarray[Any, Any],
        by: np.ndarray[Any, Any] | None,
        old: pa.Array,
        new: pa.RecordBatch,
        first: int,
    ) -> None:
        far = np.ones(len(at)) if by is None else np.where(np.isnan(by), np.inf, np.abs(by))
        kept = self.worst[name]
        if len(kept) == self._sample:
            some = np.flatnonzero(far > kept[-1][0])
            if not len(some):
                return
            at, far, by = at[some], far[some], None if by is None else by[some]
        if len(at) > self._sample:
            some = np.flatnonzero(far >= np.partition(far, -self._sample)[-self._sample])
            some = np.sort(some[np.argsort(-far[some], kind="stable")[: self._sample]])
            at, far, by = at[some], far[some], None if by is None else by[some]
        before = [row["old"] for row in rows_of(taken(pa.record_batch([old], ["old"]), at))]
        for i, row in enumerate(rows_of(taken(new, at))):
            number = first + int(at[i])
            shown = {"row": number, "old": before[i], "new": row.pop(name)}
            if by is not None:
                shown["difference"] = None if np.isnan(by[i]) else float(by[i])
            kept.append((float(far[i]), number, {**shown, "inputs": row}))
        self.worst[name] = self._first(kept)

    def _first(self, rows: Sequence[Worst]) -> list[Worst]:
        return heapq.nsmallest(self._sample, rows, key=lambda each: (-each[0], each[1]))

    def add_lone(self, side: str, batch: pa.RecordBatch) -> None:
        """Count rows that one side alone has."""
        self.lone[side] += batch.num_rows
        self.lone_rows[side] += rows_of(batch.slice(0, max(0, self._sample - len(self.lone_rows[side]))))

    def empty(self) -> Measure:
        """Return one that has counted nothing."""
        return Measure(list(self.columns), self._sample, self._label)

    def merge(self, other: Measure) -> None:
        """Count what another has counted of other rows."""
        self.rows += other.rows
        self.changed += other.changed
        for name, differences in other.columns.items():
            self.columns[name].merge(differences)
            self.worst[name] = self._first([*self.worst[name], *other.worst[name]])
        for name, judged in other.judged.items():
            self.judged[name].merge(judged)
