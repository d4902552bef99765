"""``python -m bench.scale``: what shards cost by themselves, and how soon a long run goes on.

Two figures that no table of jobs shows: the cost of 100,000 shards in which there is nothing to do, and the
time from the start of the driver to its first task when 1,000,000 shards are committed already.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench import given
from bench.measure import run

EMPTY = """
import time, headrace as hr
from headrace.sources.range import RangeSource
start = time.perf_counter()
ds = hr.Dataset.from_source(RangeSource({shards}, rows_per_split=1)).with_options(progress=False, shard_rows=1)
result = ds.filter(lambda row: False).write_parquet({out!r})
assert result.rows == 0 and result.ledger.read == {shards}
print(time.perf_counter() - start)
"""

RESUME = """
import sys, time
start = time.perf_counter()
import headrace as hr
from headrace.engines.local.pool import LocalPool
from headrace.sources.range import RangeSource

class FirstTask(BaseException):
    pass

def first_task(*args, **kwargs):
    print(time.perf_counter() - start)  # a run that ends writes its report first
    raise FirstTask

LocalPool.submit = first_task
source = RangeSource({shards}, rows_per_split=1)
try:
    hr.Dataset.from_source(source).with_options(progress=False, shard_rows=1).write_parquet({out!r})
except FirstTask:
    pass
"""


def empty_shards(shards: int, out: Path) -> tuple[float, float]:
    """Return milliseconds per shard and the peak MiB of the whole process tree."""
    seconds, peak = timed(EMPTY.format(shards=shards, out=str(out)))
    return seconds / shards * 1000, peak


def resume(shards: int, out: Path) -> tuple[float, float]:
    """Return seconds until the first task, and the peak MiB of the whole process tree."""
    commit_all_but_one(shards, out)
    return timed(RESUME.format(shards=shards, out=str(out)))


def commit_all_but_one(shards: int, out: Path) -> None:
    """Leave a run of which one shard is to do, by way of the library's own committer; each shard has a part."""
    import pyarrow as pa

    import headrace as hr
    from headrace.core.work import CommitRecord, Ledger, Task
    from headrace.output.job import OpenRequest
    from headrace.output.resume import open_job
    from headrace.plan.logical import Plan
    from headrace.plan.partitioning import Partitioning
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet
    from headrace.sources.range import RangeSource

    schema = pa.schema([pa.field("id", pa.int64())])
    plan = Plan(RangeSource(shards, rows_per_split=1)).into(FileSink(str(out), Parquet()))
    ways = Partitioning((0,), False, 0, 0, True, workers=2, shard_rows=1)  # as the program's below
    wish = OpenRequest("resume", "refuse", "process", ways, hr.__version__)
    try:
        with open_job(plan, wish) as job:
            committer = job.committer
            committer.settle(schema.serialize().to_pybytes())
            for shard in job.shards[:-1]:
                files = committer.sink.open(Task(shard, 0), schema).close()
                ledger = Ledger(1, 1, 0, ())
                committer.accept(CommitRecord(shard.index, 0, 0, files, ledger))
                if shard.index % 1000 == 0:
                    committer.commit_accepted()
            committer.commit_accepted()
            raise KeyboardInterrupt  # a driver that goes away before the end
    except KeyboardInterrupt:
        pass


def timed(program: str) -> tuple[float, float]:
    """Run a program that prints seconds; return them and the peak MiB of its process tree."""
    with tempfile.NamedTemporaryFile() as log:
        reading = run(
            [sys.executable, "-c", program],
            cwd=Path.cwd(),
            env=dict(os.environ),
            log=Path(log.name),
            timeout=1200,
            sample_memory=True,
        )
        return float(Path(log.name).read_text().split()[-1]), (reading.peak_bytes or 0) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--empty", type=given.some, default=100_000, help="shards without rows")
    parser.add_argument("--committed", type=given.some, default=1_000_000, help="shards committed before")
    parser.add_argument(
        "--data", type=Path, default=None, help="where to write (default: a temporary folder)"
    )
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="scale-", dir=options.data))
    try:
        cost, peak = empty_shards(options.empty, scratch / "empty")
        print(f"{options.empty:,} empty shards: {cost:.3f} ms each, peak {peak:.0f} MiB", flush=True)
        began = time.perf_counter()
        seconds, peak = resume(options.committed, scratch / "resume")
        made = time.perf_counter() - began - seconds
        print(
            f"{options.committed:,} committed shards: work goes on after {seconds:.1f} s, peak {peak:.0f} MiB "
            f"(making them took {made:.0f} s)"
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
