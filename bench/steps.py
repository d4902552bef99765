"""The inference code, the same for every contender: what a user would bring along.

A step is a class that is constructed once per worker. `inputs` are the columns that the model
reads, `carried` those that are written beside its prediction, `columns` what must be read for
both. It is called with numpy arrays, one per input, and returns one prediction per row.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

COORDINATES = ("pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude")
MIDDLE = (-73.98, 40.75, -73.98, 40.75)
FLOATS = tuple(f"f{i:03d}" for i in range(200))
STRINGS = ("city", "segment", "user", "comment")


class Parity:
    """As little work as a model can do: what remains is the engine."""

    inputs: ClassVar[tuple[str, ...]] = ("passenger_count",)
    carried: ClassVar[tuple[str, ...]] = ("pickup_datetime", "fare_amount", "passenger_count")
    columns: ClassVar[tuple[str, ...]] = carried
    dtype: ClassVar[str] = "int64"

    def __call__(self, batch: Mapping[str, Array]) -> Array:
        result: Array = batch["passenger_count"] % 2
        return result


class Wide:
    """Reads 2 columns of 204 and carries them all."""

    inputs: ClassVar[tuple[str, ...]] = ("f003", "f141")
    carried: ClassVar[tuple[str, ...]] = (*FLOATS, *STRINGS)
    columns: ClassVar[tuple[str, ...]] = carried
    dtype: ClassVar[str] = "float32"

    def __call__(self, batch: Mapping[str, Array]) -> Array:
        result: Array = np.tanh(batch["f003"] + np.float32(0.5) * batch["f141"])
        return result


class Linear:
    """A weighted sum of four floats, with random weights."""

    inputs: ClassVar[tuple[str, ...]] = COORDINATES

    def __init__(self, seed: int = 0) -> None:
        self.weights = np.random.default_rng(seed).standard_normal(len(self.inputs))

    def __call__(self, batch: Mapping[str, Array]) -> Array:
        terms = zip(COORDINATES, MIDDLE, self.weights, strict=True)
        result: Array = sum((batch[name] - middle) * weight for name, middle, weight in terms)
        return result.astype(np.float32)


class Mlp:
    """A small network over four floats, with random weights."""

    inputs: ClassVar[tuple[str, ...]] = COORDINATES
    carried: ClassVar[tuple[str, ...]] = Parity.carried
    columns: ClassVar[tuple[str, ...]] = (*carried, *COORDINATES)
    dtype: ClassVar[str] = "float32"
    rows = 4096  # per forward pass: the activations stay in the core's cache

    def __init__(self, threads: int = 1, seed: int = 0) -> None:
        import torch
        from torch import nn

        from bench.networks import seeded

        torch.set_num_threads(threads)
        self.torch = torch
        layers = (nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.net = seeded(nn.Sequential(*layers), seed)
        self.mean = np.array(MIDDLE)

    def __call__(self, batch: Mapping[str, Array]) -> Array:
        n = len(batch[COORDINATES[0]])
        features = np.empty((n, 4), np.float32)
        for i, name in enumerate(COORDINATES):
            np.subtract(batch[name], self.mean[i], out=features[:, i], casting="same_kind")
        result = np.empty(n, np.float32)
        source, target = self.torch.from_numpy(features), self.torch.from_numpy(result)
        with self.torch.inference_mode():
            for start in range(0, n, self.rows):
                stop = start + self.rows
                target[start:stop] = self.net(source[start:stop]).squeeze(1)
        return result


class TwoModels:
    """The network and the weighted sum in one pass: two columns come out."""

    inputs: ClassVar[tuple[str, ...]] = COORDINATES
    carried: ClassVar[tuple[str, ...]] = Parity.carried
    columns: ClassVar[tuple[str, ...]] = Mlp.columns
    outputs: ClassVar[dict[str, str]] = {"prediction": "float32", "linear": "float32"}

    def __init__(self) -> None:
        self.mlp, self.linear = Mlp(), Linear()

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        return {"prediction": self.mlp(batch), "linear": self.linear(batch)}


class Resnet:
    """JPEG bytes → the best class and its logit. Not a table step: it makes two columns."""

    batch_size: ClassVar[int] = 16
    outputs: ClassVar[dict[str, str]] = {"label": "int64", "prediction": "float32"}

    def __init__(self, threads: int = 1) -> None:
        import torch

        from bench.networks import ResNet18, seeded

        torch.set_num_threads(threads)
        self.torch = torch
        self.net = seeded(ResNet18()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __call__(self, images: Iterable[Any]) -> dict[str, Array]:
        """`images` holds JPEG files as bytes."""
        labels, scores = self.predict(np.stack([decode(image) for image in images]))
        return {"label": labels, "prediction": scores}

    def predict(self, pixels: Array) -> tuple[Array, Array]:
        """`pixels` is (n, 224, 224, 3), uint8."""
        with self.torch.inference_mode():
            scores, labels = self.net(self.torch.from_numpy(pixels)).max(1)
        return labels.numpy(), scores.numpy()


def decode(jpeg: Any) -> Array:
    """One JPEG as (224, 224, 3) uint8. Draft mode lets libjpeg scale while it decodes."""
    from PIL import Image

    with Image.open(io.BytesIO(jpeg)) as image:
        image.draft("RGB", (224, 224))
        pixels = image.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
    return np.asarray(pixels)


# What a job runs. Rows of a table: with `inputs`, `carried` and `columns` as above. Or the bytes of files, some at a
# time.
TABLES = {
    "tiny": "bench.steps:Parity",
    "taxi_parity": "bench.steps:Parity",
    "taxi_mlp": "bench.steps:Mlp",
    "wide": "bench.steps:Wide",
    "many_small_files": "bench.steps:Parity",
    "few_large_files": "bench.steps:Parity",
    "two_models": "bench.steps:TwoModels",
    "text_embedding": "bench.workloads.texts:Embedder",
    "resume_after_kill": "bench.steps:Mlp",
    "notebook_first_row": "bench.steps:Mlp",
    "waiting_rides": "bench.workloads.waiting:Rides",
}
BLOBS = {
    "images": "bench.steps:Resnet",
    "small_images": "bench.workloads.thumbnails:Brightness",
    "small_images_tar": "bench.workloads.thumbnails:Brightness",
    "audio": "bench.workloads.audio:Audio",
    "waiting_images": "bench.workloads.waiting:Images",
}


def step_class(job: str) -> Any:
    """The class of a job's step."""
    module, _, name = (TABLES.get(job) or BLOBS[job]).partition(":")
    return getattr(importlib.import_module(module), name)


