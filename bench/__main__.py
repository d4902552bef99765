"""``python -m bench``: runs every contender at every job and prints one table.

For each job: one untimed run of every contender, which is checked against the baseline's output
and whose memory is sampled; then the timed rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import data, jobs, measure, report, rounds, verify
from bench.jobs import CONTENDERS, JOBS, Contender, Job
from bench.report import Result
from bench.rounds import Rounds

BASELINE = "hand"


def main(arguments: Sequence[str] | None = None) -> int:
    options = rounds.settled(parser().parse_args(arguments))
    measure.adopt_orphans()

    contenders, notes = able(options.contenders)
    print(headline(contenders, options), flush=True)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.data) as scratch:
        for name in options.jobs:
            job = JOBS[name]
            lacking = [module for module in job.needs if jobs.missing(module)]
            if lacking:
                notes.append(f"{name} left out: {', '.join(lacking)} is not installed")
                continue
            source = data.ensure(job.dataset, options.data, options.scale)
            taking_part = [c for c in contenders if not c.jobs or name in c.jobs]
            results += run(job, taking_part, Rounds(source, Path(scratch), options.timeout), options)
            write(results, contenders, notes, options)
    print(report.table(results, BASELINE, options.price_per_hour) if results else "nothing to run")
    notes += [f"{r.job}: {r.contender} failed: {r.failure}" for r in results if r.failure]
    for note in notes:
        print(f"note: {note}")
    write(results, contenders, notes, options)
    return int(any(result.failure for result in results))


def run(job: Job, contenders: Sequence[Contender], runs: Rounds, options: argparse.Namespace) -> list[Result]:
    """One job's contenders: first checked, then timed."""
    results = [Result(job.name, contender.name) for contender in contenders]
    expected: verify.Output | None = None
    for _ in range(max(1, options.memory_rounds)):
        for result in results:
            if result.failure or not runs.measured(result):
                continue
            if job.kind == "first row":
                result.failure = verify.first_row_wrong(runs.out, runs.source)
                continue
            found = verify.read(runs.out, job.predicted)
            expected = expected or found
            result.rows = found.rows
            result.failure = verify.difference(expected, found)
    if job.kind == "resume" and expected is not None:
        wanted = expected
        runs.resumed(
            results, options.rounds, lambda out: verify.difference(wanted, verify.read(out, job.predicted))
        )
    else:
        runs.timed(results, options.rounds)
    for result in results:
        result.scale, result.measured = options.scale, f"{datetime.date.today()}"
        result.load = round(os.getloadavg()[1], 1)
    return results


def able(names: Sequence[str]) -> tuple[list[Contender], list[str]]:
    """Those contenders that can run here, and a note for each that cannot."""
    reasons = {name: jobs.why_not(CONTENDERS[name]) for name in names}
    notes = [f"{name} left out: {reason}" for name, reason in reasons.items() if reason]
    return [CONTENDERS[name] for name, reason in reasons.items() if not reason], notes


def headline(contenders: Sequence[Contender], options: argparse.Namespace) -> str:
    versions = [f"{c.name} {v}" for c in contenders if (v := jobs.version(c))]
    return report.headline(options.rounds, options.scale, versions)


def write(
    results: Sequence[Result],
    contenders: Sequence[Contender],
    notes: Sequence[str],
    options: argparse.Namespace,
) -> None:
    """Write what there is so far, after each job; with ``--merge``, beside what the file has of others."""
    if not options.json:
        return
    made = record(results, contenders, notes, options)
    if options.merge and options.json.exists():
        old = json.loads(options.json.read_text())
        new = {(result.job, result.contender) for result in results}
        kept = [each for each in old["results"] if (each["job"], each["contender"]) not in new]
        order = list(JOBS)
        every = sorted([*kept, *made["results"]], key=lambda each: order.index(each["job"]))  # type: ignore[misc]
        made |= {"results": every, "versions": old["versions"] | made["versions"]}  # type: ignore[operator]
    options.json.write_text(json.dumps(made, indent=1) + "\n")


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
        "machine": report.machine(),
        "load": round(os.getloadavg()[2], 1),  # of the last quarter of an hour, this benchmark's own among it
        "versions": {c.name: jobs.version(c) for c in contenders},
        "results": [dataclasses.asdict(result) for result in results],
        "notes": list(notes),
    }


def parser() -> argparse.ArgumentParser:
    result = rounds.parser("python -m bench", str(__doc__))
    result.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB")
    result.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME"
    )
    result.add_argument("--merge", action="store_true", help="keep what the JSON file has of other jobs")
    result.add_argument(
        "--price-per-hour",
        type=float,
        help="of the machine, in any currency: adds the price of a million rows",
    )
    return result


if __name__ == "__main__":
    sys.exit(main())
