# The calls are those of ray-project/ray, doc/source/data/saving-data.rst.
import tempfile

from headrace.compat import ray

folder = tempfile.mkdtemp()
for first in (0, 10):
    ds = ray.data.from_items([{"n": first + n} for n in range(10)])
    ds.write_parquet(f"{folder}/out")
assert sorted(row["n"] for row in ray.data.read_parquet(f"{folder}/out").take_all()) == list(range(20))
for shard in range(3):
    rows = ray.data.range(4).map(lambda row, shard=shard: {"x": 10 * shard + row["id"]})
    rows.write_csv(f"{folder}/csv")
assert ray.data.read_csv(f"{folder}/csv").count() == 12
