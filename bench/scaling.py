"""``python -m bench.scaling``: how time and memory grow with rows, columns, files and workers.

Each size is a program of its own. What a size costs beyond the smallest, divided by what is more in it, is its cost
per unit: where that grows from one size to the next, something in the engine does not scale. The bar: at most half
more per unit than at the size before, by CPU seconds, and memory that does not grow with rows.

Workers are real up to two. Up to a thousand they are made up, under the real driver: as many shards at each size, and
as many of them per second, so that what grows is what the driver does because of the number of workers.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import data, given, measure, report, rounds

BAR = 1.5
NOISE = 0.3  # CPU seconds, or so much of those of the smallest size: a difference below is none
SHARDS = 50_000  # of workers that are made up
SIMULATED = "workers, made up"
AXES = ("rows", "columns, copied", "columns, decoded", "files", "workers", SIMULATED)

ROWS = """
import sys
from bench.contenders.headrace import predictions
if __name__ == "__main__":
    result = predictions("taxi_mlp", sys.argv[1]).with_options(progress=False).write_parquet(sys.argv[2])
"""
WORKERS = ROWS.replace("progress=False", "progress=False, workers=int(sys.argv[3])")
FILES = ROWS.replace("taxi_mlp", "many_small_files")
COLUMNS = """
import sys
import headrace as hr
def model(batch):
    return batch["f0000"] * 2
if __name__ == "__main__":
    rows = hr.read_parquet(sys.argv[1]).with_options(progress=False)
    rows.predict(model, inputs=["f0000"], output="prediction").write_parquet(sys.argv[2])
"""
ALL_COLUMNS = """
import sys
import headrace as hr
def model(table):
    return table.append_column("prediction", table["f0000"])
if __name__ == "__main__":
    rows = hr.read_parquet(sys.argv[1]).with_options(progress=False)
    rows.map_batches(model, batch_format="pyarrow").write_parquet(sys.argv[2])
"""


MADE_UP = f"""
import os, sys, tempfile
from pathlib import Path
from bench.simulated import Load, drive
if __name__ == "__main__":
    workers = int(sys.argv[3])
    shortly = workers / 1_000
    load = Load(workers=workers, shards={SHARDS}, seconds=shortly, restart_after=shortly)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # how long a disk takes to sync is another question
    with tempfile.TemporaryDirectory(prefix="scaling-", dir=memory) as folder:
        driven = drive(load, Path(folder) / "out")
    if driven.rows != load.shards:
        sys.exit(f"{{driven.rows}} of {{load.shards}} shards were committed")
