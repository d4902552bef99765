# The calls are those of ray-project/ray, doc/source/data/api/from_other_data_libs.rst.
import numpy as np
import pandas as pd
import pyarrow as pa

from headrace.compat import ray

frames = ray.data.from_pandas_refs([ray.put(pd.DataFrame({"a": [1]})), ray.put(pd.DataFrame({"a": [2]}))])
assert frames.sum("a") == 3
tables = ray.data.from_arrow_refs(ray.put(pa.table({"a": [4]})))
assert tables.take_all() == [{"a": 4}]
assert ray.data.from_numpy_refs([ray.put(np.ones(3))]).count() == 3
ds = ray.data.range(6)
assert sum(len(frame) for frame in ray.get(ds.to_pandas_refs())) == 6
assert sum(table.num_rows for table in ray.get(ds.to_arrow_refs())) == 6
assert sum(len(array["id"]) for array in ray.get(ds.to_numpy_refs())) == 6
assert sum(len(block) for block in ray.get(ds.get_internal_block_refs())) == 6
