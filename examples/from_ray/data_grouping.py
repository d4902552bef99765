# The calls are those of ray-project/ray, doc/source/data/aggregations.rst.
import numpy as np
import pandas as pd

from headrace.compat import ray
from headrace.compat.ray.data.aggregate import Count, Max, Mean, Min, Std, Sum

ds = ray.data.from_items([{"group": n % 3, "value": float(n)} for n in range(12)])
sums = ds.groupby("group").sum("value").take_all()
assert sorted((row["group"], row["sum(value)"]) for row in sums) == [(0, 18), (1, 22), (2, 26)]
many = ds.groupby("group").aggregate(Count(), Mean("value"), Max("value", alias_name="most")).take_all()
assert {row["group"]: (row["count()"], row["most"]) for row in many} == {0: (4, 9), 1: (4, 10), 2: (4, 11)}
whole = ds.aggregate(Sum("value"), Min("value"), Std("value"))
assert whole["sum(value)"] == 66 and whole["min(value)"] == 0


def normalise(group: pd.DataFrame) -> pd.DataFrame:
    group["value"] = group["value"] - group["value"].mean()
    return group


normal = ds.groupby("group").map_groups(normalise, batch_format="pandas")
assert abs(normal.sum("value")) < 1e-9
totals = ds.groupby("group").map_groups(
    lambda group: {"group": group["group"][:1], "total": np.array([group["value"].sum()])}
)
assert sorted(row["total"] for row in totals.take_all()) == [18, 22, 26]
assert ds.mean("value") == 5.5 and ds.max(["group", "value"])["max(value)"] == 11
