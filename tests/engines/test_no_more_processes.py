"""As many processes and threads run as the system allows: said so, with what to do."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from crossed import sampled
from headrace.errors import EngineError

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("no_template")]


def write(out: Path) -> None:
    hr.range(3).with_options(engine="local", workers=1, progress=False).write_csv(out)


def test_no_more_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "_fork_exec", refuses)
    with pytest.raises(EngineError, match=r"Resource temporarily unavailable.*pids\.max"):
        write(tmp_path / "out")


def test_no_more_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "_start_new_thread", refuses)
    with pytest.raises(EngineError, match=r"can't start new thread.*pids\.max"):
        write(tmp_path / "out")


def test_no_more_threads_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading\n"
        "def refuses(*args):\n"
        '    raise RuntimeError("can\'t start new thread")\n'
        "threading._start_new_thread = refuses\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"could not begin: .*can't start new thread.*workers.*\)\.$"):
        write(tmp_path / "out")
    assert "Traceback" not in capfd.readouterr().err


# ---------------------------------------------------------------- a limit of the system's

_USER = 61_987  # nobody's: the limit counts all that a user runs, wherever that is
_LIMITED = """
import resource, sys
import headrace as hr

def run(name, allowed):
    if allowed:
        import os
        tasks = 0
        for each in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{each}").st_uid == os.getuid():
                    tasks += len(os.listdir(f"/proc/{each}/task"))
            except OSError:
                pass
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks + allowed, tasks + allowed))
    try:
        hr.range(1000).map_batches(lambda b: b).with_options(
            engine="local", workers=3, progress=False).write_csv(sys.argv[1] + name)
    except hr.errors.HeadraceError as error:
        print(type(error).__name__, error)
    else:
        print("done")

run("/free", 0)
run("/limited", int(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it counts the threads of a user in /proc")
@pytest.mark.parametrize("allowed", [1, *sampled(4, 2, 8)])
def test_as_many_as_the_system_allows(tmp_path: Path, allowed: int) -> None:
    """The limit is real: the system refuses, in the driver or in a worker, wherever it is reached."""
    command = [sys.executable, "-c", _LIMITED, str(tmp_path), str(allowed)]
    if os.geteuid() == 0:
        # Root knows no such limit. Another user does, who may read what is root's as long as he has this right.
        if shutil.which("setpriv") is None:
            pytest.skip("root has no limit of processes, and there is no setpriv to run as somebody else")
        right = [
            "--inh-caps=-all,+dac_override",
            "--ambient-caps=-all,+dac_override",
            "--bounding-set=-all,+dac_override",
        ]
        command = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", *right, *command]
        if subprocess.run([*command[: command.index("-c")], "-c", ""], capture_output=True).returncode:
            pytest.skip("root has no limit of processes, and here may not run as somebody else with setpriv")
    own = {"HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**os.environ, **own}, cwd=tmp_path, capture_output=True, text=True)
    said = done.stdout.strip().splitlines()
    assert "Traceback" not in done.stderr, done.stderr
    assert len(said) >= 2, (done.stdout, done.stderr)
    assert said[0] == "done"
    assert said[1] == "done" or "bug in Headrace" not in done.stdout, done.stdout
    if allowed == 1:
        assert "Error" in said[1], done.stdout
        assert "ulimit -u" in done.stdout, done.stdout
