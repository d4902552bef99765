"""Images as arrays, in a size and mode, written and read again."""

import tempfile
from pathlib import Path

import numpy as np
import ray
from PIL import Image

folder = Path(tempfile.mkdtemp())
for i in range(2):
    Image.fromarray(np.full((4, 6, 3), i * 9, dtype=np.uint8)).save(folder / f"{i}.png")
ds = ray.data.read_images(str(folder), mode="RGB")
print(
    ds.columns(), [(row["image"].shape, row["image"].dtype, int(row["image"].max())) for row in ds.take_all()]
)
print([row["image"].shape for row in ray.data.read_images(str(folder), size=(2, 3), mode="L").take_all()])
named = ray.data.read_images(str(folder), include_paths=True, mode="RGB").take_all()
print([Path(row["path"]).name for row in named])
out = tempfile.mkdtemp()
ds.write_images(out, column="image")
print(len(list(Path(out).glob("*.png"))), ray.data.read_images(out, mode="RGB").count())
