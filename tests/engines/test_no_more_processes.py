"""As many processes and threads run as the system allows: said so, with what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.errors import EngineError

pytestmark = pytest.mark.local


def write(out: Path) -> None:
    mr.range(3).with_options(engine="local", workers=1, progress=False).write_csv(out)


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
