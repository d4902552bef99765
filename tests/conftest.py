from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("millrace.testing")

settings.register_profile("millrace", deadline=None, derandomize=True)  # a shared machine has slow moments
settings.load_profile("millrace")


_USUAL = {"MILLRACE_ENGINE": "local", "MILLRACE_WORKERS": "2", "MILLRACE_PROGRESS": "0"}


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what it showed."""

    code: int
    out: str
    err: str


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Ended]:
    """Run Python text as a script of its own, in ``tmp_path``."""

    def run(text: str, *, command: list[str] | None = None, stdin: str = "", **where: Any) -> Ended:
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(text))
        done = subprocess.run(
            [sys.executable, *(command or [str(file)])],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=where.get("cwd", tmp_path),
            env={**os.environ, **_USUAL, **where.get("env", {})},
            timeout=60,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run
