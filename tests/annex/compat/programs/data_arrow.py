"""Tables of Arrow, several at once."""

import pyarrow as pa
import ray

table = pa.table({"x": pa.array([1, 2], pa.int32()), "l": [[1], [2, 3]]})
ds = ray.data.from_arrow([table, table])
print(ds.count(), ds.schema().types, ds.take(2))
print(next(iter(ds.iter_batches(batch_size=4, batch_format="pyarrow"))).to_pydict())
