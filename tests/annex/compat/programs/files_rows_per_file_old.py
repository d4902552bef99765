"""The old name for how many rows a file has."""

import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import ray

folder = tempfile.mkdtemp()
ray.data.range(100, override_num_blocks=1).write_parquet(folder, num_rows_per_file=50)
counts = sorted(pq.read_metadata(path).num_rows for path in Path(folder).rglob("*.parquet"))
print(min(counts) >= 50, sum(counts))
