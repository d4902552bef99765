"""The same for Ray Data: an actor for each core, and one that has the device and no core.

At one CPU each the actors would leave none for the read and the write, so they say half.
"""

from __future__ import annotations

import os
from typing import Any

import ray
import ray.data

from bench.device import BATCH, Mix, Predict, Prepare

Batch = dict[str, Any]


class Classes:
    def __init__(self, ms: float) -> None:
        self.device = Predict(ms)

    def __call__(self, batch: Batch) -> Batch:
        found = self.device(batch["image"])
        return {"id": batch["id"], "prepare_s": batch["prepare_s"], "prediction": found}


def main(job: str, data: str, out: str) -> None:
    mix = Mix.load(data)
    cores = os.cpu_count() or 1
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    images = ray.data.range(mix.images).map_batches(
        Prepare,
        fn_constructor_args=[mix.prepare_ms],
        batch_size=BATCH,
        num_cpus=0.5,
        compute=ray.data.ActorPoolStrategy(size=cores),
    )
    images.map_batches(
        Classes,
        fn_constructor_args=[mix.predict_ms],
        batch_size=BATCH,
        num_cpus=0,
        compute=ray.data.ActorPoolStrategy(size=1),
    ).write_parquet(out)
