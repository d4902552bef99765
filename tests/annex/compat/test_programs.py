"""Programs for Ray print here what they print on Ray 2.60, whose output is kept beside them: ``name.txt``.

Where something differs on purpose, ``name.here.txt`` has what is printed here, and
docs/coming-from-ray.md the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import run_programs

PROGRAMS = sorted(run_programs.PROGRAMS.glob("*.py"))


def printed(where: str, folder: Path) -> dict[str, str]:
    answers = folder / "answers.json"
    told = {"HEADRACE_ENGINE": "inline", "HEADRACE_PROGRESS": "0"}
    ended = subprocess.run(
        [sys.executable, run_programs.__file__, where, str(answers), *map(str, PROGRAMS)],
        capture_output=True,
        text=True,
        timeout=280 if where == "here" else None,
        check=False,
        cwd=folder,
        env={**os.environ, **told},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, str] = json.loads(answers.read_text())
    return found


def test_programs_print_the_same(tmp_path: Path) -> None:
    found = printed("here", tmp_path)
    differing = {}
    for program in PROGRAMS:
        ours = program.with_suffix(".here.txt")
        kept = ours if ours.exists() else program.with_suffix(".txt")
        if found[program.stem] != kept.read_text():
            differing[program.stem] = (kept.read_text(), found[program.stem])
    assert differing == {}


def test_few_programs_differ_on_purpose() -> None:
    on_purpose = [each for each in PROGRAMS if each.with_suffix(".here.txt").exists()]
    for program in on_purpose:
        assert program.with_suffix(".here.txt").read_text() != program.with_suffix(".txt").read_text()
    assert len(PROGRAMS) - len(on_purpose) >= 60 and len(on_purpose) <= 12


@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_ray_prints_what_was_kept(tmp_path: Path) -> None:
    if "ray 2.60" not in f"ray {pytest.importorskip('ray').__version__}":
        pytest.skip("what was kept is of Ray 2.60")
    found = printed("ray", tmp_path)
    differing = {
        p.stem: found[p.stem] for p in PROGRAMS if found[p.stem] != p.with_suffix(".txt").read_text()
    }
    assert differing == {}
