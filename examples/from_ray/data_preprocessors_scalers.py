# The calls are those of ray-project/ray, doc/source/data/doc_code/preprocessors.py.
import numpy as np
import pandas as pd

from headrace.compat import ray
from headrace.compat.ray.data.preprocessors import Chain, Concatenator, MinMaxScaler, SimpleImputer
from headrace.compat.ray.data.preprocessors.scaler import StandardScaler

first = ray.data.range(4)
second = ray.data.from_items([{"id": n} for n in range(4, 8)])
scaler = MinMaxScaler(["id"])
assert [row["id"] for row in scaler.fit_transform(first).take()] == [0.0, 1 / 3, 2 / 3, 1.0]
assert np.allclose([row["id"] for row in scaler.transform(second).take()], [4 / 3, 5 / 3, 2, 7 / 3])
print(scaler.transform_batch(pd.DataFrame({"id": list(range(8, 12))})))

holes = ray.data.from_items([{"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}, {"id": None}])
chain = Chain(SimpleImputer(["id"]), MinMaxScaler(["id"]))
assert [row["id"] for row in chain.fit_transform(holes).take()] == [0.0, 1 / 3, 2 / 3, 1.0, 0.5]

pairs = ray.data.from_items([{"X": 1.0, "Y": 2.0}, {"X": 4.0, "Y": 0.0}])
both = Chain(StandardScaler(columns=["X", "Y"]), Concatenator(columns=["X", "Y"]))
rows = both.fit_transform(pairs).take()
assert [row["concat_out"].tolist() for row in rows] == [[-1.0, 1.0], [1.0, -1.0]]
