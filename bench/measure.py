"""One run of a program: its wall time, its CPU time, and the peak memory of its process tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.05
GRACE_SECONDS = 5.0  # for daemons that outlive their program a little
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Reading:
    """What one run took. `peak_bytes` is None where memory was not sampled."""

    wall_s: float
    cpu_s: float
    peak_bytes: int | None


class RunFailed(Exception):
    """The program ended badly; the message is the end of what it printed."""


def adopt_orphans() -> None:
    """Makes orphaned descendants our children (Linux), so that their CPU time is counted too."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: dict[str, str],
    log: Path,
    timeout: float,
    sample_memory: bool = False,
) -> Reading:
    """Runs `command` to its end. Timing and sampling are not meant for the same run.

    Wall time ends when the program itself does; CPU time includes every descendant that has
    ended within a grace period, after which the rest are killed.

    Raises `RunFailed` on a bad exit status or after `timeout` seconds.
    """
    sampler = Sampler() if sample_memory else None
    with log.open("wb") as output:
        before = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    keep_niceness(process)
    watchdog = threading.Timer(timeout, process.kill)
    watchdog.start()
    if sampler:
        sampler.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:  # Ctrl-C does not reach a program in a session of its own
        watchdog.cancel()
        process.kill()
        reap_orphans()
        raise
    wall = time.perf_counter() - before
    process.returncode = os.waitstatus_to_exitcode(status)
    timed_out = not watchdog.is_alive()
    watchdog.cancel()
    peak = sampler.stop() if sampler else None
    cpu = usage.ru_utime + usage.ru_stime + reap_orphans()
    if process.returncode != 0:
        reason = f"took longer than {timeout:g} s" if timed_out else f"exit {process.returncode}"
        tail = log.read_text(errors="replace").strip().splitlines()[-8:]
        raise RunFailed("\n".join([reason, *tail]))
    return Reading(wall, cpu, peak)


def keep_niceness(process: subprocess.Popen[bytes]) -> None:
    """Have the sessions of a program as nice as we are.

    Linux may divide cores among sessions first, and each begins with a niceness of 0: an engine with many sessions
    would get more of a busy machine than a loop with one. They are looked for a few times, ever more seldom.
    """
    niceness = os.nice(0) if hasattr(os, "nice") else 0
    if niceness and Path("/proc/self/autogroup").exists():
        threading.Thread(target=_keep_niceness, args=(process, niceness), daemon=True).start()


def _keep_niceness(process: subprocess.Popen[bytes], niceness: int) -> None:
    pause = 0.1
    while process.returncode is None and pause < 60:
        with contextlib.suppress(OSError, psutil.Error):
            program = psutil.Process(process.pid)
            for each in [program, *program.children(recursive=True)]:
                with contextlib.suppress(OSError):
                    Path(f"/proc/{each.pid}/autogroup").write_text(str(niceness))
        time.sleep(pause)
        pause *= 2


def reap_orphans() -> float:
    """Waits for adopted processes, kills the slow ones; the CPU seconds of all of them."""
    cpu, deadline = 0.0, time.monotonic() + GRACE_SECONDS
    while True:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return cpu
        if pid:
            cpu += usage.ru_utime + usage.ru_stime
            continue
        if time.monotonic() > deadline:
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGKILL)
        time.sleep(0.02)


class Sampler(threading.Thread):
    """Sums the memory of all our descendants again and again and keeps the highest sum."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.ended = threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while not self.ended.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, sum(memory_of(p) for p in me.children(recursive=True)))

    def stop(self) -> int:
        self.ended.set()
        self.join()
        return self.peak


def proportional(process: psutil.Process) -> int:
    """PSS: pages that several processes share count once in the sum."""
    with open(f"/proc/{process.pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def resident(process: psutil.Process) -> int:
    size: int = process.memory_info().rss
    return size


MEMORY_KIND = "PSS" if sys.platform == "linux" else "RSS"
COUNT: Callable[[psutil.Process], int] = proportional if MEMORY_KIND == "PSS" else resident


def memory_of(process: psutil.Process) -> int:
    """Bytes of memory that a process holds; 0 once it is gone."""
    try:
        return COUNT(process)
    except (OSError, psutil.Error):
        return 0
