"""``python -m bench.again``: what a second run of the same command does, here and in Ray Data and Daft.

Each program reads Parquet files, calls a function on batches of 100 rows, and writes its result. It is run

* once, killed with ``kill -9`` when the function has seen half of the rows, and once more;
* and, in a new folder, three times.

Then the rows of the output are counted, and the rows that the function saw. A program that writes every row once
has as many rows as ids. A call may cost money (a prompt): what the function saw beyond the rows was paid twice.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench import killed, measure
from bench.given import count

BATCH, SECONDS = 100, 0.2  # rows of a batch, and how long the function takes for it: time enough to kill

Batch = dict[str, Any]


def headrace(score: Callable[[Batch], Batch], source: str, out: str, state: str) -> None:
    import headrace as hr

    scored = hr.read_parquet(source).map_batches(score, batch_size=BATCH, concurrency=2)
    scored.with_options(progress=False).write_parquet(out)


def ray_data(score: Callable[[Batch], Batch], source: str, out: str, state: str) -> None:
    import ray

    start_ray()
    files = len(os.listdir(source))  # else the files are one block, which is lost whole
    read = ray.data.read_parquet(source, override_num_blocks=files)
    scored = read.map_batches(score, batch_size=BATCH, concurrency=2)
    scored.write_parquet(out)


def ray_checkpoint(
    score: Callable[[Batch], Batch], source: str, out: str, state: str, **options: bool
) -> None:
    import ray
    from ray.data.checkpoint import CheckpointConfig

    config = CheckpointConfig(id_column="id", checkpoint_path=state, **options)
    ray.data.DataContext.get_current().checkpoint_config = config
    ray_data(score, source, out, state)


def ray_checkpoint_kept(score: Callable[[Batch], Batch], source: str, out: str, state: str) -> None:
    ray_checkpoint(score, source, out, state, delete_checkpoint_on_success=False)


def scored_by_daft(score: Callable[[Batch], Batch], frame: Any) -> Any:
    import daft

    daft.set_execution_config(scan_tasks_min_size_bytes=0)  # else the files are one task, which is lost whole

    @daft.func.batch(return_dtype=daft.DataType.float64(), batch_size=BATCH)
    def value(ids: Any) -> Any:
        return score({"id": ids.to_arrow().to_numpy()})["score"]

    return frame.with_column("score", value(daft.col("id")))


def daft_parquet(score: Callable[[Batch], Batch], source: str, out: str, state: str) -> None:
    import daft

    scored_by_daft(score, daft.read_parquet(f"{source}/*.parquet")).write_parquet(out)


def daft_skip(score: Callable[[Batch], Batch], source: str, out: str, state: str) -> None:
    import daft

    daft_on_ray()
    frame = daft.read_parquet(f"{source}/*.parquet")
    if os.path.isdir(out):  # as of an empty folder no column is known
        frame = frame.skip_existing(out, key_column="id", file_format="parquet", num_workers=1)
    scored_by_daft(score, frame).write_parquet(out)


def daft_checkpoint(score: Callable[[Batch], Batch], source: str, out: str, state: str) -> None:
    import daft

    daft_on_ray()
    store = daft.CheckpointStore(f"file://{state}")
    settings = daft.KeyFilteringSettings(num_workers=1, cpus_per_worker=0.5)
    config = daft.CheckpointConfig(store=store, on="id", settings=settings)
    frame = daft.read_parquet(f"{source}/*.parquet", checkpoint=config)
    commit = daft.IdempotentCommit(store=store, idempotence_key="the-job")
    scored_by_daft(score, frame).write_deltalake(out, checkpoint=commit)


def start_ray() -> None:
    import ray

    ray.init(
        address="local",
        num_cpus=4,  # two for the function, the others for reads, writes and filters of keys
        object_store_memory=200 * 10**6,
        include_dashboard=False,
        log_to_driver=False,
    )


def daft_on_ray() -> None:
    import daft

    start_ray()
    daft.set_runner_ray(noop_if_initialized=True)


PROGRAMS = {
    "headrace": ("Headrace", headrace, ()),
    "ray": ("Ray Data", ray_data, ("ray",)),
    "ray-checkpoint": ("Ray Data, CheckpointConfig", ray_checkpoint, ("ray",)),
    "ray-checkpoint-kept": ("Ray Data, CheckpointConfig, kept", ray_checkpoint_kept, ("ray",)),
    "daft": ("Daft", daft_parquet, ("daft",)),
    "daft-skip": ("Daft, skip_existing", daft_skip, ("daft", "ray")),
    "daft-checkpoint": ("Daft, CheckpointConfig, Delta", daft_checkpoint, ("daft", "ray", "deltalake")),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=count, default=20, help="files of 100 rows (default 20)")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=[*PROGRAMS])
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)  # a program, and its folder
    options = parser.parse_args(arguments)
    if options.run:
        one(options.run[0], Path(options.run[1]))
        return 0
    measure.adopt_orphans()
    rows, failed = options.files * BATCH, False
    print(f"{rows:,} rows. Killed at half, then run again | the same command three times", flush=True)
    print(f"{'':34}{'rows':>7}{'ids':>7}{'calls':>8} |{'rows':>7}{'':14}{'calls':>8}", flush=True)
    for name in options.programs:
        title, _, packages = PROGRAMS[name]
        missing = [each for each in packages if importlib.util.find_spec(each) is None]
        if missing:
            print(f"{title:34}left out: {', '.join(missing)} is not installed", flush=True)
            continue
        try:
            print(f"{title:34}{line(name, options.files)}", flush=True)
        except RuntimeError as error:
            failed = True
            print(f"{title:34}failed: {error}", flush=True)
    return int(failed)


def line(name: str, files: int) -> str:
    """Run a program as the module says, and return its line of the table."""
    with tempfile.TemporaryDirectory(prefix="again-") as folder:
        here = prepared(Path(folder) / "killed", files)
        started = program(name, here)
        while started.poll() is None and calls(here) < files / 2:
            time.sleep(0.02)
        killed.kill(started)
        finish(name, here)
        found, ids = written(here)
        paid = calls(here) * BATCH
        here, each = prepared(Path(folder) / "thrice", files), []
        for _ in range(3):
            finish(name, here)
            each.append(written(here)[0])
        thrice = "".join(f"{rows:>7,}" for rows in each)
        return f"{found:>7,}{ids:>7,}{paid:>8,} |{thrice}{calls(here) * BATCH:>8,}"


def prepared(folder: Path, files: int) -> Path:
    (folder / "in").mkdir(parents=True)
    for number in range(files):
        ids = pa.array(range(number * BATCH, (number + 1) * BATCH), pa.int64())
        pq.write_table(pa.table({"id": ids}), folder / "in" / f"{number:03}.parquet")
    return folder


def one(name: str, folder: Path) -> None:
    """Run a program to its end, in this process."""
    log = str(folder / "calls")

    def score(batch: Batch) -> Batch:
        time.sleep(SECONDS)
        with open(log, "ab", buffering=0) as file:
            file.write(b"." * (len(batch["id"]) // BATCH))
        return {**batch, "score": batch["id"] * 0.5}

    PROGRAMS[name][1](score, str(folder / "in"), str(folder / "out"), str(folder / "state"))
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


def program(name: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.again", "--run", name, str(folder)]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def finish(name: str, folder: Path) -> None:
    process = program(name, folder)
    try:
        code = process.wait(300)
    except subprocess.TimeoutExpired:
        code = -1
    killed.kill(process)
    if code:
        last = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(f"exit status {code}: {' '.join(last)[:200]}")


def calls(folder: Path) -> int:
    """How many batches the function has seen."""
    log = folder / "calls"
    return log.stat().st_size if log.exists() else 0


def written(folder: Path) -> tuple[int, int]:
    """The rows of an output, and how many different ids they have."""
    out = folder / "out"
    if (out / "_delta_log").exists():
        from deltalake import DeltaTable

        found = DeltaTable(str(out)).to_pyarrow_table(columns=["id"])
    else:
        found = pa.concat_tables(
            [pq.read_table(path, columns=["id"]) for path in sorted(out.glob("*.parquet"))]
        )
    return found.num_rows, len(found["id"].unique())


if __name__ == "__main__":
    sys.exit(main())
