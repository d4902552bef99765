"""``python -m bench.uneven``: how near workers come to the ideal where rows differ in what they cost.

Each row waits for as long as it is said to cost, so other work on the machine does not count much. The ideal is what
workers would take who knew all costs: each takes the row that costs most of those that are left. Workers start more
slowly where other work runs, so two more shares are told: from the first row on (`--from-first-row` holds that
against the bar), and as if each worker had begun with the first.
"""

from __future__ import annotations

import argparse
import contextlib
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
    "limit": (images, GROUPS * ROWS // 2),  # images, of which a limit takes some
}
LIMIT = 400


# ---------------------------------------------------------------- the job


def wait(seconds: float, first: str) -> None:
    """Wait, less by as much as this process was woken too late before: others may have the cores.

    The folder ``first`` gets the time of each worker's first row.
    """
    global _late
    if _late is None:
        _late = 0.0
        (Path(first) / str(os.getpid())).write_text(repr(time.time()))
    began = time.perf_counter()
    time.sleep(max(0.0, seconds - _late))
    _late += time.perf_counter() - began - seconds


_late: float | None = None


def waited(row: dict[str, Any], first: str) -> dict[str, Any]:
    wait(row["seconds"], first)
    return {"id": row["id"]}


def waited_image(row: dict[str, Any], first: str) -> dict[str, Any]:
    (high, low, _), (third, second, last) = row["image"][0, :2].tolist()
    wait((third << 16 | second << 8 | last) * 1e-6, first)
    return {"id": high << 8 | low}


def pieces(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for piece in range(10):
        yield {"id": row["id"] * 10 + piece, "seconds": row["seconds"] / 10}


def waited_pieces(batch: dict[str, Any], first: str) -> dict[str, Any]:
    wait(batch["seconds"].sum(), first)
    return {"id": batch["id"]}


def job(kind: str, source: str, first: str, out: str, workers: int, engine: str) -> None:
    import pyarrow.parquet  # noqa: F401 - the run is timed, not this

    import headrace as hr

    if engine == "ray":
        import ray

        ray.init(log_to_driver=False)
    if kind == "json_lines":
        data = hr.read_json(source).map(waited, fn_args=[first])
    elif kind in ("images", "limit"):
        data = hr.read_images(source).map(waited_image, fn_args=[first])
        data = data.limit(LIMIT) if kind == "limit" else data
    elif kind == "documents":
        data = hr.read_parquet(source).flat_map(pieces)
        data = data.map_batches(waited_pieces, batch_size=4, fn_args=[first])
    else:
        data = hr.read_parquet(source).map(waited, fn_args=[first])
    began = time.time()
    data.with_options(workers=workers, engine=engine, progress=False).write_parquet(out)
    ended = time.time()
    firsts = [float(each.read_text()) for each in Path(first).iterdir()]
    print(ended - began, ended - min(firsts), ended - statistics.mean(firsts))


@contextlib.contextmanager
def nodes(count: int, workers: int) -> Iterator[None]:
    """Have so many nodes of Ray on this machine, with a core for each of the workers; 0: none."""
    if not count:
        yield
        return
    from ray.cluster_utils import Cluster

    has = {"num_cpus": -(-workers // count)}
    cluster = Cluster(initialize_head=True, head_node_args=has)
    try:
        for _ in range(count - 1):
            cluster.add_node(**has)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield
    finally:
        del os.environ["RAY_ADDRESS"]
        cluster.shutdown()


def timed(kind: str, source: Path, rows: int, workers: int, engine: str) -> list[float]:
    """Run a job in a process of its own; return the seconds of the run, from its first row on, and without starts."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        out, first = os.path.join(folder, "out"), os.path.join(folder, "first")
        os.mkdir(first)
        job = [kind, str(source), first, out, str(workers), engine]
        argv = [sys.executable, "-m", "bench.uneven", "--job", *job]
        ended = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
        took = [*map(float, ended.stdout.split()[-3:])]
        ids = pq.read_table(out)["id"].to_pylist()
        expected = list(range(LIMIT if kind == "limit" else rows * 10 if kind == "documents" else rows))
        if ids != expected:
            raise SystemExit(f"{kind}: rows are missing, or in another order")
    return took


def main() -> int:
    options = parser().parse_args()
    if options.job:
        kind, source, first, out, workers, engine = options.job
        job(kind, source, first, out, int(workers), engine)
        return 0
    failed = False
    with tempfile.TemporaryDirectory(prefix="uneven-", dir=options.data) as folder:
        for workers in options.workers:
            with nodes(options.nodes, workers):
                for kind, shape in itertools.product(options.inputs, options.shapes):
                    failed |= missed(kind, shape, workers, Path(folder), options)
    return int(failed)


def missed(kind: str, shape: str, workers: int, folder: Path, options: argparse.Namespace) -> bool:
    """Run a job some times, print a line, and say whether it missed the bar."""
    make, rows = INPUTS[kind]
    seconds = costs(shape, rows, workers)
    source = folder / f"{kind}-{shape}-{workers}"
    source.mkdir()
    make(source, seconds)
    engine, best = "ray" if options.nodes else "local", ideal(seconds, workers)
    bar = options.bar
    if (
        kind == "limit"
    ):  # workers are at rows behind it when it is reached; but several are no slower than one
        best, bar = sum(seconds[:LIMIT]) / workers, workers
    tries = [timed(kind, source, rows, workers, engine) for _ in range(options.tries)]
    whole, from_first, without_starts = (statistics.median(each) / best for each in zip(*tries, strict=True))
    print(
        f"{kind:12} {shape:10} {workers} workers, ideal {best:6.2f} s: {whole:.2f}, "
        f"from the first row on {from_first:.2f}, without starts {without_starts:.2f} (bar: {bar:g})",
        flush=True,
    )
    return bool((from_first if options.from_first_row else whole) > bar)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m bench.uneven", description=__doc__)
    result.add_argument("--inputs", nargs="+", choices=INPUTS, default=list(INPUTS))
    result.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    result.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    result.add_argument("--nodes", type=int, default=0, help="on Ray, on so many nodes")
    result.add_argument("--tries", type=int, default=1)
    result.add_argument("--bar", type=float, default=BAR)
    result.add_argument("--from-first-row", action="store_true", help="hold that against the bar")
    result.add_argument("--data", type=Path, default=os.environ.get("BENCH_DATA"), help="where it writes")
    result.add_argument("--job", nargs=6, help=argparse.SUPPRESS)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