"""


@dataclass(frozen=True, slots=True)
class Size:
    """One program at one size, what it took, and how loaded the machine was."""

    axis: str
    size: int
    wall_s: float
    cpu_s: float
    peak_mib: float
    rows: int
    load: float


@dataclass(frozen=True, slots=True)
class Axis:
    """What grows: the program, the sizes, how data of a size are made, and whether memory may grow, too."""

    name: str
    program: str
    sizes: tuple[int, ...]
    make: Callable[[Path, int, Path], Path]
    more: Callable[[int], tuple[str, ...]] = lambda size: ()
    memory: bool = False  # has to stay


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.rows < 100_000 or options.columns < 10 or options.files < 1 or options.workers < 1:
        parser().error("the least are 100,000 rows, 10 columns, 1 file and 1 worker")
    options.data = options.data.resolve()
    options.data.mkdir(parents=True, exist_ok=True)
    measure.adopt_orphans()
    found: list[Size] = []
    missed: list[str] = []
    for axis in axes(options):
        if axis.name not in options.axes:
            continue
        sizes: list[Size] = []
        for size in axis.sizes:
            sizes.append(measured(axis, size, options))
            print(line(sizes), flush=True)
        missed += verdicts(axis, sizes)
        found += sizes
    for each in missed:
        print(f"missed: {each}")
    if options.json:
        save(found, missed, options)
    return int(bool(missed))


def save(found: Sequence[Size], missed: Sequence[str], options: argparse.Namespace) -> None:
    """Write what was measured; with ``--merge``, beside what the file has of other axes."""
    made: dict[str, Any] = {"machine": report.machine(), "sizes": [*map(dataclasses.asdict, found)]}
    missed = [*missed]
    if options.merge and options.json.exists():
        old = json.loads(options.json.read_text())
        kept = [each for each in old["sizes"] if each["axis"] not in options.axes]
        made["sizes"] = sorted([*kept, *made["sizes"]], key=lambda each: AXES.index(each["axis"]))
        missed += [
            each for each in old["missed"] if not each.startswith(tuple(f"{a}:" for a in options.axes))
        ]
    options.json.write_text(json.dumps(made | {"missed": missed}, indent=1) + "\n")


def axes(options: argparse.Namespace) -> list[Axis]:
    """What is measured, up to the largest sizes that were asked for."""
    rows = tuple(n for n in (100_000, 1_000_000, 12_000_000, 96_000_000) if n <= options.rows)
    columns = tuple(n for n in (10, 100, 1_000, 2_000) if n <= options.columns)
    files = tuple(n for n in (1, 100, 1_000, 10_000, 20_000, 100_000) if n <= options.files)
    workers = tuple(n for n in (1, 10, 100, 1_000) if n <= options.workers)
    return [
        Axis("rows", ROWS, rows, rides, memory=True),
        Axis("columns, copied", COLUMNS, columns, table_of),
        Axis("columns, decoded", ALL_COLUMNS, columns, table_of),
        Axis("files", FILES, files, small_files),
        Axis(
            "workers", WORKERS, (1, 2), lambda cache, _, into: rides(cache, rows[-1], into), worker_argument
        ),
        Axis(SIMULATED, MADE_UP, workers, lambda cache, _, into: cache, worker_argument, memory=True),
    ]


def worker_argument(size: int) -> tuple[str, ...]:
    return (str(size),)


def rides(cache: Path, rows: int, into: Path) -> Path:
    """Taxi rides; of more than twelve million, the same files again under other names."""
    source = data.ensure("taxi", cache, min(rows, 12_000_000) / 12_000_000)
    if rows <= 12_000_000:
        return source
    into.mkdir()
    for again in range(rows // 12_000_000):
        for path in sorted(source.iterdir()):
            os.link(path, into / f"{again:03d}-{path.name}")
    return into


def table_of(cache: Path, columns: int, into: Path) -> Path:
    """Four files of 20,000 rows and so many columns of float32."""
    into.mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        made = {f"f{i:04d}": rng.standard_normal(20_000, dtype=np.float32) for i in range(columns)}
        pq.write_table(pa.table(made), into / f"{number}.parquet", row_group_size=5_000, use_dictionary=False)
    return into


def small_files(cache: Path, files: int, into: Path) -> Path:
    """Files of 50 rides: a thousand, each under many names."""
    source = data.ensure("small_files", cache, 0.05)
    every = sorted(source.iterdir())
    into.mkdir()
    for number in range(files):
        os.link(every[number % len(every)], into / f"{number:06d}.parquet")
    return into


def measured(axis: Axis, size: int, options: argparse.Namespace) -> Size:
    """Run one size: once for the time, once more for the memory."""
    scratch = Path(tempfile.mkdtemp(prefix="scaling-", dir=options.data))
    try:
        source = axis.make(options.data, size, scratch / "in")
        program = scratch / "program.py"
        program.write_text(axis.program)
        out = scratch / "out"
        readings = []
        for sample in (False, True):
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            readings.append(
                measure.run(
                    [sys.executable, str(program), str(source), str(out), *axis.more(size)],
                    cwd=data.ROOT,
                    env={**os.environ, "PYTHONPATH": str(data.ROOT)},
                    log=scratch / "log",
                    timeout=options.timeout,
                    sample_memory=sample,
                )
            )
        rows = sum(pq.read_metadata(path).num_rows for path in out.glob("*.parquet"))
        time, memory = readings
        load = os.getloadavg()[0]
        return Size(axis.name, size, time.wall_s, time.cpu_s, (memory.peak_bytes or 0) / 2**20, rows, load)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def per_unit(smaller: Size, larger: Size, least: Size) -> float | None:
    """How much more a unit costs at the larger size; None where the difference is noise. The least is start-up."""
    if smaller.cpu_s - least.cpu_s < NOISE * max(1.0, least.cpu_s):
        return None
    one = (smaller.cpu_s - least.cpu_s) / (smaller.size - least.size)
    return (larger.cpu_s - least.cpu_s) / (larger.size - least.size) / one


def line(sizes: Sequence[Size]) -> str:
    this = sizes[-1]
    grown = per_unit(sizes[-2], this, sizes[0]) if len(sizes) > 2 and this.axis != "workers" else None
    told = "" if grown is None else f", {grown:.2f} × the cost per unit of the size before"
    if this.axis == SIMULATED:
        told = f", {this.cpu_s / SHARDS * 1e6:,.0f} µs for each of {SHARDS:,} shards{told}"
    return (
        f"{this.axis:17} {this.size:>11,}: {this.wall_s:6.2f} s, {this.cpu_s:6.2f} CPU s, "
        f"peak {this.peak_mib:5.0f} MiB, {this.rows:,} rows{told}"
    )


def verdicts(axis: Axis, sizes: Sequence[Size]) -> list[str]:
    """Say where the bar was missed."""
    missed = []
    for smaller, larger in itertools.pairwise(sizes[1:]):
        grown = per_unit(smaller, larger, sizes[0])
        if grown is not None and grown > BAR:
            missed.append(
                f"{axis.name}: {larger.size:,} cost {grown:.2f} × as much per unit as {smaller.size:,}"
            )
    if axis.name == "workers" and len(sizes) == 2 and sizes[1].cpu_s > BAR * sizes[0].cpu_s:
        missed.append(f"workers: two took {sizes[1].cpu_s / sizes[0].cpu_s:.2f} × the CPU seconds of one")
    steady = [size for size in sizes if size.size >= 12_000_000 or axis.name == SIMULATED]
    most = 1.25 if axis.name == SIMULATED else 1.1
    if axis.memory and len(steady) > 1 and steady[-1].peak_mib > most * steady[0].peak_mib:
        missed.append(
            f"{axis.name}: {steady[-1].size:,} took {steady[-1].peak_mib:.0f} MiB, {steady[0].size:,} "
            f"{steady[0].peak_mib:.0f}"
        )
    return missed


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    result.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES), metavar="AXIS")
    result.add_argument(
        "--rows", type=given.count, default=12_000_000, help="the most: 12 M (default), or 96 M"
    )
    result.add_argument("--columns", type=given.count, default=2_000, help="the most (default 2,000)")
    result.add_argument(
        "--files", type=given.count, default=20_000, help="the most: 20,000 (default), or 100,000"
    )
    result.add_argument(
        "--workers", type=given.count, default=1_000, help="the most that are made up (default 1,000)"
    )
    result.add_argument("--timeout", type=given.amount, default=1200.0, help="seconds for a run")
    result.add_argument("--json", type=Path, help="write every reading to this file")
    result.add_argument("--merge", action="store_true", help="keep what the JSON file has of other axes")
    rounds.add_data(result)
    return result


if __name__ == "__main__":
    sys.exit(main())
