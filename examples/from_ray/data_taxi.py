# The calls are those of ray-project/ray, doc/source/data/examples/nyc_taxi_basic_processing.ipynb.
import tempfile

import pandas as pd

from headrace.compat import ray
from headrace.compat.ray.data.expressions import col

folder = tempfile.mkdtemp()
frame = pd.DataFrame({"trip_distance": [0.5, 2.0, 9.0, 4.0], "passenger_count": [1, 2, 1, 1]})
frame["pickup_at"] = pd.to_datetime("2010-01-01")
frame.to_parquet(f"{folder}/01.parquet")
frame.to_parquet(f"{folder}/02.parquet")

ds = ray.data.read_parquet([f"{folder}/01.parquet", f"{folder}/02.parquet"])
print(ds.schema(), ds.count(), ds.size_bytes(), ds.input_files())
assert ds.max("trip_distance") == 9.0
assert ds.std("trip_distance") > 0
long = ds.filter(expr=(col("trip_distance") > 1.0) & (col("passenger_count") == 1))
assert long.count() == 4


class Model:
    def __init__(self):
        self.model = lambda df: df["passenger_count"] < 2

    def __call__(self, df):
        return pd.DataFrame({"score": self.model(df)})


scored = ds.map_batches(
    Model, batch_size=3, batch_format="pandas", compute=ray.data.ActorPoolStrategy(size=2)
)
assert scored.filter(lambda row: bool(row["score"])).count() == 6
for row in ds.select_columns(["trip_distance"]).random_sample(0.9).iter_rows():
    assert row["trip_distance"] > 0
