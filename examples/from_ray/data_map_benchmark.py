# The calls are those of ray-project/ray, release/nightly_tests/dataset/map_benchmark.py.
import functools
import tempfile

import numpy
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from headrace.compat import ray

folder = tempfile.mkdtemp()
pd.DataFrame({"column00": range(1000), "column01": 2.0}).to_parquet(f"{folder}/part.parquet")


def increment(batch, add=0):
    if isinstance(batch, (dict, pd.DataFrame)):
        batch["column00"] = batch["column00"] + add
    else:
        assert isinstance(batch, pa.Table)
        place = batch.column_names.index("column00")
        batch = batch.set_column(place, "column00", pc.add(batch["column00"], add))
    return batch


class Increment:
    def __init__(self, model_ref, add=0):
        self.model = ray.get(model_ref)
        self.add = add

    def __call__(self, batch):
        return increment(batch, self.add + len(self.model))


def row_up(row):
    row["column00"] += 1
    return row


model_ref = ray.put(numpy.zeros(1000, dtype=numpy.int8))
for batch_format in ("numpy", "pandas", "pyarrow"):
    ds = ray.data.read_parquet([folder] * 2)
    ds = ds.map_batches(functools.partial(increment, add=1), batch_format=batch_format, batch_size=100)
    ds = ds.map_batches(
        Increment,
        fn_constructor_args=[model_ref, 1],
        batch_format=batch_format,
        batch_size=100,
        concurrency=(1, 16),
    )
    ds = ds.map_batches(lambda batch: {"num_rows": [len(batch["column00"])]})
    for _ in ds.iter_internal_ref_bundles():
        pass
assert ray.data.read_parquet(folder).map(row_up).flat_map(lambda row: [row_up(row)]).min("column00") == 2
