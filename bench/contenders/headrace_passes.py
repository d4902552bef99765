"""What ``bench.passes`` times: models over the taxi rides, several in one pass or one in each job."""

from __future__ import annotations

import os
from typing import Any

import headrace as hr

Batch = dict[str, Any]

RIDES = ["pickup_datetime", "fare_amount", "passenger_count"]
COORDINATES = ["pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude"]


class Linear:
    def __init__(self, seed: int) -> None:
        from bench.steps import Linear

        self.step = Linear(seed)

    def __call__(self, batch: Batch) -> Any:
        return self.step(batch)


class Mlp:
    def __init__(self, seed: int) -> None:
        from bench.steps import Mlp

        self.step = Mlp(seed=seed)

    def __call__(self, batch: Batch) -> Any:
        return self.step(batch)


KINDS: dict[str, Any] = {"linear": Linear, "mlp": Mlp}


def main(job: str, data: str, out: str) -> None:
    """`job` names models and their seeds: ``linear_0+mlp_1`` is one pass, ``linear_0,mlp_1`` two jobs."""
    for place, names in enumerate(job.split(",")):
        ds = predictions(data, names.split("+")).with_options(progress=False)
        ds.write_parquet(os.path.join(out, str(place)))


def predictions(data: str, names: list[str]) -> hr.Dataset:
    models = {name: model(*name.split("_")) for name in names}
    return hr.read_parquet(data).predict(models, inputs=COORDINATES, keep=RIDES, batch_size=131_072)


def model(kind: str, seed: str) -> dict[str, Any]:
    return {"model": KINDS[kind], "fn_constructor_kwargs": {"seed": int(seed)}}
