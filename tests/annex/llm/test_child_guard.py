"""What an engine starts ends with the process that has the engine, however that ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from headrace.annex.llm.child_guard import ChildGuard

PARENT = """
import subprocess, sys, time
from headrace.annex.llm.child_guard import ChildGuard
child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
guard = ChildGuard([child.pid])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for others' children")
def test_a_killed_parent_takes_its_children_along():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    fd = os.pidfd_open(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert select.select([fd], [], [], 60)[0]  # it has ended
    os.close(fd)


def test_closing_kills_what_is_left_and_nothing_else():
    left, other = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    ended = subprocess.Popen(["true"])
    ended.wait()
    ChildGuard([left.pid, ended.pid]).close()
    assert left.wait() == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()
