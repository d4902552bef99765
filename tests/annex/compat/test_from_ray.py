"""Programs as people publish them for Ray run here; the first line of each names its source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import forked

PROGRAMS = sorted((Path(__file__).parents[3] / "examples" / "from_ray").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_runs(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("torch", "PIL", "sklearn", "joblib", "pandas"):
        if f"import {library}" in program.read_text() or f"from {library}" in program.read_text():
            pytest.importorskip(library)
    monkeypatch.setenv("HEADRACE_PROGRESS", "0")
    if program.stem.startswith("data_"):
        monkeypatch.setenv("HEADRACE_ENGINE", "inline")
    ended = forked.run([sys.executable, str(program)], timeout=120, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_there_are_many_and_each_names_its_source() -> None:
    assert len(PROGRAMS) >= 75
    for program in PROGRAMS:
        assert program.read_text().startswith("# The calls are those of "), program
