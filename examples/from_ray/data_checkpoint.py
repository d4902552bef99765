# The calls are those of ray-project/ray, release/nightly_tests/dataset/checkpoint_benchmark.py.
import tempfile

import numpy
import pandas as pd

from headrace.compat import ray
from headrace.compat.ray.data import DataContext
from headrace.compat.ray.data.checkpoint import CheckpointBackend, CheckpointConfig

folder = tempfile.mkdtemp()
pd.DataFrame({"id": range(100), "data": 1.0}).to_parquet(f"{folder}/in.parquet")
ctx = DataContext.get_current()
ctx.checkpoint_config = CheckpointConfig(
    id_column="id",
    checkpoint_path=f"{folder}/checkpoints",
    override_backend=CheckpointBackend.FILE_STORAGE,
    delete_checkpoint_on_success=False,
)


class Inference:
    def __call__(self, batch):
        batch["inference"] = numpy.random.random((len(batch["data"]), 4))
        del batch["data"]
        return batch


ds = ray.data.read_parquet(f"{folder}/in.parquet", ray_remote_args={"memory": 1 << 20})
assert ds.count() == 100
ds = ds.map_batches(Inference, batch_size=10, concurrency=2)
ds.write_parquet(f"{folder}/out", min_rows_per_file=50)
ds.write_parquet(f"{folder}/out", min_rows_per_file=50)
assert ray.data.read_parquet(f"{folder}/out").count() == 100
ctx.checkpoint_config = None
