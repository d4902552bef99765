"""Writing where something is."""

import tempfile

import ray

folder = tempfile.mkdtemp() + "/out"
ray.data.range(3).write_parquet(folder)
ray.data.range(5).write_parquet(folder, mode="ignore")
print(ray.data.read_parquet(folder).count())
try:
    ray.data.range(5).write_parquet(folder, mode="error")
except Exception:
    print("refused")
ray.data.range(7).write_parquet(folder, mode="overwrite")
print(ray.data.read_parquet(folder).count())
