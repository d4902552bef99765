"""However it ends, nothing is left; and what ends badly says so."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import headrace as hr
from headrace.engines.local.template import supported
from headrace.errors import ExecutorClosed

from .test_calls import WITHIN, fifo, let_through, through


def test_leaving_waits_for_all_calls(tmp_path: Path) -> None:
    with hr.connect(workers=2) as executor:
        futures = [executor.submit(Path.touch, tmp_path / str(i)) for i in range(10)]
        actor = executor.actor(list)
        later = actor.copy()
    assert all(future.done() for future in futures) and len(list(tmp_path.iterdir())) == 10
    assert later.result() == []
    with pytest.raises(ExecutorClosed):
        executor.submit(abs, 1)
    with pytest.raises(RuntimeError):
        executor.put(1)
    with pytest.raises(RuntimeError):
        actor.copy()
    executor.shutdown()


def test_cancelling_what_has_not_begun(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    executor = hr.connect(workers=1)
    first = executor.submit(through, gate, 1)
    rest = [executor.submit(abs, i) for i in range(5)]
    while not first.running():
        time.sleep(0.001)
    executor.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(ExecutorClosed):
        executor.submit(abs, 1)
    let_through(gate)
    executor.shutdown()
    assert first.result() == 1 and all(future.cancelled() for future in rest)


def test_an_executor_that_is_dropped_finishes(tmp_path: Path) -> None:
    future = hr.connect(workers=1).submit(abs, -1)
    assert future.result(WITHIN) == 1
    pool = hr.connect(workers=1).actor_pool(dict, a=1, size=1)
    pool.submit(lambda actor, key: actor.get(key), "a")
    assert pool.get_next(WITHIN) == 1
    del pool
    for thread in threading.enumerate():
        if thread.name == "headrace-executor":
            thread.join(WITHIN)


def test_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    with pytest.raises(KeyboardInterrupt), hr.connect(workers=1) as executor:
        futures = [executor.submit(through, gate) for _ in range(2)]
        while not futures[0].running():
            time.sleep(0.001)
        raise KeyboardInterrupt
    with pytest.raises(ExecutorClosed):
        futures[0].result(0)
    assert futures[1].cancelled()


def test_the_program_ends_when_all_is_done(script: Callable[..., Any], tmp_path: Path) -> None:
    ended = script(
        """
        import sys
        import headrace as hr

        executor = hr.connect(workers=2)
        for i in range(4):
            executor.submit(print, "line", i)
        if len(sys.argv) > 1:
            executor.shutdown(wait=False)
        """,
    )
    assert (ended.code, ended.err) == (0, "")
    assert sorted(ended.out.splitlines()) == [f"line {i}" for i in range(4)]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel to end workers")
def test_a_driver_that_is_killed_takes_its_workers_along(tmp_path: Path) -> None:
    program = """
import time, numpy as np, headrace as hr
executor = hr.connect(workers=2)
ref = executor.put(np.ones(1 << 20))
futures = [executor.submit(lambda ref: time.sleep(600), ref) for _ in range(2)]
actor = executor.actor(list)
print(actor.copy().result(), flush=True)
time.sleep(600)
"""
    mark = {**os.environ, "HEADRACE_TEST_ENDINGS": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=mark)
    assert driver.stdout is not None and driver.stdout.readline() == b"[]\n"
    family = psutil.Process(driver.pid).children(recursive=True)
    assert len(family) == 4 + supported(), (
        "three workers, what they are forked from, and what watches over them"
    )
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=WITHIN)
    assert alive == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_of_the_program_is_told_that_the_executor_is_not_its_own() -> None:
    with hr.connect(workers=1) as executor:
        actor = executor.actor(dict)
        assert executor.submit(len, "ab").result(WITHIN) == 2
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            for call in (lambda: executor.submit(len, "ab"), actor.keys, lambda: executor.actor(dict)):
                with contextlib.suppress(ExecutorClosed):
                    call()
                    os._exit(1)
            os.write(write, b"told")
            os._exit(0)
        os.close(write)
        with open(read, "rb") as said:
            assert said.read() == b"told"
        os.waitpid(pid, 0)
        assert executor.submit(len, "abc").result(WITHIN) == 3
