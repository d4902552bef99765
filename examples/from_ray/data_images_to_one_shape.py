# The calls are those of ray-project/ray, doc/source/data/working-with-images.rst.
import tempfile
from typing import Any

import numpy as np
import torch
from PIL import Image

from headrace.compat import ray

folder = tempfile.mkdtemp()
for i in range(4):
    Image.fromarray(np.full((20 + i, 16, 3), 60 * i, np.uint8)).save(f"{folder}/{i}.png")


def resize(row: dict[str, Any]) -> dict[str, Any]:
    image = torch.as_tensor(row["image"].copy()).permute(2, 0, 1).float() / 255
    row["image"] = torch.nn.functional.interpolate(image[None], (8, 8))[0]
    return row


class Classifier:
    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten())

    def __call__(self, batch):
        with torch.inference_mode():
            outputs = self.model(torch.from_numpy(batch["image"]))
        return {"class": (outputs.sum(dim=1) > 1).int()}


ds = ray.data.read_images(folder).map(resize)
predictions = ds.map_batches(Classifier, compute=ray.data.ActorPoolStrategy(size=2), batch_size=4)
assert [row["class"] for row in predictions.take_all()] == [0, 0, 1, 1]
ds.write_numpy(tempfile.mkdtemp(), column="image")
