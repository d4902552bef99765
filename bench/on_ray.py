"""``python -m bench.on_ray``: Headrace on Ray beside Ray Data, on the same Ray of as many CPUs as this machine has.

Two clocks for both: the whole program, and what is left when Ray has started. Workers are started, models loaded
and outputs committed within both. The jobs in ``jobs.WAITING`` run on four nodes of this machine, each with two CPUs
and a device, for which a model waits instead of computing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import data, jobs, measure, report, rounds, verify
from bench.jobs import JOBS, NODES, WAITING, Job
from bench.report import Result
from bench.rounds import Rounds

OURS, THEIRS = "headrace_ray", "ray"
BARS = {"taxi_parity": 1 / 1.5, "taxi_mlp": 1 / 1.5, "wide": 1 / 1.5, "images": 1.1}
BARS |= dict.fromkeys(WAITING, 1 / 3)


@dataclasses.dataclass(frozen=True, slots=True)
class Timed(Rounds):
    """Rounds of programs that say how long they took after Ray had started."""

    after_start: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def once(self, result: Result, *, sample_memory: bool = False) -> measure.Reading | None:
        # No super() without arguments here: slots make a class of their own.
        reading = Rounds.once(self, result, sample_memory=sample_memory)
        if reading and not sample_memory:
            last = (self.scratch / "log").read_text().strip().splitlines()[-1]
            self.after_start.setdefault(result.contender, []).append(json.loads(last)["seconds"])
        return reading


def program(contender: str, job: str, source: str, out: str) -> None:
    """What is timed."""
    module = importlib.import_module(f"bench.contenders.{contender}")
    with nodes() if job in WAITING else contextlib.nullcontext(module.start()):
        begun = time.perf_counter()
        module.run(job, source, out)
        seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds}), flush=True)


@contextlib.contextmanager
def nodes() -> Iterator[None]:
    """Be connected to nodes that have two CPUs and a device each."""
    import ray
    from ray.cluster_utils import Cluster

    has = {"num_cpus": 2, "num_gpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args={**has, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**has)
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    options = rounds.settled(parser().parse_args(arguments))
    measure.adopt_orphans()
    if jobs.missing("ray.data"):
        print("nothing to run: ray.data is not installed")
        return 0
    missed = 0
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.data) as scratch:
        for job in [{**JOBS, **WAITING}[name] for name in options.jobs]:
            lacking = [module for module in job.needs if jobs.missing(module)]
            if lacking:
                print(f"{job.name} left out: {', '.join(lacking)} is not installed")
                continue
            source = data.ensure(job.dataset, options.data, options.scale)
            missed += beside(job, Timed(source, Path(scratch), options.timeout, "bench.on_ray"), options)
    return int(bool(missed))


def beside(job: Job, runs: Timed, options: argparse.Namespace) -> bool:
    """Run both at one job, print a line for each; say whether ours failed, or missed the bar."""
    results = [Result(job.name, name) for name in (OURS, THEIRS)]
    expected: verify.Output | None = None
    for result in results:
        if runs.measured(result):
            found = verify.read(runs.out, job.predicted)
            expected = expected or found
            result.failure = verify.difference(expected, found)
    runs.timed(results, options.rounds)
    for result in results:
        print(told(result, runs))
    if any(result.failure for result in results):
        return True
    pairs = zip(runs.after_start[OURS], runs.after_start[THEIRS], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    whole = statistics.median(report.ratios(*results))
    memory = results[0].peaks[0] / results[1].peaks[0]
    cpu = statistics.median(
        one.cpu_s / two.cpu_s for one, two in zip(*(each.rounds for each in results), strict=True)
    )
    print(
        f"{job.name:12} {OURS} ÷ {THEIRS}: {ratio:.2f} after Ray's start (bar: {BARS[job.name]:.2f}), "
        f"{whole:.2f} in all, {cpu:.2f} of the CPU, {memory:.2f} of the memory"
    )
    return ratio > BARS[job.name]


def told(result: Result, runs: Timed) -> str:
    if result.failure:
        return f"{result.job:12} {result.contender:12} failed: {result.failure}"
    return (
        f"{result.job:12} {result.contender:12} {report.spread(runs.after_start[result.contender])} s after Ray's "
        f"start, {report.spread([reading.wall_s for reading in result.rounds])} s in all, "
        f"peak {result.peaks[0] / 2**20:.0f} MiB ({measure.MEMORY_KIND})"
    )


def parser() -> argparse.ArgumentParser:
    result = rounds.parser("python -m bench.on_ray", __doc__ or "")
    result.add_argument("--jobs", nargs="+", choices=BARS, default=list(BARS))
    return result


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in (OURS, THEIRS):
        program(*sys.argv[1:])
    else:
        raise SystemExit(main())
