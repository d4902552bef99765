"""Run programs for Ray one after another in this process, and say as JSON what each printed: on Ray, or here.

``python tests/annex/compat/run_programs.py record [programs]``, where Ray is installed, keeps what Ray prints there.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import linecache
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def run(program: Path, here: bool) -> str:
    """Return what the program prints; what it raises is the last line."""
    text = program.read_text()
    if here:  # the one change that a user makes
        text = re.sub(r"^import ray$", "from headrace.compat import ray", text, flags=re.MULTILINE)
        text = re.sub(r"^from ray\.", "from headrace.compat.ray.", text, flags=re.MULTILINE)
    name = f"<{program.stem}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(text, name, "exec"), {"__name__": "__main__", "__file__": str(program)})
        except Exception as error:
            traceback.print_exc()
            print("raised", type(error).__name__)
    # Ray's own warnings come in between, from another thread.
    return "".join(line for line in printed.getvalue().splitlines(keepends=True) if "(raylet)" not in line)


def run_all(programs: Sequence[Path], here: bool) -> Iterator[tuple[Path, str]]:
    """Yield each program with what it prints; one Ray, or one executor, serves all of them."""
    ray = importlib.import_module("headrace.compat.ray" if here else "ray")
    quick = {"_system_config": {"idle_worker_killing_time_threshold_ms": 600_000}}  # workers are kept
    cpus = 2 if here else 4
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR", **quick)
    context = importlib.import_module(f"{ray.__name__}.data").DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    context.default_hash_shuffle_parallelism = 1
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        tempfile.tempdir = (
            folder  # their files go with it; Ray's own sockets need a shorter path than a test has
        )
        for program in programs:
            yield program, run(program, here)
        ray.shutdown()
        tempfile.tempdir = None


def main(where: str, *names: str) -> None:
    """Write what the programs print to a file, by their names; or, to "record", beside the programs."""
    if where == "record":
        chosen = [PROGRAMS / f"{name}.py" for name in names] or sorted(PROGRAMS.glob("*.py"))
        for program, printed in run_all(chosen, here=False):
            program.with_suffix(".txt").write_text(printed)
        return
    answers, *rest = map(Path, names)
    found = {program.stem: printed for program, printed in run_all(rest, where == "here")}
    answers.write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
