"""``python -m bench.small_batches``: single rows and small batches, against the loop that one would write by hand.

By hand: two forked processes, each takes every other row group, converts it once, calls the function in a
comprehension, converts back once, and writes one row group. Whole processes in turn, the same rows checked.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 3_000_000
GROUP = 125_000


def tip(row: dict[str, Any]) -> dict[str, Any]:
    return {"ride": row["ride"], "tip": row["miles"] * 0.5 + row["hour"], "zone": row["zone"]}


def legs(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"ride": row["ride"], "leg": leg, "miles": row["miles"] / 3} for leg in range(3)]


def late(row: dict[str, Any]) -> bool:
    return row["hour"] > 11


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"ride": batch["ride"], "tip": batch["miles"] * 0.5 + batch["hour"]}


# Name: function, rows in, batch size (None: rows as dicts), the bar.
JOBS: dict[str, tuple[Callable[[Any], Any], int, int | None, float]] = {
    "map": (tip, ROWS, None, 1.3),
    "flat_map": (legs, ROWS, None, 1.3),
    "filter": (late, ROWS, None, 1.0),
    "batch_256": (double, ROWS, 256, 1.2),
    "batch_16": (double, ROWS, 16, 2.0),
    "batch_1": (double, 60_000, 1, 4.0),
}


def make_rides(path: Path, rows: int) -> None:
    numbers = np.arange(rows)
    table = pa.table(
        {
            "ride": numbers,
            "miles": numbers % 400 / 40,
            "hour": numbers % 24,
            "zone": pa.array(np.char.add("zone ", (numbers % 260).astype(str))),
        }
    )
    pq.write_table(table, path, row_group_size=GROUP if rows > GROUP else rows // 4)


def by_hand(name: str, source: str, out: str) -> None:
    """Process every other row group in each of two forked processes."""
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_some_groups, args=(name, source, out, first)) for first in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _some_groups(name: str, source: str, out: str, first: int) -> None:
    function, _, size, _ = JOBS[name]
    opened = pq.ParquetFile(source)
    writer = None
    os.makedirs(out, exist_ok=True)
    for group in range(first, opened.num_row_groups, 2):
        table = opened.read_row_group(group, use_threads=False)
        if name == "filter":
            made = table.filter(pa.array([function(row) for row in table.to_pylist()]))
        elif name == "flat_map":
            made = pa.Table.from_pylist([each for row in table.to_pylist() for each in function(row)])
        elif size is None:
            made = pa.Table.from_pylist([function(row) for row in table.to_pylist()])
        else:
            made = _in_batches(function, table, size)
        writer = writer or pq.ParquetWriter(f"{out}/{first}.parquet", made.schema)
        writer.write_table(made)
    if writer is not None:
        writer.close()


def _in_batches(function: Callable[[Any], Any], table: pa.Table, size: int) -> pa.Table:
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "zone"}
    results = [
        function({name: values[at : at + size] for name, values in columns.items()})
        for at in range(0, table.num_rows, size)
    ]
    return pa.table({name: np.concatenate([each[name] for each in results]) for name in results[0]})


def here(name: str, source: str, out: str) -> None:
    """Run the same function over the same file."""
    import headrace as hr

    function, _, size, _ = JOBS[name]
    rides = hr.read_parquet(source).with_options(workers=2, progress=False)
    if size is None:
        made = getattr(rides, name)(function)
    else:
        made = rides.map_batches(function, batch_size=size, columns=["ride", "miles", "hour"])
    made.write_parquet(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", default=[*JOBS], metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        way, *job = options.run
        {"hand": by_hand, "here": here}[way](*job)
        return 0
    print(f"{'job':12}{'by hand':>10}{'here':>10}{'ratio':>8}{'bar':>6}   ratios of {options.rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="small-") as folder:
        for name in options.jobs:
            source = Path(folder, f"{JOBS[name][1]}.parquet")
            if not source.exists():
                make_rides(source, JOBS[name][1])
            seconds: dict[str, list[float]] = {"hand": [], "here": []}
            for number in range(options.rounds):
                for way, readings in seconds.items():
                    readings.append(_timed(way, name, source, Path(folder, f"{name}-{way}-{number}")))
            _compare(Path(folder), name)
            ratios = [mine / hand for mine, hand in zip(seconds["here"], seconds["hand"], strict=True)]
            hand, mine = (statistics.median(seconds[way]) for way in ("hand", "here"))
            listed = " ".join(f"{ratio:.2f}" for ratio in ratios)
            median = statistics.median(ratios)
            print(
                f"{name:12}{hand:>9.2f}s{mine:>9.2f}s{median:>8.2f}{JOBS[name][3]:>6}   {listed}", flush=True
            )
    return 0


def _timed(way: str, name: str, source: Path, out: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "bench.small_batches", "--run", way, name, str(source), str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _compare(folder: Path, name: str) -> None:
    hand, mine = (pq.read_table(folder / f"{name}-{way}-0") for way in ("hand", "here"))
    keys = [(each, "ascending") for each in ("ride", "leg") if each in mine.column_names]
    hand, mine = hand.sort_by(keys), mine.sort_by(keys)
    if not mine.select(hand.column_names).cast(hand.schema).equals(hand):
        raise SystemExit(f"{name}: the rows are not the same")


if __name__ == "__main__":
    raise SystemExit(main())
