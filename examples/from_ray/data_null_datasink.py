# The calls are those of ray-project/ray, release/nightly_tests/dataset/heterogeneous_memory_batch_inference.py.
import numpy as np

from headrace.compat import ray
from headrace.compat.ray.data import DataContext
from headrace.compat.ray.data._internal.execution.interfaces import TaskContext
from headrace.compat.ray.data.datasource import Datasink


class NullDatasink(Datasink):
    def write(self, blocks, ctx: TaskContext):
        for _ in blocks:
            pass


def make(batch):
    batch["data"] = [np.random.rand(100) for _ in range(len(batch["id"]))]
    return batch


def process(batch):
    batch["processed"] = [1] * len(batch["data"])
    return batch


class Inference:
    def __call__(self, batch):
        batch["prediction"] = list(range(len(batch["data"])))
        return batch


DataContext.get_current().default_map_logical_memory_enabled = True
ray.data.DataContext.get_current().execution_options.label_selector = None
ds = ray.data.range(500)
ds = ds.map_batches(make, batch_size=100, memory=1 << 20)
ds = ds.map_batches(process, batch_size=100, memory=1 << 20)
ds = ds.map_batches(Inference, batch_size=64, num_cpus=0, concurrency=2)
ds.write_datasink(NullDatasink())
assert "500 rows" in ds.stats()
