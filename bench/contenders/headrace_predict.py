"""Headrace with ``predict``: models get their inputs and nothing else, what is carried stays in Arrow."""

from __future__ import annotations

from typing import Any

import headrace as hr

Batch = dict[str, Any]

RIDES = ["pickup_datetime", "fare_amount", "passenger_count"]
COORDINATES = ["pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude"]


class Wide:
    def __init__(self) -> None:
        from bench.steps import Wide

        self.step = Wide()

    def __call__(self, batch: Batch) -> Any:
        return self.step(batch)


class Parity:
    def __call__(self, batch: Batch) -> Any:
        return batch["passenger_count"] % 2


class Mlp:
    def __init__(self) -> None:
        from bench.steps import Mlp

        self.step = Mlp()

    def __call__(self, batch: Batch) -> Any:
        return self.step(batch)


def main(job: str, data: str, out: str) -> None:
    predictions(job, data).with_options(progress=False).write_parquet(out)


def predictions(job: str, data: str) -> hr.Dataset:
    rows = hr.read_parquet(data)
    if job == "wide":
        return rows.predict(Wide, inputs=["f003", "f141"], output="prediction", batch_size=65_536)
    if job == "taxi_parity":
        inputs = ["passenger_count"]
        return rows.predict(Parity, inputs=inputs, output="prediction", keep=RIDES, batch_size=131_072)
    return rows.predict(Mlp, inputs=COORDINATES, output="prediction", keep=RIDES, batch_size=131_072)
