# The calls are those of ray-project/ray, doc/source/data/custom-datasource-example.rst.
import io
import tempfile

import numpy as np
from PIL import Image

from headrace.compat import ray
from headrace.compat.ray.data.datasource import FileBasedDatasource

folder = tempfile.mkdtemp()
for number in range(3):
    Image.new("RGB", (5, 4), (number, 0, 0)).save(f"{folder}/{number}.png")
with open(f"{folder}/notes.txt", "w") as notes:
    notes.write("no image")


class ImageDatasource(FileBasedDatasource):
    def __init__(self, paths):
        super().__init__(paths, file_extensions=["png", "jpg"])

    def _read_stream(self, f, path):
        from headrace.compat.ray.data._internal.delegating_block_builder import DelegatingBlockBuilder

        image = Image.open(io.BytesIO(f.readall()))
        builder = DelegatingBlockBuilder()
        builder.add({"image": np.array(image)})
        yield builder.build()

    def _rows_per_file(self):
        return 1


ds = ray.data.read_datasource(ImageDatasource(folder))
assert ds.count() == 3
assert ds.take_batch(3)["image"].shape == (3, 4, 5, 3)
assert ds.map_batches(lambda batch: {"mean": batch["image"].mean((1, 2, 3))}).sum("mean") > 0
