"""A run of several stages shows that it gets on from its first seconds: in a terminal, and by ``headrace status``."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import subprocess
import sys
import termios
import time
from pathlib import Path

# The last stage takes all rows at once: it has none before the first stage is through with all of them.
JOB = """
import os, time
import headrace as hr

def prepare(batch):
    while not os.path.exists(f"step-{int(batch['id'][0]) // 100}"):
        time.sleep(0.01)
    return batch

class Net:
    def __call__(self, batch):
        return batch

data = hr.range(1000).map_batches(prepare, batch_size=100, concurrency=2)
data = data.map_batches(Net, batch_size=1000, concurrency=1)
data.with_options(shard_rows=1000).write_parquet("out")
"""
STEPS = 10
AWHILE = 1.0  # seconds in which a worker says how far it is


def test_from_its_first_seconds(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(
            sys.executable,
            [sys.executable, "job.py"],
            {**os.environ, "TERM": "xterm", "HEADRACE_PROGRESS": "1", "HEADRACE_ENGINE": "local"},
        )
    termios.tcsetwinsize(screen, (40, 160))
    text, decoder = "", codecs.getincrementaldecoder("utf-8")()

    def read() -> bool:
        """Read more of the screen, which is drawn again and again; False once the run has ended."""
        nonlocal text
        try:
            text += decoder.decode(os.read(screen, 65536))
        except OSError:  # it has ended
            return False
        return True

    while "running" not in text:
        assert read()
    for step in range(STEPS // 2):  # one by one: several in a quarter of a second are told as one
        (tmp_path / f"step-{step}").touch()
        until = time.monotonic() + AWHILE
        while f" {100 * step + 100} half done" not in text and time.monotonic() < until:
            read()
    while not re.search(r"half done[^\r]* \d:\d\d left", text):
        assert read()
    assert "  0 of 1,000 rows  " in text and not re.search(r"[1-9]\d* of 1,000 rows", text)
    asked = [sys.executable, "-m", "headrace", "status", "out"]
    status = subprocess.run([*asked, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    told = json.loads(status.stdout)
    assert told["rows_read"] == 0 and told["rows_half_done"] >= 100 and told["seconds_left"] is not None
    assert told["stages"][1]["busy"] < 0.5  # it waits, and is not the bottleneck
    for step in range(STEPS):
        (tmp_path / f"step-{step}").touch()
    while read():
        pass
    assert os.waitpid(pid, 0)[1] == 0
    frames = re.findall(r"([\d.]+) % .{0,20} of 1,000 rows", re.sub(r"\x1b\[[\d;]*m", "", text))
    shares = [float(share) for share in frames]
    assert shares == sorted(shares) and any(0.0 < share < 10.0 for share in shares)
