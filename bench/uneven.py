"""``python -m bench.uneven``: how near workers come to the ideal where rows differ in what they cost.

Each row waits for as long as it is said to cost, so other work on the machine does not count much. The ideal is what
workers would take who knew all costs: each takes the row that costs most of those that are left. Workers start more
slowly where other work runs: the share that counts from the first row on (`--from-first-row`) leaves that out.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BAR = 1.1
SECONDS = 10.0  # of waiting, for each worker
GROUPS, ROWS = 20, 100  # groups of neighbouring rows that cost the same
DOCUMENTS = 125


def uniform(groups: int) -> list[float]:
    return [1.0] * groups


def lognormal(groups: int) -> list[float]:
    chance = random.Random(7)
    return [chance.lognormvariate(0.0, 1.5) for _ in range(groups)]


def giant(groups: int) -> list[float]:
    return [1.0] * (groups - 1) + [50.0]


SHAPES: dict[str, Callable[[int], list[float]]] = {"uniform": uniform, "lognormal": lognormal, "giant": giant}


def costs(shape: str, rows: int, workers: int) -> list[float]:
    """The seconds that each row waits: groups of 25 rows at least cost the same."""
    groups = SHAPES[shape](min(GROUPS, rows // 25))
    each = [groups[row * len(groups) // rows] for row in range(rows)]
    return [cost * SECONDS * workers / sum(each) for cost in each]


def ideal(seconds: list[float], workers: int) -> float:
    """The seconds that the workers would take who knew what each row costs."""
    busy = [0.0] * workers
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy)


# ---------------------------------------------------------------- inputs


def parquet(folder: Path, seconds: list[float]) -> None:
    """One file for each group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number in range(GROUPS):
        part = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": list(part), "seconds": [seconds[row] for row in part]})
        pq.write_table(table, folder / f"{number:02}.parquet")


