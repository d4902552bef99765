"""``python -m bench.columns``: new columns of tables, beside what their own libraries do.

A Delta table of 204 columns gets one more: by ``deltalake``, which reads, extends and rewrites it, and by
``mode="add_columns"``, which copies the old columns as they are stored; how long a plain copy of the files takes is
shown beside it. A Lance table gets a column of vectors: by the library's own ``add_columns``, in batches of its size,
and by ours, with the same function. Each program runs once in a round, in turns, on a fresh copy of the table, up to
when its files are on the disk. The values must be equal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench import given

DELTA_BAR, LANCE_BAR = 0.4, 1.1  # of the libraries' time
COLUMNS, FILES, WIDTH = 204, 8, 128
WEIGHTS = np.linspace(-1, 1, WIDTH, dtype=np.float32)


def made(first: int, rows: int, columns: int) -> pa.Table:
    dice = np.random.default_rng(first)
    numbers = {f"x{i}": dice.normal(size=rows) for i in range(columns - 1)}
    return pa.table({"id": np.arange(first, first + rows), **numbers})


def score(batch: dict[str, Any]) -> Any:
    return batch["x0"] * 2 + batch["x1"]


def vectors(batch: dict[str, Any]) -> Any:
    return batch["x0"].astype(np.float32)[:, None] * WEIGHTS


def by_headrace_delta(table: str) -> None:
    import headrace as hr

    data = hr.read_delta(table).with_options(progress=False)
    data.predict(score, inputs=["x0", "x1"], output="y").write_delta(table, mode="add_columns")


def by_deltalake(table: str) -> None:
    import deltalake

    data = deltalake.DeltaTable(table).to_pyarrow_dataset()
    schema = data.schema.append(pa.field("y", pa.float64()))
    rows = (
        batch.append_column("y", pc.add(pc.multiply(batch["x0"], 2.0), batch["x1"]))
        for batch in data.to_batches()
    )
    extended = pa.RecordBatchReader.from_batches(schema, rows)
    deltalake.write_deltalake(table, extended, mode="overwrite", schema_mode="overwrite")


def by_copy(table: str) -> None:
    shutil.copytree(table, f"{table}-copy")


def by_headrace_lance(table: str) -> None:
    import headrace as hr

    data = hr.read_lance(table).with_options(progress=False)
    data.predict(vectors, inputs=["x0"], output="y").write_lance(table, mode="add_columns")


def by_lance(table: str) -> None:
    import lance

    def added(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = vectors({"x0": batch["x0"].to_numpy()})
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), WIDTH)
        return pa.record_batch([column], ["y"])

    lance.dataset(table).add_columns(added, read_columns=["x0"])


def read_delta(table: str) -> pa.Table:
    import deltalake

    return deltalake.DeltaTable(table).to_pyarrow_dataset().to_table(columns=["id", "y"]).sort_by("id")


def read_lance(table: str) -> pa.Table:
    import lance

    return lance.dataset(table).to_table(columns=["id", "y"])


def compared(
    base: str, programs: dict[str, Callable[[str], None]], read: Callable[[str], pa.Table], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each program in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        found = []
        for name, program in programs.items():
            table = f"{base}-work"
            shutil.copytree(base, table)
            os.sync()
            began = time.perf_counter()
            program(table)
            os.sync()
            seconds[name].append(time.perf_counter() - began)
            if program is not by_copy:
                found.append(read(table))
            for place in (table, f"{table}-copy"):
                shutil.rmtree(place, ignore_errors=True)
        if not all(each.equals(found[0]) for each in found):
            raise SystemExit("the values differ")
    return seconds


def shown(title: str, seconds: dict[str, list[float]], bar: float) -> bool:
    """Show the medians, and say whether the first program is within its bar of the second."""
    ours, theirs = (statistics.median(each) for each in list(seconds.values())[:2])
    print(f"\n{title}")
    for name, each in seconds.items():
        print(f"  {name:<14} {statistics.median(each):7.2f} s  ({', '.join(f'{s:.2f}' for s in each)})")
    print(f"  {ours / theirs:.2f} times the library's time; at most {bar}")
    return ours <= bar * theirs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.columns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--megabytes", type=given.count, default=900, help="of the Delta table (default 900)")
    parser.add_argument(
        "--rows", type=given.count, default=4_000_000, help="of the Lance table (default 4,000,000)"
    )
    parser.add_argument("--rounds", type=given.count, default=5, help="timed rounds (default 5)")
    options = parser.parse_args(arguments)
    try:
        import deltalake
        import lance
    except ImportError as error:
        print(f"left out: {error.name} is not installed")
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-columns") as place:
        wide, long = str(Path(place) / "wide"), str(Path(place) / "long")
        rows = max(1, options.megabytes * 1_000_000 // (COLUMNS * 8 * FILES))
        for number in range(FILES):
            deltalake.write_deltalake(wide, made(number * rows, rows, COLUMNS), mode="append")
        lance.write_dataset(made(0, options.rows, 9), long, max_rows_per_file=-(-options.rows // FILES))
        delta = {"headrace": by_headrace_delta, "deltalake": by_deltalake, "copy": by_copy}
        good = shown("Delta", compared(wide, delta, read_delta, options.rounds), DELTA_BAR)
        vector = {"headrace": by_headrace_lance, "lance": by_lance}
        good &= shown("Lance", compared(long, vector, read_lance, options.rounds), LANCE_BAR)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
