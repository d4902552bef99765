"""How many rows a batch has, by the bytes of a row."""

from __future__ import annotations

import pyarrow as pa

from millrace.core.work import Split

BATCH_BYTES = 16 << 20
BATCH_ROWS = 65_536
READ_BYTES = 8 << 20
ROW_STEP_ROWS = 4_096


def auto_size(batch: pa.RecordBatch) -> int:
    """Return how many rows like these make a batch of about 16 MiB, at most 65,536."""
    per_row = batch.nbytes / max(batch.num_rows, 1)
    return int(min(BATCH_ROWS, max(1, BATCH_BYTES // max(per_row, 1))))


def read_size(split: Split) -> int:
    """Return how many rows to read at a time from ``split``: 65,536, or fewer where rows are big."""
    if split.rows <= 0 or split.bytes <= 0:
        return BATCH_ROWS
    return int(min(BATCH_ROWS, max(1, READ_BYTES * split.rows // split.bytes)))
