"""Functions with a number of tasks, in each verb."""

import ray

ds = ray.data.range(6, override_num_blocks=2)
print(ds.map(lambda row: {"x": row["id"] + 1}, concurrency=2).sum("x"))
print(
    ds.flat_map(lambda row: [row, row], concurrency=1).count(),
    ds.filter(lambda row: row["id"] > 3, concurrency=2).count(),
)
print(ds.map_batches(lambda batch: batch, concurrency=1, num_cpus=0.5).count())
print(ds.map_batches(lambda batch: batch, compute=ray.data.TaskPoolStrategy(2)).count())
