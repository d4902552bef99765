"""A torch DataLoader: it decodes in a process of its own, the model has both cores."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor, from_numpy
from torch.utils.data import DataLoader, Dataset

from bench.steps import Resnet, decode


class Images(Dataset[tuple[str, Tensor]]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, Tensor]:
        path = self.paths[index]
        return str(path), from_numpy(decode(path.read_bytes()).copy())


def main(job: str, data: str, out: str) -> None:
    os.makedirs(out)
    images = Images(sorted(Path(data).iterdir()))
    loader = DataLoader(images, batch_size=32, num_workers=1)
    model = Resnet(threads=2)
    found: dict[str, list[object]] = {"path": [], "label": [], "prediction": []}
    for paths, pixels in loader:
        labels, scores = model.predict(pixels.numpy())
        found["path"] += paths
        found["label"] += labels.tolist()
        found["prediction"] += scores.tolist()
    schema = pa.schema({"path": pa.string(), "label": pa.int64(), "prediction": pa.float32()})
    pq.write_table(pa.table(found, schema=schema), os.path.join(out, "part-0.parquet"))
