"""How many rows a file has."""

import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import ray


def counts(folder):
    return sorted(pq.read_metadata(path).num_rows for path in Path(folder).rglob("*.parquet"))


folder = tempfile.mkdtemp()
ray.data.range(100, override_num_blocks=1).write_parquet(folder, max_rows_per_file=30)
print(max(counts(folder)) <= 30, sum(counts(folder)))
folder = tempfile.mkdtemp()
ray.data.range(100, override_num_blocks=1).write_parquet(folder, min_rows_per_file=50)
print(min(counts(folder)) >= 50, sum(counts(folder)))
