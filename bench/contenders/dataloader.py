"""A torch DataLoader: it decodes in a process of its own, the model has both cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor, from_numpy
from torch.utils.data import DataLoader, Dataset

from bench.steps import Resnet, arrow_column, decode, outputs_of, step_class


class Images(Dataset[tuple[str, Tensor]]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, Tensor]:
        path = self.paths[index]
        return str(path), from_numpy(decode(path.read_bytes()).copy())


class Contents(Images):
    """Files as bytes: what is decoded in the step."""

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        return str(path), path.read_bytes()


class Texts(Dataset[Any]):
    def __init__(self, data: str) -> None:
        self.rows = pq.read_table(data).to_pylist()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]["id"], self.rows[index]["text"]


def main(job: str, data: str, out: str) -> None:
    os.makedirs(out)
    paths = [] if job == "text_embedding" else sorted(Path(data).iterdir())
    key, kinds = "path", outputs_of(step_class(job))
    if job == "images":
        loader: Any = DataLoader(Images(paths), batch_size=32, num_workers=1)
        model = Resnet(threads=2)

        def step(pixels: Any) -> dict[str, Any]:
            return dict(zip(("label", "prediction"), model.predict(pixels.numpy()), strict=True))
    elif job == "text_embedding":
        key = "id"
        loader = DataLoader(Texts(data), batch_size=256, collate_fn=columns)
        embedder = step_class(job)(threads=2)

        def step(texts: Any) -> dict[str, Any]:
            return embedder({"text": texts})
    else:
        loader = DataLoader(Contents(paths), batch_size=16, num_workers=1, collate_fn=columns)
        step = step_class(job)(threads=2)
    found = []
    for keys, inputs in loader:
        made = step(inputs)
        arrays = [arrow_column(made[name], kind) for name, kind in kinds.items()]
        found.append(pa.table([pa.array(list(keys)), *arrays], names=[key, *kinds]))
    pq.write_table(pa.concat_tables(found), os.path.join(out, "part-0.parquet"))


def columns(rows: list[Any]) -> Any:
    return tuple(map(list, zip(*rows, strict=True)))
