"""What is timed: ``python -m bench.job CONTENDER JOB DATA OUT``.

It imports nothing but the one contender, so that each pays for its own imports only.
"""

import importlib
import os
import sys
import time
from typing import Any

FIRST_ROW = "notebook_first_row"
MOMENT = "moment"  # a file that says when the row was there


def first_row(module: Any, data: str, out: str) -> None:
    """Show the first row, note when it was there, and keep it to be checked."""
    row = module.first_row(data)
    print(row, flush=True)
    moment = time.monotonic()
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, MOMENT), "w") as file:
        file.write(str(moment))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([row]), os.path.join(out, "row.parquet"))


if __name__ == "__main__":
    contender, job, data, out = sys.argv[1:]
    found = importlib.import_module(f"bench.contenders.{contender}")
    if job == FIRST_ROW:
        first_row(found, data, out)
    else:
        found.main(job, data, out)
