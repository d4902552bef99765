"""A job that is killed half-way and started again: how long until there are rows that were not there before."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench import data, jobs, measure, verify

if TYPE_CHECKING:
    from bench.report import Result
    from bench.rounds import Rounds

POLL_SECONDS = 0.02


def resumed(runs: Rounds, result: Result) -> measure.Reading | None:
    """Kill a program when a reader can see half of its rows; time its second run until more rows are there.

    One that shows none of them before its end is killed when half of its usual time is over.

    An engine that does not go on begins anew, in an empty folder: its first new row is the first of the half that was
    still to do.
    """
    shutil.rmtree(runs.out, ignore_errors=True)
    os.sync()
    print(f"{result.job}: {result.contender} …", file=sys.stderr, end="", flush=True)
    latest, first = time.perf_counter() + statistics.median(result.whole_s) / 2, Watch(runs.out)
    process = started(runs, result)
    while process.poll() is None and first.rows() < result.rows / 2:
        if time.perf_counter() > latest and not first.seen:
            break
        time.sleep(POLL_SECONDS)
    kill(process)
    before = Watch(runs.out).rows()
    if not jobs.CONTENDERS[result.contender].resumes:
        shutil.rmtree(runs.out, ignore_errors=True)
    os.sync()
    begun, spent = time.perf_counter(), children_s()
    process = started(runs, result)
    watchdog = threading.Timer(runs.timeout, process.kill)
    watchdog.start()
    seconds, watch = None, Watch(runs.out)
    while process.poll() is None:
        if seconds is None and watch.rows() > before:
            seconds = time.perf_counter() - begun
        time.sleep(POLL_SECONDS)
    watchdog.cancel()
    whole = time.perf_counter() - begun
    measure.reap_orphans()
    cpu = children_s() - spent
    if process.returncode != 0:
        result.failure = "\n".join((runs.scratch / "log").read_text(errors="replace").splitlines()[-8:])
        print(" failed", file=sys.stderr)
        return None
    seconds = whole if seconds is None else seconds
    print(f" {before:,} rows at the kill, more after {seconds:.2f} s", file=sys.stderr)
    result.rows_before.append(before)
    result.whole_again_s.append(whole)
    return measure.Reading(seconds, cpu, None)


def children_s() -> float:
    """CPU seconds of all processes that ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def started(runs: Rounds, result: Result) -> subprocess.Popen[bytes]:
    with (runs.scratch / "log").open("wb") as log:
        process = subprocess.Popen(
            runs.command(result),
            cwd=data.ROOT,
            env=runs.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    measure.keep_niceness(process)
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 for the program and all of its processes, wherever they are."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in [*psutil.Process().children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
    process.wait()
    measure.reap_orphans()


class Watch:
    """Counts the rows of a folder that a reader can see; a file that is whole is looked at once."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.seen: dict[tuple[str, int], int] = {}

    def rows(self) -> int:
        if not self.out.exists():
            return 0
        total = 0
        with contextlib.suppress(OSError):
            for path in verify.parts(self.out):
                with contextlib.suppress(pa.ArrowException, OSError):
                    key = str(path), path.stat().st_ino
                    if key not in self.seen:
                        self.seen[key] = pq.read_metadata(path).num_rows
                    total += self.seen[key]
        return total
