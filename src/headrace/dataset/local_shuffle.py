"""Rows that come in order, given to the reader out of order, as far as a buffer of them reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.errors import ArgumentError
from headrace.plan.parameters import given_rows


class LocalShuffle(msgspec.Struct, frozen=True):
    """How a reader wants rows shuffled: out of at least ``rows`` at a time, by ``seed`` (None: by chance)."""

    rows: int
    seed: int | None

    @classmethod
    def given(cls, rows: Any, seed: Any, batch_size: int | None) -> LocalShuffle | None:
        """Read the arguments of a verb; None if nothing is to be shuffled."""
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise ArgumentError(f"local_shuffle_seed={seed!r}: it takes a whole number, zero or more.")
        if rows is None:
            return None
        if given_rows(None, "local_shuffle_buffer_size", rows) < 1:
            raise ArgumentError("local_shuffle_buffer_size=0: it takes a number of rows above zero.")
        if batch_size is None:
            raise ArgumentError("local_shuffle_buffer_size= needs a batch_size= that is a number.")
        return cls(int(rows), seed)

    def over(self, batches: Iterator[Any], size: int) -> Iterator[Any]:
        """Yield batches of ``size`` rows, each drawn from a buffer that has ``rows`` more as long as more come.

        The same seed gives the same order, however the rows come.
        """
        import numpy as np

        from headrace.core.arrow.batch import taken
        from headrace.worker.rows import Rows, join, rebatch

        draw = np.random.default_rng(self.seed)
        held: Rows | None = None
        for part in rebatch((Rows(batch, ()) for batch in batches), max(self.rows, size)):
            if held is not None and not held.can_join(part):
                yield from _cut(held, size, 0)
                held = None
            held = part if held is None else join([held, part])
            if not len(held):
                yield held.batch
                continue
            held = held.with_batch(taken(held.batch, draw.permutation(len(held))))
            left = self.rows + (len(held) - self.rows) % size if len(held) > self.rows else len(held)
            yield from _cut(held, size, left)
            held = held.cut(len(held) - left, len(held)) if left else None
        if held is not None and len(held):
            yield from _cut(held, size, 0)


def _cut(held: Any, size: int, left: int) -> Iterator[Any]:
    """Yield batches of the first rows, all but ``left``."""
    for at in range(0, len(held) - left, size):
        yield held.cut(at, min(at + size, len(held) - left)).batch
