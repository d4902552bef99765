"""``python -m bench.passes``: what several models in one pass save.

Models over the taxi rides: one alone; two in one pass over the files; and two jobs of one program, one after
the other. Each column of predictions must be the same whichever program made it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import data, jobs, measure, report, rounds, verify
from bench.report import Result, Row
from bench.rounds import Rounds

# As contenders/headrace_passes.py reads them; the first of each kind is one model alone.
PROGRAMS = {
    "linear": ("linear_0", "linear_0+linear_1", "linear_0,linear_1"),
    "mlp": ("mlp_0", "mlp_0+linear_0", "mlp_0,linear_0", "mlp_0+mlp_1", "mlp_0,mlp_1"),
}
CHEAP, BAR = "linear_0+linear_1", 1.3  # two cheap models in one pass cost at most so much of one alone


def main(arguments: Sequence[str] | None = None) -> int:
    options = rounds.settled(parser().parse_args(arguments))
    measure.adopt_orphans()
    notes = []
    names = list(PROGRAMS["linear"])
    if jobs.missing("torch"):
        notes.append("mlp left out: torch is not installed")
    else:
        names += PROGRAMS["mlp"]
    headrace = jobs.version(jobs.CONTENDERS["headrace"])
    headline = report.headline(options.rounds, options.scale, [f"headrace {headrace}"])
    print(headline, flush=True)
    results = {name: Result(name, "headrace_passes") for name in names}
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.data) as scratch:
        source = data.ensure("taxi", options.data, options.scale)
        run(results, Rounds(source, Path(scratch), options.timeout), options)
    print(table(results))
    notes += [f"{name} failed: {result.failure}" for name, result in results.items() if result.failure]
    notes += bar(results)
    for note in notes:
        print(f"note: {note}")
    if options.json:
        readings = [dataclasses.asdict(result) for result in results.values()]
        options.json.write_text(
            json.dumps({"headline": headline, "results": readings, "notes": notes}, indent=1)
        )
    return int(any(result.failure for result in results.values()))


def run(results: dict[str, Result], runs: Rounds, options: argparse.Namespace) -> None:
    """Each program, first checked, then timed."""
    expected: dict[str, verify.Output] = {}  # by model
    for _ in range(max(1, options.memory_rounds)):
        for name, result in results.items():
            if not result.failure and runs.measured(result):
                result.failure = difference(name, runs.out, expected)
    runs.timed(list(results.values()), options.rounds)


def difference(name: str, out: Path, expected: dict[str, verify.Output]) -> str | None:
    """What differs from an earlier program with the same model; a model's first output becomes the one expected."""
    for place, together in enumerate(name.split(",")):
        models = together.split("+")
        for model in models:
            found = verify.read(out / str(place), (model,), without=set(models) - {model})
            odd = verify.difference(expected.setdefault(model, found), found)
            if odd:
                return f"{model}: {odd}"
    return None


def table(results: dict[str, Result]) -> str:
    """One line per program. Every figure is a median, with (min–max) beside it."""
    head: Row = (
        "models",
        "passes",
        "wall s",
        "÷ one alone",
        "one pass ÷ two jobs",
        "CPU s",
        f"peak MiB ({measure.MEMORY_KIND})",
        "output MiB",
    )
    lines: list[Row | None] = [head]
    for names in PROGRAMS.values():
        shown = [line(name, results, names[0]) for name in names if name in results]
        lines += [None, *shown] if shown else []
    return report.align(lines)


def line(name: str, results: dict[str, Result], alone: str) -> Row:
    result = results[name]
    passes, models = str(name.count(",") + 1), name.replace("+", " + ").replace(",", ", ")
    if result.failure:
        return (models, passes, "failed", "", "", "", "", "")
    return (
        models,
        passes,
        report.spread([reading.wall_s for reading in result.rounds]),
        report.spread(report.ratios(result, results.get(alone))),
        report.spread(report.ratios(result, results.get(name.replace("+", ",")))) if "+" in name else "",
        report.median(reading.cpu_s for reading in result.rounds),
        f"{statistics.median(result.peaks) / 2**20:.0f}" if result.peaks else "",
        f"{result.output_bytes / 2**20:.1f}",
    )


def bar(results: dict[str, Result]) -> list[str]:
    ratios = report.ratios(results[CHEAP], results[PROGRAMS["linear"][0]])
    if not ratios:
        return []
    found = statistics.median(ratios)
    verdict = "met" if found <= BAR else "missed"
    return [f"two cheap models in one pass: {found:.2f} × one alone; the bar of {BAR} is {verdict}"]


def parser() -> argparse.ArgumentParser:
    return rounds.parser("python -m bench.passes", str(__doc__))


if __name__ == "__main__":
    sys.exit(main())
