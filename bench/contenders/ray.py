"""Ray Data on the cores of this machine.

Functions run as tasks that are fused with the read and the write. Models are pools of two actors
at half a CPU each: at one CPU each they would leave none for the read, and the job would hang.
"""

from __future__ import annotations

import os
from typing import Any

import ray
import ray.data

from bench.steps import Mlp, Parity, Resnet, Wide, as_arrow, as_numpy, decode

Batch = dict[str, Any]


def parity(batch: Batch) -> Batch:
    return as_numpy(Parity(), batch)


def wide(table: Any) -> Any:
    return as_arrow(Wide(), table)


def decoded(row: Batch) -> Batch:
    return {"path": row["path"], "pixels": decode(row["bytes"])}


class Mlps:
    def __init__(self) -> None:
        self.step = Mlp()

    def __call__(self, batch: Batch) -> Batch:
        return as_numpy(self.step, batch)


class Classes:
    def __init__(self) -> None:
        self.model = Resnet()

    def __call__(self, batch: Batch) -> Batch:
        labels, scores = self.model.predict(batch["pixels"])
        return {"path": batch["path"], "label": labels, "prediction": scores}


def main(job: str, data: str, out: str) -> None:
    start()
    run(job, data, out)


def start() -> None:
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)


def run(job: str, data: str, out: str) -> None:
    ray.data.DataContext.get_current().enable_progress_bars = False
    predictions(job, data).write_parquet(out)


def predictions(job: str, data: str) -> ray.data.Dataset:
    pool = ray.data.ActorPoolStrategy(size=2)
    if job == "images":
        images = ray.data.read_binary_files(data, include_paths=True).map(decoded)
        return images.map_batches(Classes, batch_size=Resnet.batch_size, compute=pool, num_cpus=0.5)
    if job == "taxi_mlp":
        rides = ray.data.read_parquet(data, columns=list(Mlp.columns))
        return rides.map_batches(Mlps, batch_size=131_072, compute=pool, num_cpus=0.5)
    if job == "wide":
        rows = ray.data.read_parquet(data)
        return rows.map_batches(wide, batch_format="pyarrow", batch_size=None)
    rides = ray.data.read_parquet(data, columns=list(Parity.columns))
    return rides.map_batches(parity, batch_size=None)
