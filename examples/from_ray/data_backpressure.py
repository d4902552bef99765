# The calls are those of ray-project/ray, release/nightly_tests/dataset/backpressure_benchmark.py.
import functools

import numpy as np
import pyarrow as pa

from headrace.compat import ray


def produce(batch, *, batches, rows):
    for _ in range(batches):
        yield {"data": np.zeros((rows, 16), dtype=np.uint8)}


def consume(batch, *, status):
    return {"status": [status]}


inputs = [pa.Table.from_pydict({"id": [number]}) for number in range(8)]
ds = (
    ray.data.from_blocks(inputs)
    .map_batches(functools.partial(produce, batches=2, rows=5))
    .map_batches(functools.partial(consume, status="ok"), compute=ray.data.TaskPoolStrategy(size=1))
)
bundles = 0
for bundle in ds.iter_internal_ref_bundles():
    bundles += bundle.num_rows()
assert bundles >= 1
