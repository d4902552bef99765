"""Folders by the values of a column."""

import tempfile
from pathlib import Path

import ray

root = Path(tempfile.mkdtemp())
ds = ray.data.from_items([{"kind": kind, "x": x} for x, kind in enumerate("abab")])
ds.write_parquet(str(root), partition_cols=["kind"])
print(sorted(each.name for each in root.iterdir() if each.is_dir() and "=" in each.name))
back = ray.data.read_parquet(str(root)).take_all()
print(sorted((row["x"], row["kind"]) for row in back))
