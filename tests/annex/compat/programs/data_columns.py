"""Columns chosen, dropped, renamed and added."""

import numpy as np
import pandas as pd
import pyarrow as pa
import ray

ds = ray.data.from_items([{"a": i, "b": i * 2, "c": str(i)} for i in range(3)])
print(ds.select_columns(["c", "a"]).take(1), ds.select_columns("b").take(1))
print(ds.drop_columns(["a"]).take(1), ds.drop_columns(["a", "b"]).columns())
print(ds.rename_columns({"a": "x"}).take(1), ds.rename_columns(["x", "y", "z"]).columns())
print(ds.add_column("d", lambda frame: frame["a"] + frame["b"]).take(2))
print(ds.add_column("d", lambda batch: batch["a"] * 10, batch_format="numpy").take(2))
print(ds.add_column("e", lambda table: pa.array([True] * len(table)), batch_format="pyarrow").take(1))
print(ds.add_column("f", lambda frame: 7).take(1))
print(ds.add_column("g", lambda frame: pd.Series(np.arange(len(frame)))).columns())
