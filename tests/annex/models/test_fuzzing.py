"""Damaged model files of every kind: an error of ours or a result; no hang, no gigabyte, nothing written elsewhere.

``HEADRACE_FUZZ_CASES=100000 pytest -m soak tests/annex/models/test_fuzzing.py`` goes on for longer, and
``HEADRACE_FUZZ_SEED`` begins elsewhere. What ends as nothing should is kept beside the test's other files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from predictors.fuzzing import QUICK, SLOW, fuzz

CASES = int(os.environ.get("HEADRACE_FUZZ_CASES", "2000"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "0"))


def test_damaged_models_end_in_an_error_of_ours_or_a_result(tmp_path: Path) -> None:
    found = fuzz("onnx", tmp_path, 40)
    assert not found.wrong, "\n".join(found.wrong)
    assert found.ends["refused"] > 10
    assert found.ends["loaded"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_soak(tmp_path: Path, name: str) -> None:
    found = fuzz(name, tmp_path, CASES, SEED)
    print(f"\n{name}: {CASES / found.seconds:.0f} cases a second; {dict(found.ends)}")
    assert not found.wrong, "\n".join(found.wrong)
