"""Arrays in files."""

import tempfile

import numpy as np
import ray

folder = tempfile.mkdtemp()
ray.data.range_tensor(4, shape=(2,)).write_numpy(folder, column="data")
ds = ray.data.read_numpy(folder)
print(ds.columns(), ds.count(), sorted(row["data"].tolist() for row in ds.take_all()))
path = tempfile.mkdtemp() + "/x.npy"
np.save(path, np.arange(6, dtype=np.int16).reshape(3, 2))
print(ray.data.read_numpy(path).take_batch(2)["data"].dtype)
