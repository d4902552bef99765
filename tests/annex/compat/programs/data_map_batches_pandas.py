"""pandas batches, to and from other forms."""

import pandas as pd
import ray


def add(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.copy()
    frame["y"] = frame["x"] * 2 + 1
    return frame[frame["x"] > 1]


ds = ray.data.from_pandas(pd.DataFrame({"x": [1, 2, 3], "s": ["a", None, "c"]}))
print(ds.map_batches(add, batch_format="pandas").take_all())
print(ds.map_batches(lambda frame: frame.rename(columns={"x": "z"}), batch_format="pandas").columns())
print(ds.map_batches(lambda frame: {"n": [len(frame)]}, batch_format="pandas", batch_size=2).take_all())
print(ds.map_batches(lambda batch: pd.DataFrame({"k": batch["x"]}), batch_format="numpy").take_all())
