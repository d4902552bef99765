"""Batches of the size that the user asked for, or that is best for the function that gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millrace.run.batching import BATCH_BYTES, Tuner, auto_size, rows_of
from millrace.run.calls import Caller
from millrace.run.rows import Rows, rebatch, recut

Weight = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Cut:
    """How the batches for one function are cut: of ``rows`` rows, of about ``bytes`` bytes, or as its tuner says.

    ``eager``: a batch whose size is ours to choose is never waited for; it is what was read.
    """

    rows: int | None
    bytes: int | None
    caller: Caller
    eager: bool

    @property
    def tuner(self) -> Tuner | None:
        """The tuner, if there is something for it to find."""
        free = self.rows is None and self.bytes is None and not self.eager
        return self.caller.tuner if free else None

    @property
    def look(self) -> int | None:
        """What ``Flight.over`` wants to know of somebody who only takes a look."""
        return (self.rows or 1) if self.eager else None

    def over(self, rows: Iterator[Rows], beside: Weight = lambda: 0.0) -> Iterator[Rows]:
        """Cut a stream. ``beside`` is asked for the bytes that each row of the part read last has in memory."""
        if self.rows is not None:
            return rebatch(rows, self.rows)
        if self.eager:
            return rows
        if self.bytes is not None:
            asked = self.bytes
            return recut(rows, _per_part(lambda part: rows_of(asked, part.batch)))
        limit = _per_part(lambda part: min(auto_size(part.batch), int(BATCH_BYTES // max(beside(), 1))))
        return recut(rows, lambda part: self.caller.tuner.rows(self._fitting(limit(part))))

    def _fitting(self, limit: int) -> int:
        ceiling = self.caller.ceiling
        return max(1, limit if ceiling is None else min(limit, ceiling))


def _per_part(size: Callable[[Rows], int]) -> Callable[[Rows], int]:
    """Ask only once for each part that was read: adding up its bytes takes a while where it has many columns."""
    known: list[tuple[Rows, int]] = []

    def asked(part: Rows) -> int:
        if not known or known[0][0] is not part:
            known[:] = [(part, size(part))]
        return known[0][1]

    return asked
