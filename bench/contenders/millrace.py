"""Millrace, by its public names only."""

from __future__ import annotations

from typing import Any

import millrace as mr
from bench.steps import Mlp, Parity, Resnet, Wide, as_arrow, as_numpy

Batch = dict[str, Any]


def parity(batch: Batch) -> Batch:
    return as_numpy(Parity(), batch)


def wide(table: Any) -> Any:
    return as_arrow(Wide(), table)


class Mlps:
    def __init__(self) -> None:
        self.step = Mlp()

    def __call__(self, batch: Batch) -> Batch:
        return as_numpy(self.step, batch)


class Classes:
    def __init__(self) -> None:
        self.model = Resnet()

    def __call__(self, batch: Batch) -> Batch:
        labels, scores = self.model(batch["bytes"])
        return {"path": batch["path"], "label": labels, "prediction": scores}


def main(job: str, data: str, out: str) -> None:
    predictions(job, data).with_options(progress=False).write_parquet(out)


def predictions(job: str, data: str) -> mr.Dataset:
    if job == "images":
        return mr.read_binary_files(data, include_paths=True).map_batches(
            Classes, batch_size=Resnet.batch_size
        )
    rides = mr.read_parquet(data)
    if job == "taxi_mlp":
        return rides.map_batches(Mlps, columns=list(Mlp.columns), batch_size=131_072)
    if job == "wide":
        return rides.map_batches(wide, columns=list(Wide.columns), batch_format="pyarrow", batch_size=65_536)
    return rides.map_batches(parity, columns=list(Parity.columns), batch_size=131_072)
