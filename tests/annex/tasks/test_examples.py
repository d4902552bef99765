"""The examples of calls and actors run, with small sizes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_task_for_each_month() -> None:
    printed = run("taxi_tasks.py", "--payload-mb", "40", "--rows", "1000").splitlines()
    tasks, actors, one, all_, *memory = printed
    assert re.match(r"tasks: ([\d,]+) likely", tasks)[1] == re.match(r"actors: ([\d,]+) likely", actors)[1]  # type: ignore[index]
    assert one == "at once, with memory for one: 1"
    assert all_.startswith("at once, with memory for all: ") and 1 <= int(all_[-1]) <= 2
    if sys.platform == "linux":
        assert re.match(r"most memory in use, all processes together: [\d,]+ MB", memory[0])


def test_a_model_on_every_device() -> None:
    pytest.importorskip("torch")
    small = ("--batches", "3", "--rows", "16", "--pixels", "64")
    assert "48 images" in run("torch_actors.py", "--device", "cpu", *small)
