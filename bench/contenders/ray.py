"""Ray Data on the cores of this machine.

Functions run as tasks that are fused with the read and the write. Models are pools of two actors
at half a CPU each: at one CPU each they would leave none for the read, and the job would hang.
``ray_one`` has a single actor with a CPU of its own. Models that wait are one on each node, with its device.
"""

from __future__ import annotations

import os
from typing import Any

import ray
import ray.data

from bench.jobs import NODES, WAITING
from bench.steps import BLOBS, Parity, Wide, as_arrow, as_lists, as_numpy, results, step_class

Batch = dict[str, Any]

HALVES = {"compute": ray.data.ActorPoolStrategy(size=2), "num_cpus": 0.5}
ONE = {"compute": ray.data.ActorPoolStrategy(size=1), "num_cpus": 1}
DEVICES = {"compute": ray.data.ActorPoolStrategy(size=NODES), "num_gpus": 1}
FILES_AT_ONCE = {"images": 16, "audio": 8, "small_images": 64, "small_images_tar": 64, "waiting_images": 64}


def parity(batch: Batch) -> Batch:
    return as_numpy(Parity(), batch)


def wide(table: Any) -> Any:
    return as_arrow(Wide(), table)


def chunks(row: Batch) -> list[Batch]:
    from bench.workloads.documents import chunk_rows

    return chunk_rows(row["path"], row["bytes"])


class Rows:
    def __init__(self, job: str) -> None:
        self.step = step_class(job)()

    def __call__(self, batch: Batch) -> Batch:
        return as_lists(as_numpy(self.step, batch))


class Files:
    def __init__(self, job: str) -> None:
        self.step = step_class(job)()

    def __call__(self, batch: Batch) -> Batch:
        path = batch["path"] if "path" in batch else [f"{key}.jpg" for key in batch["__key__"]]
        return {"path": path, **as_lists(self.step(batch["bytes" if "bytes" in batch else "jpg"]))}


class Texts:
    def __init__(self) -> None:
        self.step = step_class("text_embedding")()

    def __call__(self, batch: Batch) -> Batch:
        return {**batch, **as_lists(results(self.step, batch))}


def main(job: str, data: str, out: str, pool: dict[str, Any] = HALVES) -> None:
    start()
    run(job, data, out, pool)


def first_row(data: str) -> Batch:
    start()
    ray.data.DataContext.get_current().enable_progress_bars = False
    return predictions("taxi_mlp", data, HALVES).take(1)[0]


def start() -> None:
    ray.init(address="local", num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)


def run(job: str, data: str, out: str, pool: dict[str, Any] = HALVES) -> None:
    ray.data.DataContext.get_current().enable_progress_bars = False
    predictions(job, data, DEVICES if job in WAITING else pool).write_parquet(out)


def predictions(job: str, data: str, pool: dict[str, Any]) -> ray.data.Dataset:
    if job == "documents":
        texts = ray.data.read_binary_files(data, include_paths=True).flat_map(chunks)
        return texts.map_batches(Texts, batch_size=256, **pool)
    if job in BLOBS:
        tar = job.endswith("_tar")
        files = (
            ray.data.read_webdataset(data, decoder=None)
            if tar
            else ray.data.read_binary_files(data, include_paths=True)
        )
        return files.map_batches(Files, fn_constructor_args=[job], batch_size=FILES_AT_ONCE[job], **pool)
    if job in ("taxi_mlp", "resume_after_kill", "two_models", "text_embedding"):
        rows = ray.data.read_parquet(data, columns=list(step_class(job).columns))
        size = 256 if job == "text_embedding" else 131_072
        return rows.map_batches(Rows, fn_constructor_args=[job], batch_size=size, **pool)
    if job == "waiting_rides":
        rows = ray.data.read_parquet(data, columns=list(Parity.columns))
        return rows.map_batches(Rows, fn_constructor_args=[job], batch_size=131_072, **pool)
    if job == "wide":
        rows = ray.data.read_parquet(data)
        return rows.map_batches(wide, batch_format="pyarrow", batch_size=None)
    rides = ray.data.read_parquet(data, columns=list(Parity.columns))
    return rides.map_batches(parity, batch_size=None)
