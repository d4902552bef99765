"""Dates and categories of pandas."""

import pandas as pd
import ray

frame = pd.DataFrame(
    {"day": pd.to_datetime(["2024-01-01", "2024-02-01"]), "kind": pd.Categorical(["a", "b"]), "n": [1, 2]}
)
ds = ray.data.from_pandas(frame)
print([str(value) for value in ds.to_pandas()["day"]], ds.to_pandas()["kind"].tolist())
print(
    ds.map_batches(lambda batch: {"year": batch["day"].astype("datetime64[Y]").astype(int) + 1970}).take_all()
)
