"""Headrace with workers of their own for decoding and for the network; `images` only.

On n cores that they share, n workers for the network keep the cores busy; the one that decodes is seldom at work.
"""

from __future__ import annotations

import os
from typing import Any

import headrace as hr

Batch = dict[str, Any]


def decoded(batch: Batch) -> Batch:
    import numpy as np

    from bench.steps import decode

    return {"path": batch["path"], "pixels": np.stack([decode(image) for image in batch["bytes"]])}


class Classes:
    def __init__(self) -> None:
        from bench.steps import Resnet

        self.model = Resnet()

    def __call__(self, batch: Batch) -> Batch:
        labels, scores = self.model.predict(batch["pixels"])
        return {"path": batch["path"], "label": labels, "prediction": scores}


def main(job: str, data: str, out: str) -> None:
    predictions(job, data).with_options(progress=False).write_parquet(out)


def predictions(job: str, data: str) -> hr.Dataset:
    files = hr.read_binary_files(data, include_paths=True)
    images = files.map_batches(decoded, batch_size=16, num_cpus=1, concurrency=1)
    return images.map_batches(Classes, batch_size=16, num_cpus=1, concurrency=os.cpu_count())
