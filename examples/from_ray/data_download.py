# The calls are those of ray-project/ray, multimodal_inference_benchmarks/image_classification/ray_data_main.py.
import io
import tempfile

import numpy as np
import pandas as pd
from PIL import Image

from headrace.compat import ray
from headrace.compat.ray.data.expressions import download

folder = tempfile.mkdtemp()
for number in range(6):
    Image.new("RGB", (4, 4), (number, 0, 0)).save(f"{folder}/{number}.png")
pd.DataFrame({"image_url": [f"{folder}/{number}.png" for number in range(6)]}).to_parquet(
    f"{folder}/metadata.parquet"
)

ray.init()


@ray.remote
def warmup():
    pass


ray.get([warmup.remote() for _ in range(16)])


def decode(row):
    row["image"] = np.array(Image.open(io.BytesIO(row["bytes"])).convert("RGB"))
    del row["bytes"]
    return row


class Labels:
    def __call__(self, batch):
        batch["label"] = [f"class {int(image[0, 0, 0])}" for image in batch["image"]]
        return batch


ds = (
    ray.data.read_parquet(f"{folder}/metadata.parquet")
    .limit(5)
    .with_column("bytes", download("image_url"))
    .map(fn=decode)
    .map_batches(fn=Labels, batch_size=2, concurrency=2)
    .select_columns(["image_url", "label"])
)
ds.write_parquet(f"{folder}/out")
assert sorted(row["label"] for row in ray.data.read_parquet(f"{folder}/out").take_all()) == [
    f"class {number}" for number in range(5)
]
