"""Headrace, by its public names only. Like the loop by hand, it imports numpy and torch in workers only."""

from __future__ import annotations

from typing import Any

import headrace as hr

Batch = dict[str, Any]

RIDES = ["pickup_datetime", "fare_amount", "passenger_count"]
COORDINATES = ["pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude"]


def parity(batch: Batch) -> Batch:
    from bench.steps import Parity, as_numpy

    return as_numpy(Parity(), batch)


def wide(table: Any) -> Any:
    from bench.steps import Wide, as_arrow

    return as_arrow(Wide(), table)


class Mlps:
    def __init__(self) -> None:
        from bench.steps import Mlp, as_numpy

        self.step, self.as_numpy = Mlp(), as_numpy

    def __call__(self, batch: Batch) -> Batch:
        return self.as_numpy(self.step, batch)


class Classes:
    def __init__(self) -> None:
        from bench.steps import Resnet

        self.model = Resnet()

    def __call__(self, batch: Batch) -> Batch:
        labels, scores = self.model(batch["bytes"])
        return {"path": batch["path"], "label": labels, "prediction": scores}


def main(job: str, data: str, out: str) -> None:
    predictions(job, data).with_options(progress=False).write_parquet(out)


def predictions(job: str, data: str) -> hr.Dataset:
    if job == "images":
        return hr.read_binary_files(data, include_paths=True).map_batches(Classes, batch_size=16)
    rides = hr.read_parquet(data)
    if job == "taxi_mlp":
        return rides.map_batches(Mlps, columns=[*RIDES, *COORDINATES], batch_size=131_072)
    if job == "wide":
        return rides.map_batches(wide, batch_format="pyarrow", batch_size=65_536)
    return rides.map_batches(parity, columns=RIDES, batch_size=131_072)
