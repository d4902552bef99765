"""Headrace, by its public names only. Like the loop by hand, it imports numpy and torch in workers only."""

from __future__ import annotations

from typing import Any

import headrace as hr

Batch = dict[str, Any]

RIDES = ["pickup_datetime", "fare_amount", "passenger_count"]
COORDINATES = ["pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude"]
FILES_AT_ONCE = {"images": 16, "audio": 8, "small_images": 64, "small_images_tar": 64, "waiting_images": 64}


def parity(batch: Batch) -> Batch:
    from bench.steps import Parity, as_numpy

    return as_numpy(Parity(), batch)


def wide(table: Any) -> Any:
    from bench.steps import Wide, as_arrow

    return as_arrow(Wide(), table)


class Rows:
    """A step over rows of a table that has something to load."""

    def __init__(self, job: str) -> None:
        from bench.steps import as_numpy, step_class

        self.step, self.as_numpy = step_class(job)(), as_numpy

    def __call__(self, batch: Batch) -> Batch:
        return self.as_numpy(self.step, batch)


class Files:
    """A step over the bytes of files."""

    def __init__(self, job: str) -> None:
        from bench.steps import step_class

        self.step = step_class(job)()

    def __call__(self, batch: Batch) -> Batch:
        path = batch["path"] if "path" in batch else [f"{key}.jpg" for key in batch["__key__"]]
        return {"path": path, **self.step(batch["bytes" if "bytes" in batch else "jpg"])}


class Embedder:
    def __init__(self) -> None:
        from bench.workloads.texts import Embedder

        self.step = Embedder()

    def __call__(self, batch: Batch) -> Any:
        return self.step.vectors(batch["text"])


def chunks(row: Batch) -> list[Batch]:
    from bench.workloads.documents import chunk_rows

    return chunk_rows(row["path"], row["bytes"])


def main(job: str, data: str, out: str) -> None:
    predictions(job, data).with_options(progress=False).write_parquet(out)


def first_row(data: str) -> Batch:
    return predictions("taxi_mlp", data).with_options(progress=False).take(1)[0]


def predictions(job: str, data: str, **pool: int) -> hr.Dataset:
    if job == "documents":
        texts = hr.read_binary_files(data, include_paths=True).flat_map(chunks)
        return texts.predict(Embedder, inputs=["text"], output="prediction", batch_size=256)
    if job in FILES_AT_ONCE:
        tar = job.endswith("_tar")
        files = (
            hr.read_webdataset(data, decoder=None) if tar else hr.read_binary_files(data, include_paths=True)
        )
        return files.map_batches(Files, fn_constructor_args=[job], batch_size=FILES_AT_ONCE[job], **pool)
    rows = hr.read_parquet(data)
    if job == "text_embedding":
        return rows.predict(Embedder, inputs=["text"], output="prediction", keep=["id"], batch_size=256)
    if job in ("taxi_mlp", "two_models", "resume_after_kill"):
        names = [*RIDES, *COORDINATES]
        return rows.map_batches(Rows, fn_constructor_args=[job], columns=names, batch_size=131_072)
    if job == "waiting_rides":
        return rows.map_batches(Rows, fn_constructor_args=[job], columns=RIDES, batch_size=131_072, **pool)
    if job == "wide":
        return rows.map_batches(wide, batch_format="pyarrow", batch_size=65_536)
    return rows.map_batches(parity, columns=RIDES, batch_size=131_072)
