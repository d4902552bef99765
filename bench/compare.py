"""``python -m bench.compare``: two outputs compared by position, beside reading both with DuckDB.

Ten columns; one differs in every row, one in a twentieth of them. Each side runs in a process of its own, by turns.
The bars are 1.5 times the wall time of the reading, by the median of rounds, and 1 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from bench import given

BAR, MEMORY = 1.5, 1 << 30
MEASURED = """
import json, resource, sys, time
old, new = sys.argv[1:]
{prepare}
before = time.perf_counter()
{work}
took = time.perf_counter() - before
print(json.dumps([took, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10]))
"""
SIDES = {
    "DuckDB reads both": MEASURED.format(
        prepare="import duckdb",
        work="for side in (old, new):\n    query = duckdb.sql(f\"SELECT * FROM read_parquet('{side}/*.parquet')\")\n"
        "    for batch in query.to_arrow_reader(100_000):\n        pass",
    ),
    "hr.compare": MEASURED.format(
        prepare="import headrace as hr; hr.compare", work="assert hr.compare(old, new).different"
    ),
}


def rows(side: str) -> Any:
    def made(batch: dict[str, Any]) -> dict[str, Any]:
        draw = np.random.default_rng(int(batch["id"][0]))
        found = {f"x{i}": draw.random(len(batch["id"])) for i in range(9)}
        if side == "new":
            found["x0"] = np.where(draw.random(len(batch["id"])) < 0.05, found["x0"] * 1.1, found["x0"])
            found["x1"] = found["x1"] + draw.normal(0, 0.01, len(batch["id"]))
        return {"id": batch["id"], **found}

    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=given.count, default=10_000_000)
    parser.add_argument("--rounds", type=given.count, default=5)
    options = parser.parse_args()
    took: dict[str, list[list[float]]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory(prefix="bench-compare-") as folder:
        for side in ("old", "new"):
            data = hr.range(options.rows).map_batches(rows(side), batch_size=65_536)
            data.with_options(progress=False).write_parquet(str(Path(folder) / side))
        for _ in range(options.rounds):
            for name, program in SIDES.items():
                command = [sys.executable, "-c", program, f"{folder}/old", f"{folder}/new"]
                found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                took[name].append(json.loads(found.splitlines()[-1]))
    for name, found in took.items():
        wall, cpu, memory = (statistics.median(each) for each in zip(*found, strict=True))
        print(f"{name:>18}: {wall:.2f} s, {cpu:.2f} CPU s, {memory / 2**20:,.0f} MiB")
    ratio = statistics.median(ours[0] / theirs[0] for theirs, ours in zip(*took.values(), strict=True))
    most = max(each[2] for each in took["hr.compare"])
    met = ratio <= BAR and most <= MEMORY
    print(f"{ratio:.2f} times the reading (bar: {BAR:g}), {most / 2**20:,.0f} MiB at most (bar: 1,024)")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
