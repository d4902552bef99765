"""Shared by the fault tests: one small input, a fresh output."""

from __future__ import annotations

from pathlib import Path

import pytest

from .job import Job, make_input


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_input(tmp_path_factory.mktemp("faults") / "in")


@pytest.fixture
def job(source: Path, tmp_path: Path) -> Job:
    return Job(str(source), str(tmp_path / "out"))