def outputs_of(step: Any) -> dict[str, str]:
    """The columns that a step adds, and their types."""
    return getattr(step, "outputs", None) or {"prediction": step.dtype}


def results(step: Any, batch: Any) -> dict[str, Array]:
    """What a step makes of a batch, by the names of its columns."""
    found = step(batch)
    return found if isinstance(found, dict) else {"prediction": found}


def as_numpy(step: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
    """What a step makes of a batch of numpy columns: those it carries, and its predictions."""
    return {**{name: batch[name] for name in step.carried}, **results(step, batch)}


def as_lists(found: Mapping[str, Array]) -> dict[str, Any]:
    """The same for engines that take a matrix for something else than a vector in each row."""
    return {name: list(each) if getattr(each, "ndim", 1) > 1 else each for name, each in found.items()}


def as_arrow(step: Any, batch: Any) -> Any:
    """The same for a RecordBatch or a Table, without a copy of what is carried.

    `to_numpy` and `pa.array` would import pandas where it is installed, which costs more than a
    small job; DLPack and `from_buffers` do not.
    """
    import pyarrow as pa

    def view(name: str) -> Any:
        column = batch[name]
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        return column.to_pylist() if pa.types.is_string(column.type) else np.from_dlpack(column)

    made = batch.select(list(step.carried))
    found = results(step, {name: view(name) for name in step.inputs})
    for name, kind in outputs_of(step).items():
        made = made.append_column(name, arrow_column(found[name], kind))
    return made


def arrow_type(kind: str) -> Any:
    import pyarrow as pa

    return pa.list_(pa.float32()) if kind == "list<float32>" else pa.type_for_alias(kind)


def arrow_column(values: Array, kind: str) -> Any:
    """An array's memory as a column; a matrix is a vector for each row."""
    import pyarrow as pa

    if kind == "list<float32>":
        rows, width = values.shape
        offsets = pa.py_buffer(np.arange(0, (rows + 1) * width, width, np.int32))
        inner = arrow_column(np.ascontiguousarray(values, np.float32).reshape(-1), "float32")
        return pa.ListArray.from_arrays(pa.Array.from_buffers(pa.int32(), rows + 1, [None, offsets]), inner)
    return pa.Array.from_buffers(pa.type_for_alias(kind), len(values), [None, pa.py_buffer(values)])
