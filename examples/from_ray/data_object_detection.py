# The calls are those of ray-project/ray, doc/source/data/examples/batch_inference_object_detection.ipynb.
import tempfile

import numpy as np
from PIL import Image

from headrace.compat import ray

folder = tempfile.mkdtemp()
for number in range(4):
    Image.new("RGB", (8, 8), (0, 60 * number, 0)).save(f"{folder}/{number}.jpg")


class Detector:
    def __call__(self, batch, factor=1):
        boxes = [np.array([[0, 0, 4, 4 * factor]] * (1 + index % 2)) for index in range(len(batch["image"]))]
        batch["boxes"] = np.array([*boxes, None], dtype=object)[:-1]
        batch["labels"] = [["cat"] * len(each) for each in boxes]
        return batch


ds = ray.data.read_images(folder, include_paths=True)
found = ds.map_batches(Detector, batch_size=2, compute=ray.data.ActorPoolStrategy(min_size=1, max_size=2))
rows = found.take_all()
assert sorted(len(row["boxes"]) for row in rows) == [1, 1, 2, 2]


def crop(row):
    return [{"crop": row["image"][: box[3], : box[2]], "path": row["path"]} for box in row["boxes"]]


assert found.flat_map(crop).count() == 6
