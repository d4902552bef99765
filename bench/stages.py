"""``python -m bench.stages``: whether two steps with workers of their own keep each other busy.

One step burns CPU on every core, the other waits for a device that is not there. A job cannot be faster than the
slower of the two, its ideal; what it takes beyond that is what it costs to bring them together. Where others use the
same cores, preparing takes longer through no fault of the contender: a second ideal counts their CPU time, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from bench import given, jobs, measure, report, rounds
from bench.device import Mix
from bench.report import Result, Row
from bench.rounds import Rounds

FACTOR, START = 1.10, 1.5  # the bar: wall ≤ 1.10 × ideal + 1.5 s
PREPARE_MS = 5.0  # of CPU per image: about what decoding and resizing a photograph takes

# Seconds of preparing on all cores, and of the device, for a job of one second.
MIXES = {"prepare-bound": (1.0, 0.4), "balanced": (1.0, 1.0), "predict-bound": (0.4, 1.0)}
CONTENDERS = {"headrace_device": "headrace", "ray_device": "ray.data"}
COUNTED = {"headrace_device"}  # whose CPU time we are told; Ray's daemon keeps that of its workers to itself


@dataclass(slots=True)
class Job:
    """One mix, and what its contenders' runs said of themselves."""

    name: str
    mix: Mix
    results: list[Result]
    prepared: dict[str, list[float]] = field(default_factory=dict)  # CPU seconds of preparing, by contender
    others: dict[str, list[float]] = field(default_factory=dict)  # CPU seconds that were not the run's

    def ideals(self, contender: str, *, beside_others: bool = False) -> list[float]:
        """Seconds that each run would take at best."""
        prepared, others = self.prepared[contender], self.others[contender]
        predict = self.mix.images * self.mix.predict_ms / 1000
        return [
            max((own + beside_others * foreign) / cores(), predict)
            for own, foreign in zip(prepared, others, strict=True)
        ]

    def beyond(self, result: Result, *, beside_others: bool = False) -> list[float]:
        """What each run took beyond 1.10 × ideal; the bar allows 1.5 s. Others' time gets no tenth on top."""
        ideals = self.ideals(result.contender)
        within = self.ideals(result.contender, beside_others=beside_others)
        return [
            reading.wall_s - (FACTOR - 1) * ideal - possible
            for reading, ideal, possible in zip(result.rounds, ideals, within, strict=True)
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = rounds.settled(parser().parse_args(arguments))
    measure.adopt_orphans()
    names = [name for name in options.contenders if not jobs.missing(CONTENDERS[name])]
    notes = [
        f"{name} left out: {CONTENDERS[name]} is not installed"
        for name in options.contenders
        if name not in names
    ]
    headline = report.headline(options.rounds, 1, [f"{n} {jobs.version(c)}" for n, c in versions(names)])
    print(headline, flush=True)
    todo = [
        Job(name, mix_of(name, options.seconds), [Result(name, each) for each in names])
        for name in options.mixes
    ]
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.data) as scratch:
        for job in todo:
            run(job, Path(scratch), options)
    print(table(todo))
    failures = [result for job in todo for result in job.results if result.failure]
    notes += [f"{each.job}: {each.contender} failed: {each.failure}" for each in failures]
    notes += bar(todo)
    for note in notes:
        print(f"note: {note}")
    if options.json:
        record = {"headline": headline, "jobs": [dataclasses.asdict(job) for job in todo], "notes": notes}
        options.json.write_text(json.dumps(record, indent=1))
    return int(bool(failures))


def mix_of(name: str, seconds: float) -> Mix:
    """A mix that takes about ``seconds`` on this machine's cores."""
    prepare, predict = MIXES[name]
    images = max(1, round(seconds * prepare * cores() / (PREPARE_MS / 1000)))
    return Mix(images, PREPARE_MS, seconds * predict * 1000 / images)


def cores() -> int:
    return (
        len(psutil.Process().cpu_affinity())
        if hasattr(psutil.Process, "cpu_affinity")
        else psutil.cpu_count()
    )


