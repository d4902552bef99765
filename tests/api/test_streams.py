"""Programs that are started with standard streams closed: by daemons, by init systems, by cron's kin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
import headrace as hr

def chatty(batch):
    for number in (1, 2):
        try:
            os.write(number, b"what a library writes to its terminal")
        except OSError:
            pass
    return batch

def main(told):
    for engine in ("inline", "local"):
        data = hr.range(100).map_batches(chatty).with_options(engine=engine, workers=1)
        data.write_parquet(f"{told}.{engine}")
        assert data.write_parquet(f"{told}.{engine}").resumed
        assert hr.read_parquet(f"{told}.{engine}").count() == 100
    with hr.connect(workers=1) as executor:
        assert executor.submit(sum, [1, 2]).result() == 3
    return "well"

if __name__ == "__main__":
    try:
        words = main(sys.argv[1])
    except BaseException as error:
        words = repr(error)
    with open(sys.argv[1], "w") as file:
        file.write(words)
"""


@pytest.mark.annex
def test_a_program_runs_with_its_standard_streams_closed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["sh", "-c", 'exec "$0" "$@" 0<&- 1>&- 2>&-', sys.executable, str(tmp_path / "program.py")]
    subprocess.run([*command, str(tmp_path / "told")], check=False)
    assert (tmp_path / "told").read_text() == "well"


@pytest.mark.annex
def test_a_command_runs_with_its_standard_streams_closed(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n2\n")
    (tmp_path / "model.py").write_text("def double(batch):\n    return batch['x'] * 2\n")
    words = ["predict", "model:double", "in.csv", "--out", "out", "--inputs", "x"]
    command = ["sh", "-c", 'exec "$0" "$@" 0<&- 1>&- 2>&-', sys.executable, "-m", "headrace", *words]
    assert subprocess.run(command, check=False, cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "_SUCCESS").exists()
