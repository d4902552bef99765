"""Runs side by side: in each round every program runs once, in an order that rotates from round to round."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import data, given, killed, measure
from bench.job import MOMENT
from bench.report import Result

Check = Callable[[Path], "str | None"]


@dataclass(frozen=True, slots=True)
class Rounds:
    """Runs programs on one data set, each time as a process of its own."""

    source: Path
    scratch: Path
    timeout: float
    module: str = (
        "bench.job"  # what is timed, with the contender, the job, the data and the output as arguments
    )

    @property
    def out(self) -> Path:
        """The output of the latest run."""
        return self.scratch / "out"

    def measured(self, result: Result) -> bool:
        """One untimed run, for the memory and the page cache. Says whether there is an output to look at."""
        if not self.once(result, sample_memory=True):
            return False
        files = [path for path in self.out.rglob("*") if path.is_file()]
        result.output_bytes = sum(path.stat().st_size for path in files if not hidden(path, self.out))
        return True

    def resumed(self, results: Sequence[Result], rounds: int, check: Check) -> None:
        """Rounds in which each program is killed and started again; the output of each is checked in the end."""
        for turn in range(rounds):
            able = [result for result in results if not result.failure]
            start = turn % len(able) if able else 0
            for result in able[start:] + able[:start]:
                reading = killed.resumed(self, result)
                if reading:
                    result.failure = check(self.out)
                    result.rounds.append(reading)

    def timed(self, results: Sequence[Result], rounds: int) -> None:
        """The timed rounds, of those that have not failed."""
        for turn in range(rounds):
            able = [result for result in results if not result.failure]
            start = turn % len(able) if able else 0
            for result in able[start:] + able[:start]:
                reading = self.once(result)
                if reading:
                    result.rounds.append(reading)

    def once(self, result: Result, *, sample_memory: bool = False) -> measure.Reading | None:
        """One run into a folder that is not there yet; None, and a reason in `result`, if it fails."""
        shutil.rmtree(self.out, ignore_errors=True)
        os.sync()  # nobody pays for writing back another's pages
        print(f"{result.job}: {result.contender} …", file=sys.stderr, end="", flush=True)
        begun = time.monotonic()
        try:
            reading = measure.run(
                self.command(result),
                cwd=data.ROOT,
                env=self.environment(),
                log=self.scratch / "log",
                timeout=self.timeout,
                sample_memory=sample_memory,
            )
            if (moment := self.out / MOMENT).exists():  # what counts is over before the program is
                reading = dataclasses.replace(reading, wall_s=float(moment.read_text()) - begun)
        except measure.RunFailed as error:
            result.failure = str(error)
            print(" failed", file=sys.stderr)
            return None
        if reading.peak_bytes is not None:
            result.peaks.append(reading.peak_bytes)
            result.whole_s.append(reading.wall_s)
        kind = f"{(reading.peak_bytes or 0) / 2**20:.0f} MiB, " if sample_memory else ""
        print(f" {kind}{reading.wall_s:.2f} s", file=sys.stderr)
        return reading

    def command(self, result: Result) -> list[str]:
        """What is run, and timed."""
        program = [sys.executable, "-m", self.module, result.contender, result.job]
        return [*program, str(self.source), str(self.out)]

    def environment(self) -> dict[str, str]:
        paths = [str(data.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # for workers, too
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def hidden(path: Path, root: Path) -> bool:
    """Say whether a file is none of the output's, but an engine's own."""
    return any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The options of every benchmark that goes in rounds."""
    result = argparse.ArgumentParser(prog=prog, description=description)
    result.add_argument("--rounds", type=given.count, default=5, help="timed runs of each (default 5)")
    result.add_argument("--memory-rounds", type=given.some, default=1, help="untimed runs (default 1)")
    result.add_argument("--scale", type=given.amount, default=1.0, help="of the rows (default 1.0)")
    result.add_argument("--quick", action="store_true", help="one round, 2 %% of the rows")
    result.add_argument("--timeout", type=given.amount, default=600.0, help="seconds for a run")
    result.add_argument("--json", type=Path, help="write every reading to this file")
    add_data(result)
    return result


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("BENCH_DATA", Path(__file__).parent / ".data")),
        help="where the data are kept and outputs written (default: bench/.data, or $BENCH_DATA)",
    )


def settled(options: argparse.Namespace) -> argparse.Namespace:
    """The options as they were meant, with a folder for the data that is there."""
    if options.quick:
        options.rounds, options.scale = 1, min(options.scale, 0.02)
    options.data = options.data.resolve()
    options.data.mkdir(parents=True, exist_ok=True)
    return options
