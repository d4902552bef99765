"""Columns in the names of folders."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import ray

root = Path(tempfile.mkdtemp())
for year in (2023, 2024):
    (root / f"year={year}" / "kind=a").mkdir(parents=True)
    pq.write_table(pa.table({"x": [year % 100]}), root / f"year={year}" / "kind=a" / "f.parquet")
rows = ray.data.read_parquet(str(root)).take_all()
print(sorted(rows, key=lambda row: row["x"]))
