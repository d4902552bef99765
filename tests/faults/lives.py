"""Drivers that are forked from one process that has imported everything, so that a life costs a tenth of a second."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Nursery:
    """A process that forks drivers: ``module.main(*arguments)``, one after the other."""

    def __init__(self) -> None:
        tests = str(Path(__file__).parents[1])
        code = f"import sys; sys.path.insert(0, {tests!r}); from faults.lives import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def live(
        self,
        module: str,
        arguments: list[Any],
        log: Path,
        *,
        faults: Mapping[str, str] | None = None,
        seconds: float | None = None,
        sleeps: tuple[float, float] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Have a driver live until it ends, reaches a fault, or is killed after ``seconds``; return its code.

        ``sleeps``: after how many seconds it is stopped, and when it goes on.
        """
        asked = [module, arguments, str(log), dict(faults or {}), seconds, sleeps, dict(environment or {})]
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)


def serve() -> None:
    """Fork a driver for each line of the input."""
    import pyarrow.parquet

    import headrace.session.write

    assert pyarrow.parquet and headrace.session.write
    for line in sys.stdin:
        module, arguments, log, faults, seconds, sleeps, environment = json.loads(line)
        importlib.import_module(module)
        child = os.fork()
        if child == 0:
            _live(module, arguments, log, faults, environment)
        signals = [] if seconds is None else [(seconds, signal.SIGKILL)]
        signals += zip(sleeps or (), (signal.SIGSTOP, signal.SIGCONT), strict=False)
        print(_end_of(child, signals), flush=True)


def _end_of(child: int, signals: list[tuple[float, signal.Signals]]) -> int:
    timers = [threading.Timer(seconds, os.kill, (child, number)) for seconds, number in signals]
    for timer in timers:
        timer.start()
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # its number is not another's yet
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()  # there is one thread when the next one is forked
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _live(
    module: str, arguments: list[Any], log: str, faults: dict[str, str], environment: dict[str, str]
) -> None:
    code = 1
    try:
        random.seed()
        os.environ.update(environment)
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, to in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(fd, to)
        from headrace.core import failpoints

        failpoints.activate(faults)
        sys.modules[module].main(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
