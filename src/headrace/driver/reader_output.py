"""The output of a run that is read rather than written: batches in the order of shards."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.core.arrow.batch import from_ipc
from headrace.core.arrow.objects import unpacked, with_own_objects
from headrace.core.work import Delivered, Outcome, OutputBlocks


class ReaderOutput:
    """Holds batches back until it is their turn, and remembers what the reader has of each shard."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[OutputBlocks]] = {}  # by shard
        self._delivered: dict[int, Delivered] = {}  # by shard, until it is committed

    def delivered(self, shard: int) -> Delivered | None:
        """Begin a new attempt at a shard: return what the reader has of it, which the attempt leaves out."""
        self._blocks.pop(shard, None)  # of an attempt that was lost before its turn
        return self._delivered.get(shard)

    def add(self, outcome: Outcome) -> None:
        """Add an attempt's batches, if the outcome has any."""
        if isinstance(outcome, OutputBlocks):
            self._blocks.setdefault(outcome.shard, []).append(outcome)

    def committed(self, shard: int) -> None:
        """A shard is committed: no attempt at it will begin."""
        self._delivered.pop(shard, None)

    def ready(self, head: int) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the shards up to ``head``, the first that is not committed."""
        if not self._blocks:
            return
        for shard in sorted(self._blocks):
            if shard > head:
                return
            for block in self._blocks.pop(shard):
                if block.until is not None:
                    self._delivered[shard] = block.until
                for batch in from_ipc(block.data):
                    yield with_own_objects(batch) if block.alive else unpacked(batch, block.objects)
