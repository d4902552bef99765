"""The example of BatchPredictor runs, on few rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_batch_predictor(script: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pandas")
    command = [str(EXAMPLES / "batch_predictor.py"), "--rows", "5000", "--folder", str(tmp_path / "out")]
    one = {"HEADRACE_WORKERS": "1", "OMP_NUM_THREADS": "1"}  # threads of PyTorch wait at full speed
    ended = script("", command=command, env=one)
    assert ended.code == 0, ended.err
    assert "5,000 rides from a DataFrame" in ended.out
    assert "5,000 rides from Parquet files" in ended.out
    found = re.search(r"miss by ([\d.]+)", ended.out)
    assert found and float(found[1]) < 1.5, ended.out
    assert (tmp_path / "out" / "fares" / "_SUCCESS").exists()


def test_a_program_for_ray_air(script: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pandas")
    command = [str(EXAMPLES / "air_program.py"), "--rows", "2400", "--folder", str(tmp_path / "out")]
    ended = script("", command=command, env={"HEADRACE_ENGINE": "inline", "OMP_NUM_THREADS": "1"})
    assert ended.code == 0, ended.err
    assert "{'tipped': 0, 'predictions': 0.0}" in ended.out
    assert "['hour', 'kilometres']" in ended.out
    assert (tmp_path / "out" / "kilometres" / "_SUCCESS").exists()
