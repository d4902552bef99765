"""A server that is started, watched, started again, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.annex.llm import client
from headrace.errors import ArgumentError, EndpointUnavailable

COMMAND = [sys.executable, "-m", "headrace.testing.llm_server", "{port}"]
ROWS = hr.from_items([{"i": i} for i in range(40)])

PARENT = """
import sys, time, headrace as hr
server = hr.llm.Server([sys.executable, "-m", "headrace.testing.llm_server", "{port}"], "m")
server.__enter__()
print(server._process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(client, "LONGEST_WAIT", 5.0)
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_server_that_dies_is_started_again_and_ends_with_the_block(tmp_path):
    with hr.llm.Server(COMMAND, "m", log=tmp_path / "log") as server:
        first = server._process.pid
        asked = ROWS.prompt("{i}", server.endpoint).with_options(engine="inline", progress=False)
        assert [row["answer"] for row in asked.take(3)] == ["0", "1", "2"]
        os.kill(first, signal.SIGKILL)
        assert [row["answer"] for row in asked.take_all()] == [str(i) for i in range(40)]
        assert server.starts == 2
        second = server._process.pid
    assert gone(first) and gone(second) and second != first
    assert (tmp_path / "log").exists()
    with pytest.raises(ArgumentError, match="started already"), server:
        pass


def test_a_killed_program_takes_its_server_along():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    fd = os.pidfd_open(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    import select

    assert select.select([fd], [], [], 60)[0]
    os.close(fd)


def test_what_does_not_come_up_is_said(tmp_path):
    dies = [sys.executable, "-c", "print('no room for the model'); raise SystemExit(3)", "{port}"]
    with pytest.raises(EndpointUnavailable, match=r"ended with 3 before it answered.*no room for the model"):
        hr.llm.Server(dies, "m").__enter__()
    silent = [sys.executable, "-c", "import time; time.sleep(600)", "{port}"]
    with pytest.raises(EndpointUnavailable, match="does not answer at http"):
        hr.llm.Server(silent, "m", start_timeout=0.3).__enter__()
    for words, arguments in {
        "where the port belongs": {"command": "vllm serve model/"},
        "it is not a command": {"command": "vllm 'serve {port}"},
        "cannot be started": {"command": "no-such-server-here {port}"},
        "from 1 to 65535": {"command": "x {port}", "port": 0},
        "of at least 0": {"command": "x {port}", "restarts": -1},
    }.items():
        options: dict[str, Any] = dict(arguments)
        with pytest.raises(ArgumentError, match=words):
            hr.llm.Server(options.pop("command"), "m", **options).__enter__()
