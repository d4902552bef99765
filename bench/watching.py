"""``python -m bench.watching``: what progress, record and report add to the smallest job.

``python -m bench.watching --page`` runs a job in pairs, with and without ``watch=True``, whose page is asked for as
an open browser does. ``--rows`` says how long it is: 6,000,000 take five seconds of two cores, 40,000,000 half a
minute. The bar is 1 % of the run's CPU time, by the median of what the driver's process uses more. What the workers
use is told beside it: the page is nothing to them, so that shows how much two equal runs differ.

A hundred rows, each run a fresh process with standard error on a pseudo-terminal, by turns with nothing, with one of
the three and with all of them. What is left out is not even imported. The bar is 10 ms of wall time for all, by the
median of the differences within rounds. CPU seconds, of all processes of the run, say what is behind it where others
work on the machine, too; `--under "nice -n -15"` or `--under "chrt -f 10"` keeps these away where one may, and
`--data /dev/shm` what they write.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import pty
import random
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import data, given

PARTS = ("progress", "record", "report")
BAR = 0.010

PROGRAM = """
import sys, types
parts, data, out = sys.argv[1].split("+"), sys.argv[2], sys.argv[3]

class Nothing:
    def __init__(self, *_, **__): pass
    def on_event(self, event): pass

if "record" not in parts:
    stub = types.ModuleType("headrace.observers.record")
    stub.Record, stub.EVENTS = Nothing, "events.jsonl"
    sys.modules[stub.__name__] = stub
if "report" not in parts:
    import contextlib
    from headrace.annex.report import writing as reporting
    reporting.write_report, reporting.assets_loaded = (lambda *_, **__: None), contextlib.nullcontext
from bench.contenders.headrace import predictions
predictions("tiny", data).with_options(progress=None if "progress" in parts else False).write_parquet(out)
"""


PAGE_BAR = 0.01
WATCHED = """
import resource, sys
import numpy as np
import headrace as hr

watch, rows, out = sys.argv[1] == "True", int(sys.argv[2]), sys.argv[3]
weights = np.random.default_rng(0).normal(size=(64, 64))

def model(batch):
    x = np.repeat(batch["id"][:, None] / rows, 64, 1)
    for _ in range(4):
        x = np.tanh(x @ weights)
    return x.sum(1)

