"""``python -m bench.queries``: rides joined to zones, then a model, then the ten best of each zone; and a big sort.

By hand, DuckDB joins into a Parquet file, a run of ours has the model, and DuckDB takes the best ones; then the same
by verbs, by Daft and by Ray Data, where these are. Each runs in a process of its own, by turns, and the rows must be
the same. The bars: 1.15 times by hand, 1.2 times Daft, a fifth of Ray Data. ``--sort 100000000`` sorts so many rows
by a random number instead, in 2 GiB of memory. ``--python`` is an interpreter that has Ray, if this one has not.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import given, measure

ZONES, FILES, BEST = 300, 10, 10
BARS = {"by hand": 1.15, "Daft": 1.2, "Ray Data": 0.2}
MEMORY = 2 << 30  # of the sort
Batch = dict[str, Any]


def write_rides(folder: Path, count: int) -> None:
    (folder / "rides").mkdir()
    for number in range(FILES):
        draw, rows = np.random.default_rng(number), count // FILES
        first = np.arange(number * rows, (number + 1) * rows)
        columns = {"ride": first, "zone": draw.integers(0, ZONES, rows), "km": draw.random(rows) * 30}
        pq.write_table(pa.table(columns), folder / "rides" / f"{number}.parquet", row_group_size=1 << 17)
    fees = np.random.default_rng(0).random(ZONES)
    zones = {"zone": np.arange(ZONES), "fee": fees, "name": [f"zone {i}" for i in range(ZONES)]}
    pq.write_table(pa.table(zones), folder / "zones.parquet")


def model(batch: Batch) -> Batch:
    """Return the fare of each ride, by two small layers."""
    hidden = np.maximum(
        np.stack([batch["km"], batch["fee"]], axis=1) @ np.linspace(1, -1, 64).reshape(2, 32), 0
    )
    return {"ride": batch["ride"], "zone": batch["zone"], "name": batch["name"], "fare": hidden.sum(axis=1)}


JOIN = "SELECT ride, zone, km, fee, name FROM '{0}/rides/*.parquet' JOIN '{0}/zones.parquet' USING (zone)"
TOP = "row_number() OVER (PARTITION BY zone ORDER BY fare DESC, ride) <= 10"


def by_hand(folder: Path, out: Path) -> None:
    import duckdb

    import headrace as hr

    out.mkdir()
    duckdb.sql(f"COPY ({JOIN.format(folder)}) TO '{out}/joined.parquet'")
    data = hr.read_parquet(out / "joined.parquet").with_options(progress=False)
    data.map_batches(model).write_parquet(out / "priced")
    rows = f"SELECT * FROM '{out}/priced/*.parquet' QUALIFY {TOP} ORDER BY zone, fare DESC, ride"
    duckdb.sql(f"COPY ({rows}) TO '{out}/best.parquet'")


def verbs(folder: Path, out: Path) -> None:
    import headrace as hr

    rides = hr.read_parquet(folder / "rides").with_options(progress=False)
    priced = rides.join(hr.read_parquet(folder / "zones.parquet"), on="zone").map_batches(model)
    priced.top_k(BEST, by="fare", per="zone").write_parquet(out)


def daft(folder: Path, out: Path) -> None:
    import daft as library
    from daft import DataType, Window, col
    from daft.functions import row_number

    @library.func.batch(return_dtype=DataType.float64())
    def fare(km: Any, fee: Any) -> Any:
        nothing = np.zeros(len(km))
        batch = {"km": km.to_arrow().to_numpy(), "fee": fee.to_arrow().to_numpy()}
        return model({"ride": nothing, "zone": nothing, "name": nothing, **batch})["fare"]

    zones = library.read_parquet(str(folder / "zones.parquet"))
    joined = library.read_parquet(f"{folder}/rides/*.parquet").join(zones, on="zone")
    priced = joined.with_column("fare", fare(col("km"), col("fee")))
    order = Window().partition_by("zone").order_by("fare", "ride", desc=[True, False])
    best = priced.with_column("place", row_number().over(order)).where(col("place") <= BEST)
    best.select("ride", "zone", "name", "fare").write_parquet(str(out))


def ray(folder: Path, out: Path) -> None:
    import ray as library

    library.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    zones = library.data.read_parquet(str(folder / "zones.parquet"))
    joined = library.data.read_parquet(str(folder / "rides")).join(
        zones, join_type="inner", num_partitions=8, on=("zone",)
    )

    def best(group: Any) -> Any:
        return group.sort_values(["fare", "ride"], ascending=[False, True]).head(BEST)

    priced = joined.map_batches(model, batch_format="numpy")
    priced.groupby("zone").map_groups(best, batch_format="pandas").write_parquet(str(out))


def sort(folder: Path, out: Path) -> None:
    import headrace as hr

    data = hr.read_parquet(folder / "rides").with_options(progress=False, memory_limit=MEMORY)
    data.sort("km").write_parquet(out)


PROGRAMS: dict[str, Callable[[Path, Path], None]] = {
    "by hand": by_hand,
    "verbs": verbs,
    "Daft": daft,
    "Ray Data": ray,
    "sort": sort,
}


def rows_of(out: Path) -> set[tuple[int, int]]:
    files = [out / "best.parquet"] if (out / "best.parquet").exists() else sorted(out.glob("**/*.parquet"))
    tables = [pq.read_table(file, columns=["ride", "zone"]) for file in files]
    return {(row["ride"], row["zone"]) for table in tables for row in table.to_pylist()}


def check_sorted(out: Path) -> None:
    last = -np.inf
    for file in sorted(out.glob("*.parquet")):
        km = pq.read_table(file, columns=["km"])["km"].to_numpy()
        assert last <= km[0] and (np.diff(km) >= 0).all(), f"{file} is not sorted"
        last = km[-1]


def interpreters(other: str) -> dict[str, str]:
    """Return what runs each program that can run here."""
    found = {"by hand": sys.executable, "verbs": sys.executable}
    if importlib.util.find_spec("daft"):
        found["Daft"] = sys.executable
    for python in filter(None, (sys.executable, other)):
        if not subprocess.run([python, "-c", "import ray.data"], capture_output=True).returncode:
            found["Ray Data"] = python
            break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.queries",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=given.count, default=10_000_000)
    parser.add_argument("--rounds", type=given.count, default=3)
    parser.add_argument("--sort", type=given.some, default=0, help="so many rows, in place of the join")
    parser.add_argument("--python", default="", help="an interpreter that has Ray")
    parser.add_argument("--program", nargs=3, metavar=("NAME", "FOLDER", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        name, folder, out = options.program
        PROGRAMS[name](Path(folder), Path(out))
        return 0
    chosen = {"sort": sys.executable} if options.sort else interpreters(options.python)
    readings: dict[str, list[measure.Reading]] = {name: [] for name in chosen}
    rounds, failed = 1 if options.sort else options.rounds, set[str]()
    with tempfile.TemporaryDirectory(prefix="bench-queries-") as place:
        folder = Path(place)
        write_rides(folder, options.sort or options.rows)
        expected: set[tuple[int, int]] | None = None
        for turn in range(rounds + (not options.sort)):  # the last one samples memory, and is not timed
            for name, python in chosen.items():
                if name in failed:
                    continue
                out = folder / f"{name} {turn}"
                command = [python, "-m", "bench.queries", "--program", name, str(folder), str(out)]
                try:
                    found = measure.run(
                        command,
                        cwd=Path.cwd(),
                        env=dict(os.environ),
                        log=folder / "log",
                        timeout=7200,
                        sample_memory=turn == rounds or bool(options.sort),
                    )
                except measure.RunFailed as error:
                    print(f"{name} failed: {error}")
                    failed.add(name)
                    continue
                readings[name].append(found)
                if options.sort:
                    check_sorted(out)
                    continue
                expected = expected or rows_of(out)
                assert rows_of(out) == expected, f"{name}: other rows"
                subprocess.run(["rm", "-rf", str(out)], check=True)
    return shown({name: found for name, found in readings.items() if name not in failed}, rounds) or len(
        failed
    )


def shown(readings: dict[str, list[measure.Reading]], rounds: int) -> int:
    missed = 0
    for name, found in readings.items():
        wall = statistics.median(each.wall_s for each in found[:rounds])
        cpu = statistics.median(each.cpu_s for each in found[:rounds])
        memory = (found[-1].peak_bytes or 0) / 2**20
        beside = ""
        if name in BARS and "verbs" in readings:
            ours = readings["verbs"][:rounds]
            ratio = statistics.median(a.wall_s / b.wall_s for a, b in zip(ours, found, strict=False))
            missed += ratio > BARS[name]
            beside = f"; verbs take {ratio:.2f} of it (bar: {BARS[name]:g})"
        elif name == "sort":
            missed += memory > MEMORY >> 20
            beside = f" (bar: {MEMORY >> 20:,} MiB)"
        print(f"{name:>10}: {wall:.1f} s, {cpu:.1f} CPU s, {memory:,.0f} MiB{beside}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
