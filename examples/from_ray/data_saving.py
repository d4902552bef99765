# The calls are those of ray-project/ray, doc/source/data/saving-data.rst.
import glob
import tempfile

from headrace.compat import ray
from headrace.compat.ray.data.datasource import FilenameProvider

folder = tempfile.mkdtemp()
ds = ray.data.from_items([{"n": n, "city": "Oslo" if n % 2 else "Bonn"} for n in range(20)])
ds.write_parquet(f"{folder}/parquet", min_rows_per_file=10)
ds.write_csv(f"{folder}/csv")
ds.write_json(f"{folder}/json")
ds.repartition(2).write_parquet(f"local://{folder}/two")
ds.write_parquet(f"{folder}/by_city", partition_cols=["city"])
assert len(glob.glob(f"{folder}/by_city/city=*/*.parquet")) == 2
ray.data.range(5).write_numpy(f"{folder}/numpy", column="id")
assert ray.data.read_numpy(f"{folder}/numpy").count() == 5


class Names(FilenameProvider):
    def get_filename_for_block(self, block, task_index, block_index):
        return f"mine-{task_index}-{block_index}.parquet"

    def get_filename_for_row(self, row, task_index, block_index, row_index):
        return f"row-{task_index}-{row_index}.png"


ds.write_parquet(f"{folder}/named", filename_provider=Names())
assert glob.glob(f"{folder}/named/*.parquet")
df = ds.to_pandas()
assert len(df) == 20
assert ray.data.read_parquet(f"{folder}/named").count() == 20