data = hr.range(rows).predict(model, inputs=["id"], output="score", batch_size=4096)
data.with_options(watch=watch, progress=False, workers=2).write_parquet(out)
print(*(sum(resource.getrusage(whose)[:2]) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""


class Watched(NamedTuple):
    """The seconds that a job took: by the wall's clock, and of CPUs in its driver and in its workers."""

    wall: float
    driver: float
    workers: float


def watched(watch: bool, rows: int, out: Path) -> Watched:
    """Run a job once, and ask for its page as a browser does."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    env = {**os.environ, "PYTHONPATH": str(data.ROOT / "src"), "OMP_NUM_THREADS": "1"}
    before = time.perf_counter()
    command = [sys.executable, "-c", WATCHED, str(watch), str(rows), str(out)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None and run.stdout is not None
        for line in run.stderr:
            if line.startswith("watch: "):
                browser = threading.Thread(target=browse, args=(line.split()[1],), daemon=True)
                browser.start()
        used = run.stdout.read()
    if run.returncode:
        raise RuntimeError(f"the run ended with {run.returncode}")
    driver, workers = map(float, used.split())
    return Watched(time.perf_counter() - before, driver, workers)


def browse(address: str) -> None:
    """Ask for one page after the other until one says that the run has ended, as the page's script does."""
    page = b""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while b'data-live="ended"' not in page:
            with urllib.request.urlopen(f"{address}?next", timeout=60) as answer:
                page = answer.read()


def compared(rounds: int, rows: int, place: Path) -> int:
    """Print what an open page costs; return 1 if that is more than the bar."""
    costs: list[tuple[float, float, float]] = []
    for turn in range(-1, rounds):  # the first fills caches
        order = [True, False] if turn % 2 else [False, True]
        found = {watch: watched(watch, rows, place / "out") for watch in order}
        if turn >= 0:
            with_it, without = found[True], found[False]
            more = with_it.driver - without.driver
            share = more / (without.driver + without.workers)
            costs.append((share, with_it.workers / without.workers, with_it.wall / without.wall))
            print(
                f"{without.wall:6.1f} s without, {with_it.wall:6.1f} s with: the driver {1000 * more:+.0f} ms, "
                f"{100 * share:.2f} % of the run; workers {costs[-1][1]:.3f}",
                flush=True,
            )
    share, workers, wall = (statistics.median(each) for each in zip(*costs, strict=True))
    missed = share > PAGE_BAR
    print(
        f"{100 * share:.2f} % of CPU time; workers {workers:.3f}, wall {wall:.3f}; the bar, {100 * PAGE_BAR:.0f} %: "
        f"{'missed' if missed else 'met'}"
    )
    return int(missed)


def measured(parts: Sequence[str], source: Path, out: Path, under: str) -> tuple[float, float]:
    """Run the job once, with these parts; return the wall seconds and the CPU seconds of all its processes."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    ours, theirs = pty.openpty()
    drained = threading.Thread(target=drain, args=(ours,), daemon=True)
    drained.start()
    paths = [str(data.ROOT), str(data.ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TERM": "xterm-256color"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # it would have each run compile what was changed
    command = [sys.executable, "-c", PROGRAM, "+".join(parts) or "none", str(source), str(out)]
    before, used = time.perf_counter(), cpu()
    subprocess.run([*shlex.split(under), *command], env=env, stdin=theirs, stderr=theirs, check=True)
    took = time.perf_counter() - before, cpu() - used
    os.close(theirs)
    drained.join(5.0)
    os.close(ours)
    return took


def cpu() -> float:
    """Return the CPU seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def drain(terminal: int) -> None:
    """Read what is drawn, as a terminal does."""
    while True:
        try:
            if not os.read(terminal, 65536):
                return
        except OSError:  # nobody draws any more
            return


def line(name: str, differences: Sequence[float]) -> str:
    """Return what a part costs: the median of the differences, and between what it lies in 95 of 100 samples."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(differences, k=len(differences))) for _ in range(2_000))
    low, middle, high = medians[50], statistics.median(differences), medians[-51]
    return f"{name:>10}  {middle * 1000:+6.1f} ms  ({low * 1000:+.1f} to {high * 1000:+.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=given.count, default=40)
    parser.add_argument("--under", default="", help="a command that runs each run")
    parser.add_argument("--data", type=Path, default=data.ROOT / "bench" / ".data")
    parser.add_argument("--page", action="store_true", help="measure the page of watch=True instead")
    parser.add_argument("--rows", type=given.count, default=6_000_000, help="of each run with --page")
    options = parser.parse_args()
    if options.page:
        with tempfile.TemporaryDirectory(prefix="run-") as scratch:
            return compared(min(options.rounds, 9), options.rows, Path(scratch))
    source = data.ensure("tiny", options.data, 1)
    kinds: dict[str, tuple[str, ...]] = {"nothing": (), **{part: (part,) for part in PARTS}, "all": PARTS}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.data) as scratch:
        for turn in range(-2, options.rounds):  # the first two fill caches
            names = list(kinds)
            random.Random(turn).shuffle(names)
            found = {
                name: measured(kinds[name], source, Path(scratch) / "out", options.under) for name in names
            }
            if turn >= 0:
                for name in names:
                    took[name].append(found[name])
    whole = 0.0
    for i, what in enumerate(("wall", "CPU")):
        nothing = [each[i] for each in took["nothing"]]
        print(f"{what}: {statistics.median(nothing):.3f} s with nothing, median of {options.rounds} rounds")
        for name in (*PARTS, "all"):
            differences = [each[i] - without for each, without in zip(took[name], nothing, strict=True)]
            print(line(name, differences))
            whole = statistics.median(differences) if (i, name) == (0, "all") else whole
    print(f"the bar, {BAR * 1000:.0f} ms for all: {'met' if whole <= BAR else 'missed'}")
    return int(whole > BAR)


if __name__ == "__main__":
    sys.exit(main())