def one_parquet(folder: Path, seconds: list[float]) -> None:
    """One file with one row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": list(range(len(seconds))), "seconds": seconds}), folder / "all.parquet")


def json_lines(folder: Path, seconds: list[float]) -> None:
    """One file."""
    lines = (json.dumps({"id": row, "seconds": each}) for row, each in enumerate(seconds))
    (folder / "all.jsonl").write_text("\n".join(lines) + "\n")


def images(folder: Path, seconds: list[float]) -> None:
    """A file for each row; its first pixels say what it costs."""
    import numpy as np
    from PIL import Image

    for row, each in enumerate(seconds):
        pixels = np.zeros((32, 32, 3), np.uint8)
        pixels[0, 0] = (row >> 8, row & 255, 0)
        microseconds = int(each * 1e6)
        pixels[0, 1] = (microseconds >> 16, microseconds >> 8 & 255, microseconds & 255)
        Image.fromarray(pixels).save(folder / f"{row:05}.png")


def documents(folder: Path, seconds: list[float]) -> None:
    """Documents of ten pieces each; what a piece costs is a tenth."""
    one_parquet(folder, seconds)


INPUTS: dict[str, tuple[Callable[[Path, list[float]], None], int]] = {
    "parquet": (parquet, GROUPS * ROWS),
    "one_parquet": (one_parquet, GROUPS * ROWS),
    "json_lines": (json_lines, GROUPS * ROWS),
    "images": (images, GROUPS * ROWS // 2),
    "documents": (documents, DOCUMENTS),
}


# ---------------------------------------------------------------- the job


def wait(seconds: float) -> None:
    """Wait, less by as much as this process was woken too late before: others may have the cores."""
    global _late
    if _late is None:
        _late = 0.0
        (Path(os.environ[FIRST_ROWS]) / str(os.getpid())).write_text(repr(time.time()))
    began = time.perf_counter()
    time.sleep(max(0.0, seconds - _late))
    _late += time.perf_counter() - began - seconds


FIRST_ROWS = "UNEVEN_FIRST_ROWS"  # a folder, with the time of each worker's first row
_late: float | None = None


def waited(row: dict[str, Any]) -> dict[str, Any]:
    wait(row["seconds"])
    return {"id": row["id"]}


def waited_image(row: dict[str, Any]) -> dict[str, Any]:
    (high, low, _), (first, second, third) = row["image"][0, :2].tolist()
    wait((first << 16 | second << 8 | third) * 1e-6)
    return {"id": high << 8 | low}


def pieces(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for piece in range(10):
        yield {"id": row["id"] * 10 + piece, "seconds": row["seconds"] / 10}


def waited_pieces(batch: dict[str, Any]) -> dict[str, Any]:
    wait(batch["seconds"].sum())
    return {"id": batch["id"]}


def job(kind: str, source: str, out: str, workers: int, engine: str) -> None:
    import pyarrow.parquet  # noqa: F401 - the run is timed, not this

    import headrace as hr

    if kind == "json_lines":
        data = hr.read_json(source).map(waited)
    elif kind == "images":
        data = hr.read_images(source).map(waited_image)
    elif kind == "documents":
        data = hr.read_parquet(source).flat_map(pieces).map_batches(waited_pieces, batch_size=4)
    else:
        data = hr.read_parquet(source).map(waited)
    began = time.time()
    data.with_options(workers=workers, engine=engine, progress=False).write_parquet(out)
    ended = time.time()
    first = min(float(each.read_text()) for each in Path(os.environ[FIRST_ROWS]).iterdir())
    print(ended - began, ended - first)


def timed(kind: str, source: Path, rows: int, workers: int, engine: str) -> tuple[float, float]:
    """Run a job in a process of its own; return the seconds of the run, and those from its first row on."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        out, first = os.path.join(folder, "out"), os.path.join(folder, "first")
        os.mkdir(first)
        argv = [sys.executable, "-m", "bench.uneven", "--job", kind, str(source), out, str(workers), engine]
        environment = {**os.environ, FIRST_ROWS: first}
        ended = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        whole, from_first = map(float, ended.stdout.split()[-2:])
        ids = pq.read_table(out)["id"].to_pylist()
        expected = list(range(rows * (10 if kind == "documents" else 1)))
        if ids != expected:
            raise SystemExit(f"{kind}: rows are missing, or in another order")
    return whole, from_first


def main() -> int:
    options = parser().parse_args()
    if options.job:
        kind, source, out, workers, engine = options.job
        job(kind, source, out, int(workers), engine)
        return 0
    failed = False
    with tempfile.TemporaryDirectory(prefix="uneven-", dir=options.data) as folder:
        for kind, shape in itertools.product(options.inputs, options.shapes):
            for workers in options.workers:
                make, rows = INPUTS[kind]
                seconds = costs(shape, rows, workers)
                source = Path(folder) / f"{kind}-{shape}-{workers}"
                source.mkdir()
                make(source, seconds)
                tries = [timed(kind, source, rows, workers, options.engine) for _ in range(options.tries)]
                best = ideal(seconds, workers)
                whole, from_first = (statistics.median(each) / best for each in zip(*tries, strict=True))
                failed = failed or (from_first if options.from_first_row else whole) > options.bar
                print(
                    f"{kind:12} {shape:10} {workers} workers, ideal {best:6.2f} s: {whole:.2f}, "
                    f"from the first row on {from_first:.2f} (bar: {options.bar:g})",
                    flush=True,
                )
    return int(failed)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m bench.uneven", description=__doc__)
    result.add_argument("--inputs", nargs="+", choices=INPUTS, default=list(INPUTS))
    result.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    result.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    result.add_argument("--engine", default="local")
    result.add_argument("--tries", type=int, default=1)
    result.add_argument("--bar", type=float, default=BAR)
    result.add_argument("--from-first-row", action="store_true", help="hold that against the bar")
    result.add_argument("--data", type=Path, default=os.environ.get("BENCH_DATA"), help="where it writes")
    result.add_argument("--job", nargs=5, help=argparse.SUPPRESS)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
