"""``python -m bench.sizes``: how good the batch size is that finds itself, and how soon it is found.

Three models: the one of ``taxi_mlp``, the one of ``images`` on decoded pixels, and a transformer of two layers. What
``batch_size="auto"`` ends at is compared with every power of two, each timed alone in turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import headrace as hr
from bench import given
from bench.steps import COORDINATES, MIDDLE, Mlp, Resnet

Batch = dict[str, NDArray[Any]]

BAR = 0.95  # of the best rate
LONG = 0.02  # of a long run's rows may be spent on finding out
ONE_TIMING = 0.3  # seconds


@dataclass(frozen=True)
class Job:
    """What to run: ``rows`` of ``data`` over and over, and the biggest size to compare with."""

    model: Callable[[], Callable[[Batch], Any]]
    data: Callable[[int], Batch]
    rows: int
    most: int


def taxi(rows: int) -> Batch:
    rng = np.random.default_rng(0)
    return {name: at + rng.normal(0, 0.05, rows) for name, at in zip(COORDINATES, MIDDLE, strict=True)}


def pixels(rows: int) -> Batch:
    return {"image": np.random.default_rng(0).integers(0, 256, (rows, 224, 224, 3), np.uint8)}


def tokens(rows: int) -> Batch:
    return {"ids": np.random.default_rng(0).integers(0, 1_000, (rows, 64))}


def resnet() -> Callable[[Batch], Any]:
    step = Resnet()
    return lambda batch: step.predict(batch["image"])[1]


def transformer() -> Callable[[Batch], Any]:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    network = nn.Sequential(
        nn.Embedding(1_000, 128), nn.TransformerEncoder(layer, 2), nn.Linear(128, 2)
    ).eval()

    def predict(batch: Batch) -> Any:
        with torch.inference_mode():
            return network(torch.tensor(batch["ids"])).mean((1, 2)).numpy()

    return predict


JOBS = {
    "taxi_mlp": Job(Mlp, taxi, 1 << 21, 1 << 16),
    "images": Job(resnet, pixels, 600, 64),
    "transformer": Job(transformer, tokens, 12_000, 1 << 10),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    missed = False
    for name in options.jobs or JOBS:
        job = JOBS[name]
        found, rows, seconds = settled(job)
        rates = rated(job, options.rounds)
        best = max(rates, key=rates.__getitem__)
        near = rates[found] / rates[best] if found in rates else float("nan")
        told = ", ".join(f"{size}: {rate / rates[best]:.3f}" for size, rate in rates.items())
        print(f"{name}: found {found:,} rows, {near:.3f} of the rate with the best, {best:,} ({told})")
        print(
            f"{name}: with {rows:,} rows in {seconds:.1f} s, {LONG:.0%} of a run of {seconds / LONG / 60:.1f} minutes"
        )
        missed |= not near >= BAR
    return int(missed)


def settled(job: Job) -> tuple[int, int, float]:
    """What ``auto`` ends at, and how many rows and seconds went by before."""
    model, ends = job.model(), list[tuple[int, float]]()

    def watched(batch: Batch) -> dict[str, Any]:
        result = model(batch)
        ends.append((len(result), time.perf_counter()))
        return {"y": result}

    data = hr.from_arrow(table(job.data(job.rows))).map_batches(watched)
    start = time.perf_counter()
    for _ in data.with_options(engine="inline", progress=False, shard_rows=job.rows).iter_batches():
        pass
    sizes = [size for size, _ in ends]
    found = statistics.mode(sizes[-max(3, len(sizes) // 4) :])
    last = max((i for i, size in enumerate(sizes[:-1]) if size.bit_count() == 1 and size != found), default=0)
    return found, sum(sizes[: last + 1]), ends[last][1] - start


def table(data: Batch) -> pa.Table:
    """As a dataset in memory, arrays with more than one axis as tensors."""
    wide = pa.FixedShapeTensorArray.from_numpy_ndarray
    return pa.table({name: wide(values) if values.ndim > 1 else values for name, values in data.items()})


def rated(job: Job, rounds: int) -> dict[int, float]:
    """Rows per second of this thread's own time with each power of two: the median of some rounds."""
    model = job.model()
    data = job.data(job.most)
    rates: dict[int, list[float]] = {}
    for turn in range(rounds + 1):
        size = 1
        while size <= job.most:
            batch = {name: values[:size] for name, values in data.items()}
            calls, start = 0, time.thread_time()
            while not calls or time.thread_time() - start < ONE_TIMING:
                model(batch)
                calls += 1
            if turn:
                rates.setdefault(size, []).append(calls * size / (time.thread_time() - start))
            size *= 2
    return {size: statistics.median(found) for size, found in rates.items()}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m bench.sizes", description=__doc__)
    result.add_argument("--rounds", type=given.count, default=5, help="timings of each size (default 5)")
    result.add_argument("--jobs", nargs="*", choices=JOBS, help="all, if none is named")
    return result


if __name__ == "__main__":
    sys.exit(main())