def versions(names: Sequence[str]) -> list[tuple[str, jobs.Contender]]:
    return [(name.split("_")[0], jobs.CONTENDERS[name.split("_")[0]]) for name in names]


def run(job: Job, scratch: Path, options: argparse.Namespace) -> None:
    """The timed rounds of one mix; every run's output is checked."""
    source = scratch / f"{job.name}.json"
    job.mix.save(source)
    runs = Rounds(source, scratch, options.timeout)
    for turn in range(options.rounds):
        able = [result for result in job.results if not result.failure]
        start = turn % len(able) if able else 0
        for result in able[start:] + able[:start]:
            before = busy()
            reading = runs.once(result)
            if reading is None:
                continue
            others = max(0.0, busy() - before - reading.cpu_s)
            prepared, result.failure = checked(runs.out, job.mix)
            result.rounds.append(reading)
            job.prepared.setdefault(result.contender, []).append(prepared)
            job.others.setdefault(result.contender, []).append(others)


def checked(out: Path, mix: Mix) -> tuple[float, str | None]:
    """The CPU seconds that preparing took, and what is wrong with the output, if anything."""
    found = pq.read_table(out, columns=["id", "prediction", "prepare_s"])
    ids, told = found["id"].to_numpy(), found["prediction"].to_numpy()
    seconds = float(found["prepare_s"].to_numpy().sum())
    if sorted(ids) != list(range(mix.images)):
        return seconds, f"{len(ids):,} rows, or other rows, instead of {mix.images:,}"
    return seconds, None if (ids == told).all() else "predictions beside the wrong rows"


def busy() -> float:
    """CPU seconds that anybody has used on this machine so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + getattr(times, "steal", 0.0))


def table(todo: Sequence[Job]) -> str:
    """One line per mix and contender. Every figure is a median, with (min–max) beside it."""
    head: Row = (
        "job",
        "contender",
        "wall s",
        "ideal s",
        "÷ ideal",
        "wall − 1.10 × ideal",
        "… beside others",
        "CPU s",
        "others' CPU s",
        "idle CPU s",
    )
    lines: list[Row | None] = [head]
    for job in todo:
        lines.append(None)
        lines += [line(job, result) for result in job.results]
    return report.align(lines)


def line(job: Job, result: Result) -> Row:
    name = result.contender.split("_")[0]
    if result.failure:
        return (job.name, name, "failed", "", "", "", "", "", "", "")
    walls, ideals = [reading.wall_s for reading in result.rounds], job.ideals(result.contender)
    others = job.others[result.contender]
    own = result.contender in COUNTED
    idle = [
        max(0.0, cores() * reading.wall_s - reading.cpu_s - foreign)
        for reading, foreign in zip(result.rounds, others, strict=True)
    ]
    return (
        job.name,
        name,
        report.spread(walls),
        report.spread(ideals),
        report.spread([wall / ideal for wall, ideal in zip(walls, ideals, strict=True)]),
        report.spread(job.beyond(result)),
        report.spread(job.beyond(result, beside_others=True)) if own else "",
        report.median(reading.cpu_s for reading in result.rounds) if own else "",
        report.median(others) if own else "",
        report.median(idle),
    )


def bar(todo: Sequence[Job]) -> list[str]:
    notes = []
    for job in todo:
        for result in job.results:
            if result.contender == "headrace_device" and not result.failure:
                found = statistics.median(job.beyond(result))
                beside = statistics.median(job.beyond(result, beside_others=True))
                verdict = (
                    "met" if found <= START else "missed" if beside > START else "missed, met beside others"
                )
                notes.append(
                    f"{job.name}: {found:+.2f} s beyond 1.10 × ideal, {beside:+.2f} s beside others; "
                    f"the bar of {START:+} s is {verdict}"
                )
    return notes


def parser() -> argparse.ArgumentParser:
    result = rounds.parser("python -m bench.stages", str(__doc__))
    result.set_defaults(rounds=1)
    result.add_argument(
        "--seconds", type=given.amount, default=60.0, help="that a job takes at best (default 60)"
    )
    result.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES), metavar="MIX")
    result.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME"
    )
    return result


if __name__ == "__main__":
    sys.exit(main())
