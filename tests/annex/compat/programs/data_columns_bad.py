"""Columns that are not there."""

import ray

ds = ray.data.from_items([{"a": 1, "b": 2}])
for name, make in {
    "select": lambda: ds.select_columns(["nope"]),
    "drop": lambda: ds.drop_columns(["nope"]),
    "select twice": lambda: ds.select_columns(["a", "a"]),
    "select a number": lambda: ds.select_columns([1]),
    "rename to the same": lambda: ds.rename_columns({"a": "x", "b": "x"}),
    "rename too few": lambda: ds.rename_columns(["x"]),
}.items():
    try:
        print(name, make().take_all())
    except Exception:
        print(name, "is refused")
