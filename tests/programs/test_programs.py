"""Programs as a new user writes them: each runs in an empty folder and checks every value that it has made.

``HEADRACE_PROGRAM_RUNS=10`` runs each ten times; ``make programs`` does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked

HERE = Path(__file__).parent
RUNS = int(os.environ.get("HEADRACE_PROGRAM_RUNS", "1"))

PROGRAMS = {
    path.stem: (path.name,)
    for path in sorted(HERE.glob("*.py"))
    if path.stem[:5] not in ("test_", "__ini", "conft")
}
PROGRAMS |= {kind: ("databases.py", kind) for kind in ("sqlite", "duckdb", "postgresql")}
del PROGRAMS["databases"]


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, run: int, tmp_path: Path) -> None:
    script, *words = PROGRAMS[name]
    (tmp_path / script).write_text((HERE / script).read_text())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    command = [sys.executable, script, *words]
    if RUNS == 1 and name != "killed":  # a fork of what has imported the library, as that costs less
        done = forked.run(command, cwd=tmp_path, env=environment, workers=True)
    else:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
