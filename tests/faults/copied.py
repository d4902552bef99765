"""A job whose output has a column that is copied from the input, row group by row group."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core import failpoints
from headrace.dataset.dataset import Dataset
from headrace.sources.parquet.source import ParquetSource
from headrace.worker.copy_choice import LEAST_ROWS

from .job import Job, tripled

PER_FILE = 3 * LEAST_ROWS
BAD = 2 * PER_FILE + 5


@dataclass(frozen=True)
class CopiedJob(Job):
    """Predicts, sets one row aside, and carries the rest; ``stages``: by workers of one stage, or of two."""

    stages: int = 1

    def dataset(self, **options: Any) -> Dataset:
        dataset = Dataset.from_source(ParquetSource(self.source)).predict(
            tripled, inputs=["id"], output="product", fn_args=[BAD], num_cpus=1 if self.stages == 2 else None
        )
        if self.stages == 2:
            dataset = dataset.predict(tripled, inputs=["id"], output="again", fn_args=[-1], concurrency=1)
            dataset = dataset.drop_columns("again")
        options = {"progress": False, "shard_rows": PER_FILE, "on_error": "reject", **self.options, **options}
        return dataset.with_options(**options)

    def fails(self, number: int) -> bool:
        return number == BAD


def main() -> None:
    """What a driver process does."""
    job, faults = json.loads(sys.argv[1])
    failpoints.activate(faults)
    planned = CopiedJob(**job)
    result = planned.write(planned.dataset())
    print(json.dumps([result.rows, result.files, result.resumed]))


def make_files(folder: Path, files: int) -> Path:
    """Write files of three row groups, gzipped: nothing that is encoded anew is."""
    folder.mkdir()
    for number in range(files):
        ids = pa.array(range(number * PER_FILE, (number + 1) * PER_FILE), pa.int64())
        path = folder / f"in-{number}.parquet"
        pq.write_table(pa.table({"id": ids}), path, row_group_size=LEAST_ROWS, compression="gzip")
    return folder
