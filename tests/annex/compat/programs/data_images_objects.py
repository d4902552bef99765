"""Images of Pillow between steps."""

import numpy as np
import ray
from PIL import Image


def draw(row):
    return {"id": row["id"], "image": Image.new("RGB", (4, 2), (int(row["id"]), 0, 0))}


def measure(row):
    array = np.asarray(row["image"])
    return {"id": row["id"], "shape": list(array.shape), "red": int(array[0, 0, 0])}


ds = ray.data.range(3, override_num_blocks=1)
print(ds.map(draw).map(measure).take_all())
print(
    ds.map(draw).map(lambda row: {"small": np.asarray(row["image"].resize((2, 1)))}).take(1)[0]["small"].shape
)
