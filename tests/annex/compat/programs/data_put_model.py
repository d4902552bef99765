"""Batch inference as Ray's benchmarks do it: the model is put, and each worker fetches it."""

import os
import tempfile

import numpy as np
import ray
import torch
from PIL import Image
from ray.data import ActorPoolStrategy, DataContext, SaveMode

folder = tempfile.mkdtemp()
for number in range(6):
    Image.fromarray(np.full((8, 8, 3), number * 10, np.uint8)).save(os.path.join(folder, f"{number}.png"))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, 2))
model_ref = ray.put(model)
scale_ref = ray.put(np.full(70_000, 0.5, np.float32))
labels = ray.put(["dark", "light"])
DataContext.get_current().enable_fallback_to_arrow_object_ext_type = True


def patches(row):
    for x in (0, 4):
        for y in (0, 4):
            yield {"x": x, "y": y, "patch": row["image"][x : x + 4, y : y + 4]}


class Preprocess:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, batch):
        scale = ray.get(scale_ref)[0]
        batch["patch"] = batch["patch"].astype(np.float32) / 255 * scale * self.factor
        return batch


class Embed:
    def __init__(self, model, device, names=None):
        self.model = ray.get(model).eval().to(device)
        self.names = ray.get(names)

    def __call__(self, batch, bias=None):
        with torch.inference_mode():
            found = self.model(torch.as_tensor(batch.pop("patch")).permute(0, 3, 1, 2)).numpy()
        batch["embedding"] = found + ray.get(bias)
        batch["kind"] = [self.names[int(len(self.names) * 0.9)] for _ in found]
        return batch


ds = (
    ray.data.read_images(folder, size=(8, 8))
    .filter(lambda row: row["image"].size != 0)
    .flat_map(lambda row: list(patches(row)))
    .map_batches(Preprocess, fn_constructor_args=(2.0,), concurrency=1)
    .map_batches(
        Embed,
        batch_size=7,
        compute=ActorPoolStrategy(size=1),
        fn_constructor_args=(model_ref, "cpu"),
        fn_constructor_kwargs={"names": labels},
        fn_kwargs={"bias": ray.put(np.float32(1))},
    )
)
out = os.path.join(tempfile.mkdtemp(), "out")
ds.write_parquet(out, mode=SaveMode.APPEND)
back = ray.data.read_parquet(out)
rows = sorted(back.take_all(), key=lambda row: (float(row["embedding"][0]), row["x"], row["y"]))
print(len(rows), sorted(rows[0]), {row["kind"] for row in rows})
with torch.inference_mode():
    images = torch.stack([torch.full((3, 4, 4), number * 10 / 255) for number in range(6)])
    wanted = sorted(float(value) + 1 for value in model(images)[:, 0])
print(np.allclose(sorted({round(float(row["embedding"][0]), 5) for row in rows}), wanted, atol=1e-4))
print(sum(len(batch["kind"]) for batch in ds.iter_batches(batch_size=None, batch_format="pandas")))


def later(batch):
    return {"n": [ray.get(total) + len(ray.get(ray.get(box)[0]))] * len(batch["id"])}


@ray.remote
def add(a, b):
    return a + b


total = add.remote(1, 2)
box = ray.put([labels])
print(ray.data.range(2).map_batches(later).take_all())
