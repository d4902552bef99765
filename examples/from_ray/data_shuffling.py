# The calls are those of ray-project/ray, doc/source/data/shuffling-data.rst.
import tempfile

import pandas as pd

from headrace.compat import ray
from headrace.compat.ray.data import FileShuffleConfig

folder = tempfile.mkdtemp()
for number in range(4):
    pd.DataFrame({"n": range(10 * number, 10 * number + 10)}).to_parquet(f"{folder}/{number}.parquet")
ds = ray.data.read_parquet(folder, shuffle="files")
assert sorted(row["n"] for row in ds.take_all()) == list(range(40))
seeded = [
    [row["n"] for row in ray.data.read_parquet(folder, shuffle=FileShuffleConfig(seed=3)).take_all()]
    for _ in range(2)
]
assert seeded[0] == seeded[1]
mixed = [row["n"] for row in ray.data.read_parquet(folder).random_shuffle(seed=1).take_all()]
assert sorted(mixed) == list(range(40)) and mixed != list(range(40))
blocks = ray.data.read_parquet(folder).randomize_block_order(seed=2)
assert blocks.sum("n") == sum(range(40))
for batch in ds.iter_batches(batch_size=8, local_shuffle_buffer_size=16):
    assert len(batch["n"]) == 8
