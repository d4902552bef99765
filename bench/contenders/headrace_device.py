"""Headrace with a pool for each of two steps; the job of ``bench.stages``.

The ids are read in splits of 64, as image files of this size are; ``hr.range`` would make splits of 1,024 rows, which
suits rows of a few bytes, and would leave one worker five seconds of work at the end.
"""

from __future__ import annotations

from typing import Any

import headrace as hr
from bench.device import BATCH, Mix, Predict, Prepare
from headrace.sources.range import RangeSource

Batch = dict[str, Any]


def main(job: str, data: str, out: str) -> None:
    mix = Mix.load(data)
    ids = hr.Dataset.from_source(RangeSource(mix.images, rows_per_split=64))
    images = ids.map_batches(Prepare, fn_constructor_args=[mix.prepare_ms], batch_size=BATCH, num_cpus=1)
    found = images.predict(
        Classes, inputs=["image"], fn_constructor_args=[mix.predict_ms], batch_size=BATCH, concurrency=1
    )
    found.drop_columns("image").with_options(progress=False).write_parquet(out)


class Classes:
    def __init__(self, ms: float) -> None:
        self.device = Predict(ms)

    def __call__(self, batch: Batch) -> Any:
        return self.device(batch["image"])
