"""Ctrl-C and a killed driver leave no process and no shared memory behind."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from headrace.engines.local.template import supported

pytestmark = pytest.mark.usefixtures("no_template")

JOB = """
    import os, time
    import headrace as hr
    from headrace.driver.policies import workers as interruption
    interruption.PATIENCE = 0.5  # a batch that is under way takes longer in any case
    import numpy as np
    import pyarrow as pa

    def slow(batch):
        with open(f"worker-{os.getpid()}", "w"):
            pass
        time.sleep(600)
        return batch

    table = pa.table({"id": np.arange(1 << 20)})
    data = hr.from_arrow(table).with_options(engine="ENGINE", workers=2, shard_rows=1 << 18)
    %s
"""
VERBS = {
    "write": 'data.map_batches(slow).write_parquet("out")',
    "read": "list(data.map_batches(slow).iter_batches())",
}


def start(folder: Path, verb: str, engine: str = "local") -> tuple[subprocess.Popen[bytes], int]:
    """Start the job in a terminal of its own; return it with our end of the terminal."""
    (folder / "job.py").write_text(textwrap.dedent(JOB % VERBS[verb]).replace("ENGINE", engine))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "job.py"],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # makes it the controlling terminal
    )
    os.close(theirs)
    return process, ours


def workers(folder: Path, count: int = 2) -> list[psutil.Process]:
    """Wait until both workers are in the user's function."""
    while len(files := list(folder.glob("worker-*"))) < count:
        time.sleep(0.01)
    return [psutil.Process(int(file.name.partition("-")[2])) for file in files]


def shared_memory(*processes: psutil.Process) -> set[str]:
    """Return the files of shared memory that processes have open or mapped; others here have some of their own."""
    found: set[str] = set()
    for each in (Path(f"/proc/{process.pid}") for process in processes):
        with contextlib.suppress(OSError):  # there is no /proc
            found |= {line.split()[-1] for line in (each / "maps").read_text().splitlines()}
            found |= {os.readlink(link) for link in (each / "fd").iterdir()}
    files = tempfile.gettempdir()  # may be in memory, too
    return {name for name in found if name.startswith("/dev/shm/") and not name.startswith(files)}


def screen(terminal: int) -> str:
    """Return all that the terminal shows, to its end."""
    shown = b""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            data = b""
        if not data:
            os.close(terminal)
            return shown.decode(errors="replace")
        shown += data


def gone(processes: list[psutil.Process]) -> bool:
    """Wait until all have ended; a zombie has, even if nobody reaps it."""
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("verb", list(VERBS))
def test_ctrl_c(tmp_path: Path, verb: str) -> None:
    process, terminal = start(tmp_path, verb)
    children = workers(tmp_path)
    shared = shared_memory(psutil.Process(process.pid), *children)
    os.write(terminal, b"\x03")
    shown = screen(terminal)
    assert process.wait() == -signal.SIGINT
    assert gone(children)
    assert not any(map(os.path.exists, shared))
    assert shown.rstrip().endswith("KeyboardInterrupt")
    assert shown.count("Traceback") == 1 and shown.count("  File ") <= 2, shown


def test_ctrl_c_where_the_driver_works_itself(tmp_path: Path) -> None:
    process, terminal = start(tmp_path, "write", engine="inline")
    workers(tmp_path, 1)
    os.write(terminal, b"\x03")
    shown = screen(terminal)
    assert process.wait() == -signal.SIGINT
    assert shown.rstrip().endswith("KeyboardInterrupt")
    assert shown.count("Traceback") == 1, shown
    assert not list(tmp_path.rglob("*.staged")) and not list(tmp_path.glob("out/part-*"))


def test_a_killed_driver(tmp_path: Path) -> None:
    process, terminal = start(tmp_path, "write")
    children = workers(tmp_path)
    shared = shared_memory(psutil.Process(process.pid), *children)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert gone(children)
    assert not any(map(os.path.exists, shared))
    os.close(terminal)


def test_a_driver_that_ends_with_a_reader_open(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import headrace as hr\n"
        "from headrace.sources.range import RangeSource\n"
        "data = hr.Dataset.from_source(RangeSource(10_000, rows_per_split=100))\n"
        "batches = data.with_options(engine='local', workers=2, shard_rows=100, progress=False).iter_batches()\n"
        "print(next(batches)['id'][0])\n"
        "import psutil\n"
        "print(*[child.pid for child in psutil.Process().children()])\n"
    )
    done = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True)
    first, pids = done.stdout.splitlines()
    assert (done.returncode, first, done.stderr) == (0, "0", "")
    # Two workers, the shell that watches over them, and what the second was forked from.
    assert len(pids.split()) == 3 + supported()
    while any(psutil.pid_exists(int(pid)) for pid in pids.split()):
        time.sleep(0.01)
