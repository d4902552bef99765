"""What only worker processes of this machine do: they are killed while they start, and share memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.core.ports import PoolSpec, WorkerContext
from millrace.engines.local import LocalEngine
from millrace.errors import NeverReady, WorkerDied


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    engine = LocalEngine()
    yield engine
    engine.close(kill=True)


def starts_forever(fifo: str, context: WorkerContext) -> Any:
    """Never come to an end."""
    with open(fifo):
        pass


def children() -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process().children()
    return []


def test_workers_that_are_killed_as_they_start(engine: LocalEngine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    pool = engine.start(
        PoolSpec("stage 1", partial(starts_forever, str(tmp_path / "fifo")), 2), lambda *note: None
    )
    lost = pool.submit("anything")
    deadline = time.monotonic() + 30
    with pytest.raises(WorkerDied) as caught:
        while time.monotonic() < deadline:
            for child in children():
                child.kill()
            pool.loads()
    said = str(caught.value)
    assert said.startswith(
        "3 workers of stage 1 in a row ended before they could work: killed by SIGKILL while "
    )
    assert "while starting" in said or "while importing" in said
    assert "`dmesg` tells" in said and said.endswith(".")
    with pytest.raises(NeverReady, match="killed by SIGKILL while"):
        lost.result(30)
