# The calls are those of ray-project/ray, doc/source/data/examples/pytorch_resnet_batch_prediction.ipynb.
import os
import tempfile

import numpy as np
import torch
from PIL import Image

from headrace.compat import ray

folder = tempfile.mkdtemp()
for number in range(6):
    Image.new("RGB", (12, 10), (40 * number, 0, 0)).save(f"{folder}/{number}.jpeg")

ds = ray.data.read_images(folder, mode="RGB")
print(ds.schema())
single = ds.take_batch(batch_size=1)
assert single["image"].shape == (1, 10, 12, 3)


def preprocess(row):
    return {"original": row["image"], "transformed": row["image"].astype(np.float32).transpose(2, 0, 1) / 255}


class Classifier:
    def __init__(self):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(5)).to(self.device)

    def __call__(self, batch):
        images = torch.from_numpy(np.stack(list(batch["transformed"]))).to(self.device)
        with torch.inference_mode():
            scores = self.model(images)
        return {
            "predicted": scores.argmax(dim=1).cpu().numpy(),
            "original": batch["original"],
        }


predictions = ds.map(preprocess).map_batches(
    Classifier, compute=ray.data.ActorPoolStrategy(size=2), batch_size=3
)
assert len(predictions.take_batch(5)["predicted"]) == 5
out = os.path.join(tempfile.mkdtemp(), "out")
predictions.drop_columns(["original"]).write_parquet(f"local://{out}")
assert ray.data.read_parquet(out).count() == 6
