"""``python -m bench``: runs every contender at every job and prints one table.

For each job: one untimed run of every contender, which is checked against the baseline's output
and whose memory is sampled; then the timed rounds, in each of which every contender runs once, in
an order that rotates from round to round.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import data, jobs, measure, report, verify
from bench.jobs import CONTENDERS, JOBS, Contender, Job
from bench.report import Result

BASELINE = "hand"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.quick:
        options.rounds, options.scale = 1, min(options.scale, 0.02)
    cache = options.data.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    measure.adopt_orphans()

    contenders, notes = able(options.contenders)
    print(headline(contenders, options), flush=True)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="run-", dir=cache) as scratch:
        for name in options.jobs:
            job = JOBS[name]
            lacking = [module for module in job.needs if jobs.missing(module)]
            if lacking:
                notes.append(f"{name} left out: {', '.join(lacking)} is not installed")
                continue
            source = data.ensure(job.dataset, cache, options.scale)
            taking_part = [c for c in contenders if not c.jobs or name in c.jobs]
            bench = Bench(source, Path(scratch), options)
            results += bench.run(job, taking_part)
    print(report.table(results, BASELINE) if results else "nothing to run")
    notes += [f"{r.job}: {r.contender} failed: {r.failure}" for r in results if r.failure]
    for note in notes:
        print(f"note: {note}")
    if options.json:
        options.json.write_text(json.dumps(record(results, contenders, notes, options), indent=1))
    return int(any(result.failure for result in results))


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """Runs one job's contenders against one data set."""

    source: Path
    scratch: Path
    options: argparse.Namespace

    def run(self, job: Job, contenders: Sequence[Contender]) -> list[Result]:
        results = {c.name: Result(job.name, c.name) for c in contenders}
        self.check(job, results)
        for turn in range(self.options.rounds):
            names = [name for name, result in results.items() if not result.failure]
            start = turn % len(names) if names else 0
            for name in names[start:] + names[:start]:
                reading = self.once(results[name])
                if reading:
                    results[name].rounds.append(reading)
        return list(results.values())

    def check(self, job: Job, results: dict[str, Result]) -> None:
        """The untimed runs: memory, the page cache, and whether the outputs agree."""
        expected: verify.Digest | None = None
        for _ in range(max(1, self.options.memory_rounds)):
            for result in results.values():
                if result.failure or not self.once(result, sample_memory=True):
                    continue
                files = [path for path in self.out.rglob("*") if path.is_file()]
                result.output_bytes = sum(path.stat().st_size for path in files)
                found = verify.digest(self.out, job.checked)
                expected = expected or found
                result.failure = verify.difference(expected, found)

    @property
    def out(self) -> Path:
        return self.scratch / "out"

    def once(self, result: Result, *, sample_memory: bool = False) -> measure.Reading | None:
        """One run in a process of its own, into a folder that is not there yet."""
        shutil.rmtree(self.out, ignore_errors=True)
        os.sync()  # nobody pays for writing back another's pages
        print(f"{result.job}: {result.contender} …", file=sys.stderr, end="", flush=True)
        paths = [str(data.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # for workers, too
        program = (sys.executable, "-m", "bench.job", result.contender, result.job)
        try:
            reading = measure.run(
                (*program, str(self.source), str(self.out)),
                cwd=data.ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                log=self.scratch / "log",
                timeout=self.options.timeout,
                sample_memory=sample_memory,
            )
        except measure.RunFailed as error:
            result.failure = str(error)
            print(" failed", file=sys.stderr)
            return None
        if reading.peak_bytes is not None:
            result.peaks.append(reading.peak_bytes)
        kind = f"{(reading.peak_bytes or 0) / 2**20:.0f} MiB, " if sample_memory else ""
        print(f" {kind}{reading.wall_s:.2f} s", file=sys.stderr)
        return reading


def able(names: Sequence[str]) -> tuple[list[Contender], list[str]]:
    """Those contenders that can run here, and a note for each that cannot."""
    reasons = {name: jobs.why_not(CONTENDERS[name]) for name in names}
    notes = [f"{name} left out: {reason}" for name, reason in reasons.items() if reason]
    return [CONTENDERS[name] for name, reason in reasons.items() if not reason], notes


def headline(contenders: Sequence[Contender], options: argparse.Namespace) -> str:
    versions = [f"{c.name} {v}" for c in contenders if (v := jobs.version(c))]
    machine = f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"
    return (
        f"{options.rounds} rounds at scale {options.scale:g}; {machine}; "
        f"Python {platform.python_version()}, {', '.join(versions)}"
    )


def record(
    results: Sequence[Result],
    contenders: Sequence[Contender],
    notes: Sequence[str],
    options: argparse.Namespace,
) -> dict[str, object]:
    """Everything that was measured, for a program to read."""
    return {
        "headline": headline(contenders, options),
        "scale": options.scale,
        "memory": measure.MEMORY_KIND,
        "versions": {c.name: jobs.version(c) for c in contenders},
        "results": [dataclasses.asdict(result) for result in results],
        "notes": list(notes),
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    result.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB")
    result.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME"
    )
    result.add_argument("--rounds", type=int, default=5, help="timed runs of each (default 5)")
    result.add_argument("--memory-rounds", type=int, default=1, help="untimed runs (default 1)")
    result.add_argument("--scale", type=float, default=1.0, help="of the rows (default 1.0)")
    result.add_argument("--quick", action="store_true", help="one round, 2 %% of the rows")
    result.add_argument("--timeout", type=float, default=600.0, help="seconds for a run")
    result.add_argument("--json", type=Path, help="write every reading to this file")
    result.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("BENCH_DATA", Path(__file__).parent / ".data")),
        help="where the data are kept and outputs written (default: bench/.data, or $BENCH_DATA)",
    )
    return result


if __name__ == "__main__":
    sys.exit(main())
