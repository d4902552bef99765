"""``python -m bench.simulation``: how busy one driver keeps a thousand workers.

The real scheduler, runner, journal and publishing drive workers that are made up, on a virtual clock on which the
time that the driver takes passes, too. What an engine takes for a call and its answer is added: about a
millisecond on Ray.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from bench import given
from bench.simulated import Driven, Load, drive

BAR = 0.98


def main() -> int:
    options = parser().parse_args()
    load = Load(
        workers=options.workers,
        shards=options.shards,
        seconds=options.seconds,
        deaths=options.deaths,
        per_call=options.per_call / 1e3,
    )
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=options.data) as folder:
        driven = drive(load, Path(folder) / "out")
    print(told(load, driven))
    return int(driven.rows != load.shards or driven.busy < BAR)


def told(load: Load, driven: Driven) -> str:
    """The outcome in words."""
    engine = load.per_call * load.shards
    return (
        f"{load.workers:,} workers, {load.shards:,} shards of {load.seconds:g} s, {driven.deaths:,} deaths: workers "
        f"were busy for {driven.busy:.2%} of {driven.seconds:,.0f} s (bar: {BAR:.0%}). The driver took "
        f"{driven.per_shard(load) * 1e6:,.0f} µs for a shard, and {load.per_call * 1e6:,.0f} µs are added for the "
        f"engine: {(driven.driver_seconds + engine) / driven.seconds:.0%} of its time."
    )


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m bench.simulation", description=__doc__)
    result.add_argument("--workers", type=given.count, default=1_000)
    result.add_argument(
        "--shards", type=given.count, default=1_000_000, help="a million take some ten minutes (default)"
    )
    result.add_argument("--seconds", type=given.amount, default=10.0, help="that a shard takes, on average")
    result.add_argument(
        "--deaths", type=given.share, default=0.001, help="share of attempts that end their worker"
    )
    result.add_argument(
        "--per-call", type=given.spent, default=1.0, help="ms of the driver that an engine takes"
    )
    result.add_argument("--data", type=Path, default=os.environ.get("BENCH_DATA"), help="where it writes")
    return result


if __name__ == "__main__":
    raise SystemExit(main())
