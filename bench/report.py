"""The table: medians over the rounds, and ratios taken within each round."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.measure import MEMORY_KIND, Reading

Row = tuple[str, ...]


@dataclass(slots=True)
class Result:
    """The readings of one contender at one job."""

    job: str
    contender: str
    rounds: list[Reading] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    output_bytes: int = 0
    failure: str | None = None


def headline(rounds: int, scale: float, versions: Sequence[str]) -> str:
    machine = f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"
    return f"{rounds} rounds at scale {scale:g}; {machine}; Python {platform.python_version()}, {', '.join(versions)}"


def table(results: Sequence[Result], baseline: str) -> str:
    """One line per job and contender. Every figure is a median, with (min–max) beside it."""
    head: Row = (
        "job",
        "contender",
        "wall s",
        f"÷ {baseline}",
        "headrace ÷ it",
        "CPU s",
        f"peak MiB ({MEMORY_KIND})",
        "output MiB",
    )
    lines: list[Row | None] = [head]
    for job in dict.fromkeys(result.job for result in results):
        at_job = {result.contender: result for result in results if result.job == job}
        lines.append(None)
        for result in at_job.values():
            lines.append(line(result, at_job.get(baseline), at_job.get("headrace")))
    return align(lines)


def line(result: Result, base: Result | None, ours: Result | None) -> Row:
    if result.failure:
        return (result.job, result.contender, "failed", "", "", "", "", "")
    walls = [reading.wall_s for reading in result.rounds]
    return (
        result.job,
        result.contender,
        spread(walls),
        spread(ratios(result, base)),
        "" if result is ours else spread(ratios(ours, result)),
        median(reading.cpu_s for reading in result.rounds),
        f"{statistics.median(result.peaks) / 2**20:.0f}" if result.peaks else "",
        f"{result.output_bytes / 2**20:.1f}",
    )


def ratios(above: Result | None, below: Result | None) -> list[float]:
    """`above` divided by `below`, round by round: both ran in the same minute."""
    if above is None or below is None or above.failure or below.failure:
        return []
    pairs = zip(above.rounds, below.rounds, strict=True)
    return [first.wall_s / second.wall_s for first, second in pairs]


def spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def median(values: Iterable[float]) -> str:
    figures = list(values)
    return f"{statistics.median(figures):.2f}" if figures else ""


def align(lines: Sequence[Row | None]) -> str:
    """Names to the left, figures to the right; None draws a rule."""
    rows = [row for row in lines if row is not None]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rule = "  ".join("─" * width for width in widths)
    return "\n".join(
        rule
        if row is None
        else "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    )
