"""``python -m bench.blocks``: how fast blocks travel between workers.

One worker lays 64 images of 224 × 224 in shared memory, another reads every byte of them. Each is one thread, so the
figures are per core; the round trip has the driver's calls to both in it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from bench import given
from headrace.core.engine_ports import Engine, PoolSpec, WorkerContext
from headrace.core.work import BlockRef
from headrace.engines.local.pool import LocalEngine

SHAPE = (64, 224, 224, 3)
BYTES = 64 * 224 * 224 * 3
WARMING = 8  # slots are made at first, and used again later
BAR = 5.0  # GB/s per core, of writing and of reading


class Hand:
    """Hosted in both workers: one writes, the other reads."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        images = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)
        column = pa.FixedShapeTensorArray.from_numpy_ndarray(images)
        self.batch = pa.record_batch([column], names=["image"])
        self.sum = whole_sum(images)

    def write(self) -> tuple[BlockRef, float]:
        """A block, and the seconds that it took to lay it."""
        began = time.perf_counter()
        ref = self.context.share(self.batch.schema, [self.batch])
        return ref, time.perf_counter() - began

    def read(self, ref: BlockRef) -> tuple[bool, float]:
        """Whether a block holds what it should, and the seconds that it took to look at all of it."""
        began = time.perf_counter()
        (batch,) = self.context.fetch(ref)
        found = whole_sum(batch.column(0).to_numpy_ndarray())
        return found == self.sum, time.perf_counter() - began

    def close(self) -> None:
        """Nothing is open."""


def whole_sum(images: np.ndarray) -> int:
    return int(images.reshape(-1).view(np.uint64).sum(dtype=np.uint64))


def measured(engine: Engine, turns: int) -> tuple[list[float], list[float], list[float]]:
    """GB/s of writing, of reading, and of the round trip, of each turn."""
    writers = engine.start(PoolSpec("writers", Hand, 1), lambda *note: None)
    readers = engine.start(PoolSpec("readers", Hand, 1), lambda *note: None)
    written, read, whole = list[float](), list[float](), list[float]()
    for turn in range(WARMING + turns):
        began = time.perf_counter()
        ref, writing = writers.submit("write").result()
        right, reading = readers.submit("read", ref).result()
        seconds = time.perf_counter() - began
        if not right:
            raise SystemExit("a block was read that is not what was written")
        if turn >= WARMING:
            for rates, took in ((written, writing), (read, reading), (whole, seconds)):
                rates.append(BYTES / took / 1e9)
    return written, read, whole


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.blocks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--turns", type=given.count, default=200, help="blocks (default 200)")
    options = parser.parse_args(arguments)
    engine = LocalEngine()
    try:
        written, read, whole = measured(engine, options.turns)
    finally:
        engine.close()
    print(f"blocks of {BYTES / 2**20:.1f} MiB; GB/s, median of {options.turns} (slowest–fastest)")
    for name, rates in (("write", written), ("read", read), ("round trip", whole)):
        print(f"  {name:10}  {statistics.median(rates):5.1f} ({min(rates):.1f}–{max(rates):.1f})")
    slower = min(statistics.median(written), statistics.median(read))
    print(f"note: the bar of {BAR:g} GB/s per core is {'met' if slower >= BAR else 'missed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
