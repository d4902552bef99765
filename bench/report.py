"""The table: medians over the rounds, and ratios taken within each round."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

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
    rows: int = 0
    scale: float = 1.0
    measured: str = ""  # the day
    load: float = 0.0  # the load average of the last five minutes, this benchmark's own among it
    whole_s: list[float] = field(default_factory=list)  # of the untimed runs
    rows_before: list[int] = field(default_factory=list)  # where a run was killed: what was there
    whole_again_s: list[float] = field(default_factory=list)  # and how long the second took in all
    failure: str | None = None


def headline(rounds: int, scale: float, versions: Sequence[str]) -> str:
    machine = f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"
    often = "1 round" if rounds == 1 else f"{rounds} rounds"
    return f"{often} at scale {scale:g}; {machine}; Python {platform.python_version()}, {', '.join(versions)}"


def machine() -> dict[str, object]:
    """What is known of the machine."""
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": model or platform.processor(),
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": [round(each, 1) for each in os.getloadavg()],
    }


def price(seconds: float, rows: int, per_hour: float) -> float:
    """What a million rows cost on a machine that has a price per hour.

    >>> price(36, 2_000_000, 1.0)
    0.005
    """
    return seconds / 3600 * per_hour / rows * 1_000_000 if rows else 0.0


def table(results: Sequence[Result], baseline: str, per_hour: float | None = None) -> str:
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
        *(["price per million rows"] if per_hour else []),
    )
    lines: list[Row | None] = [head]
    for job in dict.fromkeys(result.job for result in results):
        at_job = {result.contender: result for result in results if result.job == job}
        lines.append(None)
        for result in at_job.values():
            lines.append(line(result, at_job.get(baseline), at_job.get("headrace"), per_hour))
    return align(lines)


def line(result: Result, base: Result | None, ours: Result | None, per_hour: float | None) -> Row:
    if result.failure:
        return (result.job, result.contender, "failed", "", "", "", "", "", *([""] if per_hour else []))
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
        *([f"{price(statistics.median(walls), result.rows, per_hour):.4f}"] if per_hour and walls else []),
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
