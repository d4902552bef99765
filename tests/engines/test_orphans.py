"""What user code starts in workers ends with them: children, forks, and what those leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.engines.local import orphans
from headrace.engines.local.orphans import Watcher, descendants

PROGRAM = """
import json, os, signal, subprocess, sys, threading
import headrace as hr

def start():
    import multiprocessing

    child = subprocess.Popen(["sleep", "600"])
    fork = os.fork()
    if not fork:
        signal.pause()
    left = subprocess.run(["sh", "-c", "sleep 600 >&2 & echo $!"], stdout=subprocess.PIPE).stdout
    pool = multiprocessing.get_context("fork").Pool(1)
    start.kept = [child, pool]
    found = [child.pid, fork, int(left), pool.apply(os.getpid)]
    if sys.platform == "linux":
        found.append(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    return os.getpid(), found

executor = hr.connect(workers=1)
print(json.dumps(executor.submit(start).result()), flush=True)
sys.stdin.readline()
executor.shutdown()
"""


class Driver:
    """A program with a worker in which user code has started other processes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        worker, started = json.loads(self.process.stdout.readline())
        self.worker = psutil.Process(worker)
        self.others = [psutil.Process(pid) for pid in started]
        self.in_session_of_its_own = self.others[4:]
        self.watchers = [
            child for child in psutil.Process(self.process.pid).children() if child != self.worker
        ]

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    for process in (driver.process, driver.worker, *driver.others, *driver.watchers):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    driver.process.communicate()


def gone(processes: list[psutil.Process]) -> bool:
    """Wait until all have ended; a zombie has, even if nobody reaps it."""
    while any(is_alive(process) for process in processes):
        time.sleep(0.005)
    return True


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.annex
@pytest.mark.parametrize("too", ["driver", "driver and worker"])
def test_a_killed_driver_takes_along_what_its_workers_have_started(driver: Driver, too: str) -> None:
    driver.process.kill()
    if too == "driver and worker":
        with contextlib.suppress(psutil.NoSuchProcess):
            driver.worker.kill()
    groups = [process for process in driver.others if process not in driver.in_session_of_its_own]
    assert gone([driver.worker, *groups, *driver.watchers])


@pytest.mark.annex
def test_a_killed_worker_takes_along_what_it_has_started(driver: Driver) -> None:
    driver.worker.kill()
    assert gone([process for process in driver.others if process not in driver.in_session_of_its_own])


@pytest.mark.annex
def test_a_run_that_ends_leaves_nothing_that_its_workers_have_started(driver: Driver) -> None:
    driver.say("end")
    assert gone([driver.worker, *driver.others])
    assert driver.process.wait() == 0
    assert gone(driver.watchers)


@pytest.mark.annex
def test_what_a_worker_has_started_is_found_in_other_sessions_too(driver: Driver) -> None:
    found = descendants(driver.worker.pid)
    assert {process.pid for process in driver.others} - set(found) == (
        {driver.others[2].pid} if sys.platform == "linux" else {process.pid for process in driver.others}
    ), "the one whose parent has ended is nobody's"


# ---------------------------------------------------------------- the watcher itself


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A group of one process."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def watching(watcher: Watcher, *groups: int) -> psutil.Process:
    """Let it watch over groups; return its process, once it has begun."""
    for group in groups:
        watcher.add(group)
    before = set(psutil.Process().children())
    watcher.start()
    (process,) = set(psutil.Process().children()) - before
    return process


def test_a_watcher_ends_only_the_groups_that_were_not_removed(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_ENDS_WITHIN", 300.0)
    watcher = Watcher()
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    watching(watcher, sleeper.pid, other.pid)
    watcher.remove(sleeper.pid)
    watcher.close()
    assert other.wait() == -signal.SIGKILL
    assert sleeper.poll() is None
    other.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_shared_memory_of_who_is_killed_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_ENDS_WITHIN", 300.0)
    holding = (
        "from multiprocessing.shared_memory import *; m = SharedMemory(None, True, 9); print(m.name); input()"
    )
    command = [sys.executable, "-c", holding]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert holder.stdout is not None
    file = Path("/dev/shm", holder.stdout.readline().decode().strip())
    watcher = Watcher()
    watcher.add_memory([holder.pid], others={str(file)})
    assert not watcher._noted
    watcher.add_memory([holder.pid], others=set())
    watching(watcher, holder.pid)  # with its tracker of resources, which would remove it
    assert file.exists()
    watcher.close()
    assert holder.wait() == -signal.SIGKILL and not file.exists()
    holder.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_watcher_that_somebody_ends_or_stops_is_replaced(
    sleeper: subprocess.Popen[bytes], how: signal.Signals
) -> None:
    watcher = Watcher()
    first = watching(watcher, sleeper.pid)
    first.send_signal(how)
    while first.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED):
        os.sched_yield()
    number = 1 << 22  # above the greatest number of a process
    while watcher._sock is not None:  # one that is stopped takes some thousands in
        watcher.remove(number)
    assert sleeper.poll() is None, "nobody was ended by the watcher's own end"
    assert watching(watcher) != first
    watcher.close()
    assert sleeper.wait() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_watcher_is_out_of_reach_of_the_terminal_and_of_ordinary_signals(
    sleeper: subprocess.Popen[bytes],
) -> None:
    watcher = Watcher()
    process = watching(watcher, sleeper.pid)
    assert os.getsid(process.pid) == process.pid
    ignored = 0
    while ignored & 0b100000000000111 != 0b100000000000111:  # HUP, INT, QUIT and TERM: once it is the shell
        (line,) = [
            line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "SigIgn" in line
        ]
        ignored = int(line.split()[1], 16)
    watcher.close()
    assert sleeper.wait() == -signal.SIGKILL


def test_a_fork_of_the_driver_does_not_pass_for_it(sleeper: subprocess.Popen[bytes]) -> None:
    ours, theirs = os.pipe()
    watcher = Watcher()
    watching(watcher, sleeper.pid)
    fork = os.fork()
    if not fork:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    watcher.close()
    assert sleeper.wait() == -signal.SIGKILL, "though the fork lives"
    os.close(theirs)
    os.close(ours)
    os.waitpid(fork, 0)


def test_a_watcher_ends_single_processes_too_and_not_their_group(sleeper: subprocess.Popen[bytes]) -> None:
    watcher = Watcher()
    ours = subprocess.Popen(["sleep", "600"])  # of the group of this process
    ended = subprocess.Popen(["true"])
    ended.wait()
    for each in (ours.pid, ended.pid):
        watcher.add_process(each)
    watching(watcher)
    watcher.close()
    assert ours.wait() == -signal.SIGKILL
    assert sleeper.poll() is None
