"""Programs for Ray Core print here what they print on Ray, whose output was kept beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import forked

PROGRAMS = Path(__file__).parent / "ray_core"


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_a_program_prints_the_same(program: Path, tmp_path: Path) -> None:
    lines = program.read_text().splitlines()
    changed = [
        "from headrace.compat import ray"
        if line == "import ray"
        else line.replace("from ray.", "from headrace.compat.ray.")
        for line in lines
    ]
    here = tmp_path / program.name
    here.write_text("\n".join(changed))
    ended = forked.run([sys.executable, str(here)], timeout=280, cwd=tmp_path)
    assert ended.stdout == program.with_suffix(".txt").read_text(), ended.stderr
    assert ended.returncode == 0
