"""Batches of the size that the user asked for, or that is best for the function that gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.worker.batching import BATCH_BYTES, BatchTuner, auto_size, rows_of
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows, rebatch, recut

Weight = Callable[[], float]


@dataclass(frozen=True, slots=True)
class BatchCutter:
    """How the batches for one function are cut: of ``rows`` rows, of about ``bytes`` bytes, or as its tuner says.

    ``eager``: a batch whose size is ours to choose is never waited for; it is what was read.
    """

    rows: int | None
    bytes: int | None
    caller: Caller
    eager: bool

    @property
    def tuner(self) -> BatchTuner | None:
        """The tuner, if there is something for it to find."""
        free = self.rows is None and self.bytes is None and not self.eager
        return self.caller.tuner if free else None

    @property
    def look(self) -> int | None:
        """The ``look`` of ``InFlightWindow.run``."""
        return (self.rows or 1) if self.eager else None

    def cut(self, rows: Iterator[Rows], row_bytes: Weight = lambda: 0.0) -> Iterator[Rows]:
        """Cut a stream. ``row_bytes`` is asked for the bytes that each row of the part read last has in memory."""
        if self.rows is not None:
            return rebatch(rows, self.rows)
        if self.eager:
            return rows
        if self.bytes is not None:
            asked = self.bytes
            return recut(rows, _per_part(lambda part: rows_of(asked, part.batch)))
        limit = _per_part(lambda part: min(auto_size(part.batch), int(BATCH_BYTES // max(row_bytes(), 1))))
        return recut(rows, lambda part: self.caller.tuner.rows(self._fitting(limit(part))))

    def _fitting(self, limit: int) -> int:
        ceiling = self.caller.ceiling
        return max(1, limit if ceiling is None else min(limit, ceiling))


def _per_part(size: Callable[[Rows], int]) -> Callable[[Rows], int]:
    """Cache ``size`` for each batch that was read: adding up the bytes of many columns takes a while."""
    known: list[tuple[Rows, int]] = []

    def asked(part: Rows) -> int:
        if not known or known[0][0] is not part:
            known[:] = [(part, size(part))]
        return known[0][1]

    return asked
