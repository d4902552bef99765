"""Arrow tables as batches."""

import pyarrow as pa
import pyarrow.compute as pc
import ray

ds = ray.data.from_arrow(pa.table({"x": [1, 2, None], "s": ["a", "b", "c"]}))
print(ds.map_batches(lambda table: table.filter(pc.is_valid(table["x"])), batch_format="pyarrow").take_all())
doubled = ds.map_batches(
    lambda table: table.append_column("twice", pc.multiply(table["x"], 2)), batch_format="pyarrow"
)
print(doubled.take_all())
print(doubled.schema().names, doubled.schema().types)
print(ds.map_batches(lambda table: table.slice(0, 1), batch_format="pyarrow", batch_size=1).count())
