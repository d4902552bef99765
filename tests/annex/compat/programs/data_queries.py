"""Verbs that bring rows together."""

import ray

ds = ray.data.from_items([{"k": k, "x": x} for x, k in enumerate("abca")])
for name, use in {
    "sort": lambda: ds.sort("x", descending=True).take(1),
    "groupby": lambda: sorted(row["count()"] for row in ds.groupby("k").count().take_all()),
    "map_groups": lambda: ds.groupby("k").map_groups(lambda g: {"n": [len(g["x"])]}).count(),
    "random_shuffle": lambda: ds.random_shuffle().count(),
    "split": lambda: len(ds.split(2)),
    "streaming_split": lambda: len(ds.streaming_split(2)),
}.items():
    try:
        print(name, use())
    except AttributeError as error:
        print(name, "-", str(error).split(":")[0].split(".")[0])
