"""Headrace with ``predict``: models get their inputs and nothing else, what is carried stays as it is stored."""

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


class Linear:
    def __init__(self) -> None:
        from bench.steps import Linear

        self.step = Linear()

    def __call__(self, batch: Batch) -> Any:
        return self.step(batch)


def main(job: str, data: str, out: str) -> None:
    predictions(job, data).with_options(progress=False).write_parquet(out)


def first_row(data: str) -> Batch:
    return predictions("taxi_mlp", data).with_options(progress=False).take(1)[0]


def predictions(job: str, data: str) -> hr.Dataset:
    rows = hr.read_parquet(data)
    if job == "wide":
        return rows.predict(Wide, inputs=["f003", "f141"], output="prediction", batch_size=65_536)
    if job == "two_models":
        models = {"prediction": Mlp, "linear": Linear}
        return rows.predict(models, inputs=COORDINATES, keep=RIDES, batch_size=131_072)
    if job in ("taxi_mlp", "resume_after_kill"):
        return rows.predict(Mlp, inputs=COORDINATES, output="prediction", keep=RIDES, batch_size=131_072)
    inputs = ["passenger_count"]
    return rows.predict(Parity, inputs=inputs, output="prediction", keep=RIDES, batch_size=131_072)
