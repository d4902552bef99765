"""To and from pandas."""

import pandas as pd
import ray

frame = pd.DataFrame({"i": [1, 2, 3], "f": [0.5, None, 1.5], "s": ["a", "b", None]})
ds = ray.data.from_pandas(frame)
print(ds.count(), ds.columns())
back = ds.to_pandas()
print(back["i"].tolist(), back["f"].tolist()[::2], back["s"].tolist()[:2], list(back.columns))
print(ray.data.from_pandas([frame, frame]).count())
print(ray.data.range(3).to_pandas().to_dict("list"))
print(ds.map(lambda row: {"n": row["i"]}).to_pandas(limit=3)["n"].tolist())
