# The calls are those of ray-project/ray, doc/source/data/inspecting-data.rst.
import numpy as np

from headrace.compat import ray

ds = ray.data.from_items([{"a": n, "b": float(n)} for n in range(8)])
print(ds)
print(ds.schema())
assert ds.schema().names == ["a", "b"] and ds.columns() == ["a", "b"]
assert ds.take(limit=1) == [{"a": 0, "b": 0.0}]
assert isinstance(ds.take_batch(batch_size=2, batch_format="numpy")["a"], np.ndarray)
assert len(ds.take_batch(batch_size=2, batch_format="pandas")) == 2
done = ds.map(lambda row: row).materialize()
print(done.stats())
assert done.num_blocks() >= 1 and done.size_bytes() > 0 and done.input_files() == []
assert done.count() == 8
done.show(2)
